"""Plan a training job on a fleet: the best plan, the ranked others, the proof, and the reasons.

observe: a Fleet and a TrainingJob are the snapshot. decide: `plan_training`, a pure function of them and a
clock. explain: the Decision inside the answer, and `explain.py`. act: `export.py` writes what launches it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from strata.clock import Clock
from strata.decision import Alternative, Decision, Reason, Trust
from strata.errors import OutOfTime
from strata.fleet.fleet import Fleet
from strata.progress import Progress, silent
from strata.training.plan import explain, relax
from strata.training.plan.exact import wide
from strata.training.plan.exact.alone import first_plan
from strata.training.plan.exact.pareto import vector
from strata.training.plan.exact.problem import POOL, Problem
from strata.training.plan.exact.ranked_search import RankedSearch
from strata.training.plan.exact.result import Evaluated, SearchResult
from strata.training.plan.exact.search import Search
from strata.training.plan.objective import Scales, check_egress, check_prices, money, score_report
from strata.training.plan.reference import reference, without_limits
from strata.training.plan.report import TrainingPlanReport
from strata.training.plan.request import inputs_digest
from strata.units import show_time
from strata.workload.job import Objective, TrainingJob
from strata.workload.plan import TrainingPlan

DEFAULT_TIME_LIMIT_S: Final = 30.0

REFERENCE_SHARE: Final = 1 / 2
ENDS_SHARE: Final = 2 / 3
"""Of the time limit, at most, for what a reward is measured against; of Tchebycheff, with the front's ends.

Of what is left each of these searches has an equal part: what needs less leaves it to those after it."""

ENDS: Final = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
"""Weights of a reward that each end of the front is best for."""


def plan_training(
    fleet: Fleet,
    job: TrainingJob,
    *,
    clock: Clock,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    rank: int = 5,
    seed: int = 0,
    progress: Progress = silent,
) -> TrainingPlanReport:
    """Return the best plan of the plan space, with the proof of how good it is.

    Exact for fleets of up to 10 usable domains (gap 0 unless the time limit stops it); above, the best of
    several exact searches over pools of domains, with a bound over all of them. What a reward or Tchebycheff
    measures against has REFERENCE_SHARE or ENDS_SHARE of the limit. Raises UsageError where money is asked for
    and a domain has no price. No plan is a Decision without a choice, never an error.
    """
    started = clock()
    problem = problem_of(fleet, job)
    deadline = started + time_limit_s
    scales = _scales(problem, clock, deadline, progress)
    with progress("planning"):
        result = _search(problem, scales, clock, deadline, rank)
    plans = tuple(result.ranked)
    if result.interrupted and not plans:
        raise KeyboardInterrupt  # there is nothing to keep, and what would help is not known
    elapsed = clock() - started
    others = alternatives(problem, plans, result)
    reasons = [*problem.excluded]
    if plans:
        reasons = [explain.chosen(problem, plans[0], result), *explain.character(problem, plans[0]), *reasons]
        reasons += explain.single_domain(problem.job, plans, result)
    elif not result.stopped:
        refusal = next(iter(result.refusals.values()), None)
        with progress("what would help"):
            reasons += relax.precision(fleet, problem) or relax.smallest(
                problem, refusal=refusal, clock=clock, deadline=deadline
            )
    if result.stopped:
        reasons.append(Reason("time-limit", "", {"elapsed": show_time(elapsed), "evaluated": result.evaluated}))
    reasons += explain.scale(job, scales)
    whole_digest, digests = inputs_digest(fleet, job)
    decision = Decision(
        choice=plans[0].plan if plans else None,
        alternatives=others,
        reasons=tuple(reasons),
        trust=plans[0].report.trust if plans else Trust.ANALYTIC,
        inputs_digest=whole_digest,
        seed=seed,
        elapsed_s=elapsed,
    )
    return TrainingPlanReport(problem, digests, decision, plans, result, scales)


def problem_of(fleet: Fleet, job: TrainingJob) -> Problem:
    """Return the planning problem. Raises UsageError where money is asked for and a domain, or every link, has no
    price."""
    if job.objective is Objective.REWARD_EGRESS:
        check_egress(job, fleet)
        # Where devices have no price egress is all the money there is, in bounds and in plans.
        free = [replace(domain, price_usd_per_device_hour=None) for domain in fleet.domains]
        return Problem.of(replace(fleet, domains=tuple(free)), job)
    problem = Problem.of(fleet, job)
    unpriced = [d.name for d in problem.fleet.domains if d.price_usd_per_device_hour is None]
    check_prices(job, unpriced)
    if not unpriced:
        return problem
    # Egress is then all the money that is known: weighed against none, it would forbid every crossing.
    return replace(problem, job=replace(job, weights=(*job.weights[:2], 0.0)))


def best_with(
    problem: Problem, chosen: TrainingPlan, domain: str, *, clock: Clock, time_limit_s: float
) -> tuple[Evaluated | None, tuple[Reason, ...]]:
    """Return the best plan that uses a domain and why it is not the chosen one; None where no such plan fits.

    Raises OutOfTime where the limit passed before there was one.
    """
    deadline = clock() + time_limit_s
    scales = _scales(problem, clock, deadline, silent)
    index = problem.fleet.index(domain)
    others = [problem.fleet.index(name) for name in chosen.domains]
    rest = [i for i in range(len(problem.fleet.domains)) if i != index and i not in others]
    members = sorted({index, *others, *rest[: max(0, POOL - 1 - len(others))]})[:POOL]
    members = members if index in members else [index, *members[1:]]
    search = Search(problem, scales, members, clock=clock, deadline=deadline, must_use=index).run()
    if not search.ranked:
        if search.stopped:
            raise OutOfTime(
                f"no plan with {domain} within {show_time(time_limit_s)}",
                hint="plan again with a larger --time-limit: --why-not has as long as the plan had",
            )
        return None, ()
    report = problem.model.reports([chosen])[0]
    best = Evaluated(chosen, report, score_report(problem.job, scales, report))
    return search.ranked[0], explain.why_not(problem, search.ranked[0], best)


def _search(
    problem: Problem, scales: Scales, clock: Clock, deadline: float, rank: int, *, is_owed: bool = True
) -> SearchResult:
    """Search all plans; `is_owed`: for a first one beyond the deadline, too."""
    count = len(problem.fleet.domains)
    if count == 0:
        return SearchResult()
    if count <= POOL:
        pools = _pools(problem)
        result = first_plan(problem, scales, pools, clock=clock, deadline=deadline, is_owed=is_owed)
        if not result.interrupted:
            every = RankedSearch(problem, scales, range(count), clock=clock, deadline=deadline, rank=rank)
            result.merge(every.run(so_far=result, keeps_best=True))
        return result
    return wide.search(problem, scales, clock=clock, deadline=deadline, rank=rank, is_owed=is_owed)


def _scales(problem: Problem, clock: Clock, deadline: float, progress: Progress) -> Scales:
    """Return what reward and Tchebycheff measure against: the reference, and the front's ends."""
    if problem.job.objective in (Objective.TIME, Objective.COST):
        return Scales()
    has_ends = problem.job.objective is Objective.TCHEBYCHEFF
    share, searches = (ENDS_SHARE, 1 + len(ENDS)) if has_ends else (REFERENCE_SHARE, 1)
    until = clock() + share * (deadline - clock())

    def next_until(done: int) -> float:
        return clock() + max(0.0, until - clock()) / (searches - done)

    with progress("what scores are measured against", total=searches) as advance:
        reference_until = next_until(0)
        scales, first = reference(problem, clock=clock, deadline=reference_until), None
        if scales is None and clock() > reference_until and (first := _first(problem, clock, deadline)):
            scales = Scales(first.report.step_time_s, money(first.report) or math.inf, is_estimate=True)
        if scales is None or not has_ends:
            return scales or Scales()
        unlimited, ends = without_limits(problem), []
        for done, weights in enumerate(ENDS, 1):
            advance(done)
            if clock() > until:
                scales = replace(scales, is_estimate=True)
                break
            end = replace(problem, job=replace(unlimited.job, objective=Objective.REWARD, weights=weights))
            result = _search(end, scales, clock, next_until(done), 0, is_owed=False)
            if result.interrupted:
                raise KeyboardInterrupt  # the ends of the front are not known, and no plan can be scored
            scales = replace(scales, is_estimate=scales.is_estimate or result.stopped)
            ends += [vector(item.report) for item in result.ranked[:1]]
        if not ends and (first := first or _first(problem, clock, deadline)):
            ends = [vector(first.report)]
    if not ends:
        return scales
    ideal, nadir = np.min(ends, axis=0), np.max(ends, axis=0)
    if scales.is_estimate:  # ends that are not known apart are no range
        ideal = np.where(ideal < nadir, ideal, scales.ideal)
    return replace(scales, ideal=tuple(ideal.tolist()), nadir=tuple(nadir.tolist()))


def _first(problem: Problem, clock: Clock, deadline: float) -> Evaluated | None:
    """Return a plan that is there soon, where the best was not known in time."""
    until = (clock() + deadline) / 2  # for pipelines; the search that comes has as long
    by_time = without_limits(problem)
    result = first_plan(by_time, Scales(), _pools(by_time), clock=clock, deadline=until)
    if result.interrupted:
        raise KeyboardInterrupt
    return next(iter(result.ranked), None)


def _pools(problem: Problem) -> Iterable[Iterable[int]]:
    count = len(problem.fleet.domains)
    return [range(count)] if count <= POOL else wide.first_pools(problem)


def alternatives(
    problem: Problem, plans: Sequence[Evaluated], result: SearchResult
) -> tuple[Alternative[TrainingPlan], ...]:
    """Return the plans not chosen, then what missed a limit, then what did not fit, each with its reasons."""
    problem.model.details([item.plan for item in plans])  # of all at once: explanations ask one by one
    ranked = [
        Alternative(
            explain.name(item.plan), explain.costs(item), explain.why_not(problem, item, plans[0]), item.plan
        )
        for item in plans[1:]
    ]
    missed = [
        Alternative(
            explain.name(item.plan), explain.costs(item), explain.limit_missed(problem.job, item.report), item.plan
        )
        for key, item in result.missed.items()
        if key not in result.by_set
    ]
    refused: list[Alternative[TrainingPlan]] = [
        Alternative("+".join(sorted(names)), {}, (reason,), None)
        for names, reason in result.refusals.items()
        if not any(names == used for _, used in result.by_set)
    ]
    return (*ranked, *missed, *refused)
