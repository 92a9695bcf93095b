"""What the briefs' reward measures against: one baseline, the same for every planner.

Time and money of the best single domain by time; where none holds the job, of the uniform split over all domains;
where that does not fit either, of the fastest plan there is. Egress alone, of which a single domain has none, is
always measured against the uniform split, else the fastest plan; where those pay none, it weighs nothing.
Where time runs out before that is proved, it is the best that there is by then, and said to be an estimate.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from strata.clock import Clock
from strata.training.plan.baselines.context import Context, Unfinished
from strata.training.plan.baselines.uniform_rules import uniform_split
from strata.training.plan.exact.problem import POOL, Problem
from strata.training.plan.exact.result import Evaluated, SearchResult
from strata.training.plan.exact.search import Search
from strata.training.plan.exact.speed import speeds
from strata.training.plan.objective import Scales, money
from strata.workload.job import Limits, Objective


class _Baseline(NamedTuple):
    """A plan to measure against; `is_cut`: time ran out before it was proved to be the one."""

    plan: Evaluated | None
    is_cut: bool


def reference(problem: Problem, *, clock: Clock, deadline: float) -> Scales | None:
    """Return the baselines of a problem's reward, None where no plan fits at all, or none was there in time."""
    by_time = without_limits(problem)
    paid = None
    if problem.job.objective is Objective.REWARD_EGRESS:
        # Half of the time: without it egress would weigh nothing, whatever a single domain can do.
        paid = _spread(by_time, clock=clock, deadline=(clock() + deadline) / 2)
    alone = best_single(by_time, Scales(), clock=clock, deadline=deadline)
    timed = _Baseline(next(iter(alone.ranked), None), alone.stopped)
    if timed.plan is None:
        spread = paid or _spread(by_time, clock=clock, deadline=deadline)
        timed = _Baseline(spread.plan, timed.is_cut or spread.is_cut)
    if timed.plan is None:
        return None
    paid = paid or timed
    usd = money(paid.plan.report) if paid.plan is not None else 0.0
    return Scales(timed.plan.report.step_time_s, usd or math.inf, is_estimate=timed.is_cut or paid.is_cut)


def without_limits(problem: Problem) -> Problem:
    """Return the problem by time alone, whatever it may cost or must reach."""
    limits = problem.job.limits
    kept = Limits(domains=limits.domains, memory_headroom=limits.memory_headroom)
    return replace(problem, job=replace(problem.job, objective=Objective.TIME, limits=kept))


def best_single(problem: Problem, scales: Scales, *, clock: Clock, deadline: float) -> SearchResult:
    """Return the best plan of every kind of domain taken alone, the fastest kinds first."""
    result, speed = SearchResult(), speeds(problem)
    for index in sorted(problem.representatives, key=lambda i: -speed[i]):
        if clock() > deadline:
            result.stopped = True
            break
        result.merge(Search(problem, scales, (index,), clock=clock, deadline=deadline).run())
    return result


def _spread(problem: Problem, *, clock: Clock, deadline: float) -> _Baseline:
    """Return the uniform split over all domains; where there is none, the fastest plan."""
    context = Context(Scales(), 0, np.random.default_rng(0), clock, deadline)
    try:
        context.check_time()
        uniform = uniform_split(problem, context)
    except Unfinished:
        return _Baseline(None, True)
    members = range(min(POOL, len(problem.fleet.domains)))
    if uniform is not None or not members:
        return _Baseline(uniform, False)
    fastest = Search(problem, Scales(), members, clock=clock, deadline=deadline).run()
    return _Baseline(next(iter(fastest.ranked), None), fastest.stopped)
