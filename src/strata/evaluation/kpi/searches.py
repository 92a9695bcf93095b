"""Random search and NSGA-II over the whole plan space, pipelines and sharings, with a counted budget.

The baselines of the same names (`baselines/`) search pipelines for one objective; a front that holds data
parallelism would be out of their reach, and covering more of it than they do would prove nothing.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import numpy as np

from strata.arrays import Floats
from strata.training.plan.baselines.context import Context, Unfinished, evaluate
from strata.training.plan.baselines.random_search import legal_chain
from strata.training.plan.exact.pareto import vector
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import Evaluated
from strata.training.plan.exact.routes import efficient
from strata.training.plan.exact.shards import ShardSpace
from strata.workload.plan import TrainingPlan

POPULATION: Final = 32
WORST: Final = 1e12


class Genes:
    """Vectors of [0, 1] as plans: pipeline or sharing, its inner shape, how many domains and their order."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.count = len(problem.fleet.domains)
        self.shards = ShardSpace(problem, tuple(range(self.count)), is_thorough=False)
        self.ways, self.groups = self.shards.bounds().shape if self.count > 1 else (0, 0)

    @property
    def width(self) -> int:
        """Length of a vector."""
        return self.count + 3

    def plans(self, row: Floats) -> list[TrainingPlan]:
        """Return the plans a vector stands for, none where it breaks a rule; several schedules of a pipeline."""
        if row[0] < 0.5 and self.ways * self.groups:
            plan = self.shards.build_fast(_index(row[1], self.ways), _index(row[2], self.groups))
            return [] if plan is None else [plan]
        if not self.problem.configs:
            return []
        setting = self.problem.configs[_index(row[1], len(self.problem.configs))]
        order = np.argsort(row[3:], kind="stable")[: 1 + _index(row[2], self.count)]
        return legal_chain(self.problem, setting, tuple(int(i) for i in order))


def random_front(problem: Problem, context: Context, *, evaluations: int) -> list[Evaluated]:
    """Return the non-dominated plans of so many random vectors, or of those that there was time for."""
    genes, items = Genes(problem), list[Evaluated]()
    with suppress(Unfinished):
        for row in context.rng.random((evaluations, genes.width)):
            items += evaluate(problem, context, genes.plans(row))
    return undominated(items)


def nsga2_front(problem: Problem, context: Context, *, evaluations: int) -> list[Evaluated]:
    """Return the non-dominated plans that NSGA-II (pymoo) saw in so many vectors, or those there was time for."""
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.core.problem import Problem as Pymoo
    from pymoo.optimize import minimize

    genes, archive = Genes(problem), []

    class Plans(Pymoo):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(n_var=genes.width, n_obj=3, xl=0.0, xu=1.0)

        def _evaluate(self, x: Any, out: dict[str, Any], *args: Any, **kwargs: Any) -> None:
            values = np.full((len(x), 3), WORST)
            for index, row in enumerate(x):
                items = evaluate(problem, context, genes.plans(row))
                archive.extend(items)
                if items:
                    values[index] = vector(min(items, key=lambda item: item.report.step_time_s).report)
            out["F"] = values

    generations = max(1, evaluations // POPULATION)
    seed = int(context.rng.integers(2**31))
    with suppress(Unfinished):
        minimize(Plans(), NSGA2(pop_size=POPULATION), ("n_gen", generations), seed=seed)
    return undominated(archive)


def undominated(items: list[Evaluated]) -> list[Evaluated]:
    """Return the items no other item is better than."""
    if not items:
        return []
    values = np.array([vector(item.report) for item in items])
    return [items[k] for k in efficient(values)]


def _index(share: float, count: int) -> int:
    return min(int(share * count), count - 1)
