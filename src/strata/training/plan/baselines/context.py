"""What a baseline may use beside the problem: the plan it is compared with, a clock, a random generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.training.plan.exact.branches import LOTS, Lot
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import TOLERANCE, Evaluated, SearchResult
from strata.training.plan.exact.search import Search
from strata.training.plan.objective import Scales, score_report, within_limits
from strata.workload.job import Objective
from strata.workload.plan import TrainingPlan

TOGETHER: Final = 16
"""Candidates built before the best of them is evaluated: the recurrence takes as long for some as for one."""


class Unfinished(Exception):
    """The time limit passed before a baseline had looked at all it should: what it has would misstate its rule."""


@dataclass(frozen=True)
class Context:
    """`num_devices` is how many accelerators strata's own `plan` uses; `deadline` ends every baseline.

    `known` is what strata's own search of the problem has: no rule looks for what that has or rules out.
    """

    scales: Scales
    num_devices: int
    rng: np.random.Generator
    clock: Callable[[], float]
    deadline: float
    plan: TrainingPlan | None = None
    known: SearchResult = field(default_factory=lambda: SearchResult(bound=-np.inf))
    alone: list[Evaluated | None] = field(default_factory=list)
    """The best plan in a single domain, once it was looked for."""

    def check_time(self) -> None:
        """Raise Unfinished once the time limit has passed; a baseline calls it wherever its work grows."""
        if self.clock() > self.deadline:
            raise Unfinished

    def is_best(self, item: Evaluated | None) -> bool:
        """Whether no plan of the problem is better."""
        return item is not None and item.score * (1 - TOLERANCE) <= self.known.bound


def exact(
    problem: Problem, context: Context, members: Sequence[int], *, so_far: Evaluated | None = None,
    lots: Sequence[Lot] = LOTS, is_rough: bool = False,
) -> Evaluated | None:  # fmt: skip
    """Return the exact best plan on some domains, None where nothing fits, keeps the limits or beats `so_far`; the
    best but for half a per cent where it `is_rough`."""
    context.check_time()
    known = SearchResult({} if so_far is None else {so_far.domain_set: so_far})
    search = Search(
        problem, context.scales, members, clock=context.clock, deadline=context.deadline, lots=lots,
        is_rough=is_rough,
    )  # fmt: skip
    result = search.run(so_far=known)
    if result.stopped:
        raise Unfinished
    better = best(result.ranked)
    # A search that is told of a plan may return others that are worse.
    return better if better is not None and better.score < _score(so_far) else None


def exact_among(
    problem: Problem, context: Context, members: Sequence[int], *, so_far: Evaluated | None = None
) -> Evaluated | None:
    """Return what `exact` does, for the problem that strata's own search was of."""
    names = {problem.fleet.domains[i].name for i in members}
    known = best([item for (_, domains), item in context.known.by_set.items() if domains <= names])
    if _score(known) >= _score(so_far):
        known = None
    if context.is_best(known or so_far):
        return known
    return exact(problem, context, members, so_far=known or so_far) or known


def best(items: Sequence[Evaluated]) -> Evaluated | None:
    """Return the item of the least score, None of none."""
    return min(items, key=lambda item: item.score, default=None)


def best_of(
    problem: Problem, context: Context, plans: Sequence[TrainingPlan], *, limit: float = np.inf
) -> Evaluated | None:
    """Return the best of what `evaluate` returns of some plans, as far as one may score less than a limit.

    First the plan of the least bound, then what may be better.
    """
    plans = [plan for plan in dict.fromkeys(plans) if problem.model.fits(plan)]
    bounds = problem.model.bounds(plans) if plans else []
    least = {
        plan: score_report(problem.job, context.scales, bound) for plan, bound in zip(plans, bounds, strict=True)
    }
    left = [plan for plan in plans if least[plan] < limit]
    if not left:
        return None
    first = min(left, key=lambda plan: least[plan])
    result = best(evaluate(problem, context, [first]))
    others = [plan for plan in left if plan is not first and least[plan] <= _score(result)]
    return best([*([] if result is None else [result]), *evaluate(problem, context, others)])


def best_first(
    problem: Problem, context: Context, floors: Floats, build: Callable[[int, float], Sequence[TrainingPlan]]
) -> Evaluated | None:
    """Return the best of all plans of some candidates, none of which scores less than its candidate's floor.

    Those that could be best are built first, and none that could be no better; `build` is told up to which step
    time a plan may be better.
    """
    result: Evaluated | None = None
    order = [number for number in np.argsort(floors, kind="stable").tolist() if np.isfinite(floors[number])]
    for at in range(0, len(order), TOGETHER):
        plans: list[TrainingPlan] = []
        for number in order[at : at + TOGETHER]:
            context.check_time()
            if floors[number] < _score(result):
                is_time = problem.job.objective is Objective.TIME
                plans += build(number, _score(result) if is_time else np.inf)
        if not plans and floors[order[at]] >= _score(result):
            break
        better = best_of(problem, context, plans, limit=_score(result))
        result = best([item for item in (result, better) if item is not None])
    return result


def _score(item: Evaluated | None) -> float:
    return np.inf if item is None else item.score


def evaluate(problem: Problem, context: Context, plans: Sequence[TrainingPlan]) -> list[Evaluated]:
    """Return the plans that fit memory and keep the job's limits, evaluated by strata's model."""
    context.check_time()
    fitting = [plan for plan in plans if problem.model.fits(plan) and plan.keeps(problem.job.pins)]
    reports = problem.model.reports(fitting, check=context.check_time)
    return [
        Evaluated(plan, report, score_report(problem.job, context.scales, report))
        for plan, report in zip(fitting, reports, strict=True)
        # Where links are missing no all-reduce connects the pipelines: such a plan never ends.
        if np.isfinite(report.step_time_s) and within_limits(problem.job, report)
    ]
