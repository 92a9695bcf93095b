"""Into how many pieces candidates cut sequences, and over how many devices they spread experts.

Estimates of all settings of both would take minutes: those are tried that exact searches of the domains end with.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Final

from strata.training.plan.exact.problem import POOL, Problem
from strata.training.plan.exact.result import Evaluated
from strata.training.plan.exact.search import Search
from strata.training.plan.objective import Scales
from strata.workload.job import Objective

LOOKS: Final = 500
"""Looks at its clock that a search may take, 1 to 10 s: of one domain most take 100, of eight up to 4000."""


def layouts(problem: Problem) -> tuple[list[Evaluated], list[Problem]]:
    """Return the problem with sequences cut and experts spread as the fastest plans do, of each domain alone and
    of all together, and those plans; the problem itself where none of them does either."""
    if not problem.splitting.is_any:
        return [], [problem]
    names = (problem.fleet.domains[first].name for first in problem.representatives)
    alone = [Problem.of(problem.fleet.only([name]), problem.job) for name in names]
    items = [item for each in alone for item in searched(each, needs_plan=False)]
    if not items or any(item.plan.refinements for item in items):
        items += searched(problem, needs_plan=not items)
    pairs = {
        (stage.context_parallel, item.plan.expert_parallel)
        for item in items
        for pipeline in item.plan.pipelines
        for stage in pipeline.stages
    }
    return items, [
        problem if pair == (1, 1) else problem.split(context=pair[0], expert=pair[1]) for pair in sorted(pairs)
    ]


def searched(problem: Problem, *, needs_plan: bool = True) -> list[Evaluated]:
    """Return the fastest plan of the nearest domains together, and of each set, that a search meets in LOOKS, or
    until there is one if it `needs_plan`."""
    job = replace(problem.job, objective=Objective.TIME)
    few, looks = range(min(POOL, len(problem.fleet.domains))), count()
    search = Search(
        replace(problem, job=job), Scales(), few, clock=lambda: float(next(looks)), deadline=LOOKS,
        needs_plan=needs_plan,
    )  # fmt: skip
    return list(search.run().by_set.values())
