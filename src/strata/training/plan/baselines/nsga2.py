"""NSGA-II (Deb et al. 2002, by pymoo): the usual evolutionary search over the same pipelines.

pymoo is a development extra: without it this baseline is None and says so in the comparison.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Final

import numpy as np

from strata.training.plan.baselines.context import Context, best, best_of_each
from strata.training.plan.baselines.random_search import legal_chain
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.search import Evaluated
from strata.training.plan.objective import money
from strata.workload.plan import TrainingPlan

POPULATION: Final = 40
GENERATIONS: Final = 10
WORST: Final = 1e12


def available() -> bool:
    """Whether pymoo is installed."""
    return importlib.util.find_spec("pymoo") is not None


def plan(problem: Problem, context: Context) -> Evaluated | None:
    """Return the best plan (by the job's objective) that POPULATION × GENERATIONS evaluations found."""
    count = len(problem.fleet.domains)
    if not available() or not count or not problem.configs:
        return None
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.core.problem import Problem as Pymoo
    from pymoo.optimize import minimize

    archive: list[Evaluated] = []
    built: dict[object, list[TrainingPlan]] = {}

    class Plans(Pymoo):  # type: ignore[misc]
        """A vector: which configuration, how many domains, and a key per domain whose order is the pipeline's."""

        def __init__(self) -> None:
            super().__init__(n_var=count + 2, n_obj=3, xl=0.0, xu=1.0)

        def _evaluate(self, x: Any, out: dict[str, Any], *args: Any, **kwargs: Any) -> None:
            items = best_of_each(problem, context, [_decode(problem, row, built) for row in x])
            values = np.full((len(items), 3), WORST)
            for index, item in enumerate(items):
                if item is not None:
                    archive.append(item)
                    values[index] = (item.report.step_time_s, -item.report.utilization, money(item.report))
            out["F"] = values

    minimize(Plans(), NSGA2(pop_size=POPULATION), ("n_gen", GENERATIONS), seed=int(context.rng.integers(2**31)))
    return best(archive)


def _decode(problem: Problem, row: Any, built: dict[object, list[TrainingPlan]]) -> list[TrainingPlan]:
    """Return the plans of a vector; `built` keeps them: one in four is met again."""
    count = len(problem.fleet.domains)
    number = min(int(row[0] * len(problem.configs)), len(problem.configs) - 1)
    size = min(1 + int(row[1] * count), count)
    order = tuple(int(i) for i in np.argsort(row[2:], kind="stable")[:size])
    if (number, order) not in built:
        built[number, order] = legal_chain(problem, problem.configs[number], order)
    return built[number, order]
