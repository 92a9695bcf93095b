"""What the briefs' reward measures against: one baseline, the same for every planner.

Time and money of the best single domain by time; where none holds the job, of the uniform split over all domains;
where that does not fit either, of the fastest plan there is. Egress alone, of which a single domain has none, is
always measured against the uniform split, else the fastest plan; where those pay none, it weighs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from strata.clock import Clock
from strata.training.plan.baselines.context import Context, Unfinished
from strata.training.plan.baselines.uniform_rules import uniform_split
from strata.training.plan.exact.problem import POOL, Problem
from strata.training.plan.exact.result import Evaluated, SearchResult
from strata.training.plan.exact.search import Search
from strata.training.plan.objective import Scales, money
from strata.workload.job import Limits, Objective


def reference(problem: Problem, *, clock: Clock, deadline: float) -> Scales | None:
    """Return the baselines of a problem's reward, None where no plan fits at all, or none was there in time."""
    by_time = without_limits(problem)
    timed = next(_baselines(by_time, clock=clock, deadline=deadline), None)
    if timed is None:
        return None
    paid: Evaluated | None = timed
    if problem.job.objective is Objective.REWARD_EGRESS:
        paid = next(_spread(by_time, clock=clock, deadline=deadline), None)
    usd = money(paid.report) if paid is not None else 0.0
    return Scales(baseline_s=timed.report.step_time_s, baseline_usd=usd or math.inf)


def without_limits(problem: Problem) -> Problem:
    """Return the problem by time alone, whatever it may cost or must reach."""
    limits = problem.job.limits
    kept = Limits(domains=limits.domains, memory_headroom=limits.memory_headroom)
    return replace(problem, job=replace(problem.job, objective=Objective.TIME, limits=kept))


def best_single(problem: Problem, scales: Scales, *, clock: Clock, deadline: float) -> SearchResult:
    """Return the best plan of every kind of domain taken alone."""
    result = SearchResult()
    for index in problem.representatives:
        result.merge(Search(problem, scales, (index,), clock=clock, deadline=deadline).run())
    return result


def _baselines(problem: Problem, *, clock: Clock, deadline: float) -> Iterator[Evaluated]:
    yield from best_single(problem, Scales(), clock=clock, deadline=deadline).ranked[:1]
    yield from _spread(problem, clock=clock, deadline=deadline)


def _spread(problem: Problem, *, clock: Clock, deadline: float) -> Iterator[Evaluated]:
    """Yield the uniform split over all domains, then the fastest plan."""
    context = Context(Scales(), 0, np.random.default_rng(0), clock, deadline)
    try:
        uniform = uniform_split(problem, context)
    except Unfinished:
        return
    if uniform is not None:
        yield uniform
    members = range(min(POOL, len(problem.fleet.domains)))
    if members:
        yield from Search(problem, Scales(), members, clock=clock, deadline=deadline).run().ranked[:1]
