"""Plan a training job on a fleet: the best plan, the ranked others, the proof, and the reasons.

observe: a Fleet and a TrainingJob are the snapshot. decide: `plan_training`, a pure function of them and a
clock. explain: the Decision inside the answer, and `explain.py`. act: `export.py` writes what launches it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from strata.clock import Clock
from strata.decision import Alternative, Decision, Reason, Trust
from strata.errors import OutOfTime
from strata.fleet.fleet import Fleet
from strata.training.plan import explain, relax
from strata.training.plan.exact import wide
from strata.training.plan.exact.alone import first_plan
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


def plan_training(
    fleet: Fleet,
    job: TrainingJob,
    *,
    clock: Clock,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    rank: int = 5,
    seed: int = 0,
) -> TrainingPlanReport:
    """Return the best plan of the plan space, with the proof of how good it is.

    Exact for fleets of up to 10 usable domains (gap 0 unless the time limit stops it); above, the best of
    several exact searches over pools of domains, with a bound over all of them. Raises UsageError where
    money is asked for and a domain has no price. No plan is a Decision without a choice, never an error.
    """
    started = clock()
    problem = problem_of(fleet, job)
    deadline = started + time_limit_s
    scales = _scales(problem, clock, deadline)
    result = _search(problem, scales, clock, deadline, rank)
    plans = tuple(result.ranked)
    if result.interrupted and not plans:
        raise KeyboardInterrupt  # there is nothing to keep, and what would help is not known
    elapsed = clock() - started
    others = alternatives(problem, plans, result)
    reasons = [*problem.excluded]
    if plans:
        reasons = [explain.chosen(problem, plans[0], result), *explain.character(problem, plans[0]), *reasons]
        reasons += explain.single_domain(problem.job, plans)
    elif not result.stopped:
        refusal = next(iter(result.refusals.values()), None)
        reasons += relax.precision(fleet, problem) or relax.smallest(
            problem, refusal=refusal, clock=clock, deadline=deadline
        )
    if result.stopped:
        reasons.append(Reason("time-limit", "", {"elapsed": show_time(elapsed), "evaluated": result.evaluated}))
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
    scales = _scales(problem, clock, deadline)
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


def _search(problem: Problem, scales: Scales, clock: Clock, deadline: float, rank: int) -> SearchResult:
    count = len(problem.fleet.domains)
    if count == 0:
        return SearchResult()
    if count <= POOL:
        result = first_plan(problem, scales, [range(count)], clock=clock, deadline=deadline)
        if not result.interrupted:
            every = RankedSearch(problem, scales, range(count), clock=clock, deadline=deadline, rank=rank)
            result.merge(every.run(so_far=result, keeps_best=True))
        return result
    return wide.search(problem, scales, clock=clock, deadline=deadline, rank=rank)


def _scales(problem: Problem, clock: Clock, deadline: float) -> Scales:
    """Return what reward and Tchebycheff measure against: the reference, and the front's ends."""
    if problem.job.objective in (Objective.TIME, Objective.COST):
        return Scales()
    scales = reference(problem, clock=clock, deadline=deadline)
    if scales is None or problem.job.objective is not Objective.TCHEBYCHEFF:
        return scales or Scales()
    unlimited = without_limits(problem)
    ends = []
    for weights in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)):
        end = replace(problem, job=replace(unlimited.job, objective=Objective.REWARD, weights=weights))
        result = _search(end, scales, clock, deadline, 0)
        if result.interrupted:
            raise KeyboardInterrupt  # the ends of the front are not known, and no plan can be scored
        if best := result.ranked:
            report = best[0].report
            ends.append((report.step_time_s, -report.utilization, money(report)))
    columns = list(zip(*ends, strict=True))
    return replace(
        scales,
        ideal=(min(columns[0]), min(columns[1]), min(columns[2])),
        nadir=(max(columns[0]), max(columns[1]), max(columns[2])),
    )


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
