"""What a baseline may use beside the problem: the plan it is compared with, a clock, a random generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.search import Evaluated, Search
from strata.training.plan.objective import Scales, score_report, within_limits
from strata.workload.plan import TrainingPlan


class Unfinished(Exception):
    """The time limit passed before a baseline had looked at all it should: what it has would misstate its rule."""


@dataclass(frozen=True)
class Context:
    """`num_devices` is how many accelerators strata's own plan uses; `deadline` ends every baseline."""

    scales: Scales
    num_devices: int
    rng: np.random.Generator
    clock: Callable[[], float]
    deadline: float

    def check_time(self) -> None:
        """Raise Unfinished once the time limit has passed; a baseline calls it wherever its work grows."""
        if self.clock() > self.deadline:
            raise Unfinished


def exact(problem: Problem, context: Context, members: Sequence[int]) -> Evaluated | None:
    """Return the exact best plan on some domains, None where nothing fits or keeps the limits."""
    context.check_time()
    result = Search(problem, context.scales, members, clock=context.clock, deadline=context.deadline).run()
    if result.stopped:
        raise Unfinished
    return best(result.ranked)


def best(items: Sequence[Evaluated]) -> Evaluated | None:
    """Return the item of the least score, None of none."""
    return min(items, key=lambda item: item.score, default=None)


def best_of(problem: Problem, context: Context, plans: Sequence[TrainingPlan]) -> Evaluated | None:
    """Return the best of what `evaluate` returns of some plans."""
    return best_of_each(problem, context, [plans])[0]


def best_of_each(
    problem: Problem, context: Context, rows: Sequence[Sequence[TrainingPlan]]
) -> list[Evaluated | None]:
    """Return `best_of` each row, all together: first the plans of least bounds, then what may be better."""
    rows = [[plan for plan in plans if problem.model.fits(plan)] for plans in rows]
    every = list(dict.fromkeys(plan for plans in rows for plan in plans))
    bounds = problem.model.bounds(every) if every else []
    least = {
        plan: score_report(problem.job, context.scales, bound) for plan, bound in zip(every, bounds, strict=True)
    }
    first = [min(plans, key=lambda plan: least[plan]) for plans in rows if plans]
    known = {item.plan: item for item in evaluate(problem, context, first)}

    def so_far(plans: Sequence[TrainingPlan]) -> Evaluated | None:
        return best([known[plan] for plan in plans if plan in known])

    worst = [np.inf if item is None else item.score for item in map(so_far, rows)]
    left = [plan for plans, limit in zip(rows, worst, strict=True) for plan in plans if least[plan] <= limit]
    known |= {item.plan: item for item in evaluate(problem, context, left)}
    return [so_far(plans) for plans in rows]


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
