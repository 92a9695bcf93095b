"""NSGA-II (Deb et al. 2002, by pymoo): the usual evolutionary search over the same pipelines.

pymoo is a development extra: without it this baseline is None and says so in the comparison.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Final

import numpy as np

from strata.arrays import Floats
from strata.training.plan.baselines.context import Context, best_first
from strata.training.plan.baselines.floor import chain_floors, scores
from strata.training.plan.baselines.random_search import legal_chain, may_fit
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import Evaluated

POPULATION: Final = 40
GENERATIONS: Final = 10
WORST: Final = 1e12


def available() -> bool:
    """Whether pymoo is installed."""
    return importlib.util.find_spec("pymoo") is not None


def plan(problem: Problem, context: Context) -> Evaluated | None:
    """Return the best plan (by the job's objective) that POPULATION × GENERATIONS vectors stand for.

    Generations compete by the floors of time and money of pipelines that could fit, which rank them well and cost
    little; of all pipelines met the best is found by the exact recurrence.
    """
    count = len(problem.fleet.domains)
    if not available() or not count or not problem.configs:
        return None
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.core.problem import Problem as Pymoo
    from pymoo.optimize import minimize

    met: dict[tuple[int, tuple[int, ...]], Floats] = {}

    class Plans(Pymoo):  # type: ignore[misc]
        """A vector: which configuration, how many domains, and a key per domain whose order is the pipeline's."""

        def __init__(self) -> None:
            super().__init__(n_var=count + 2, n_obj=2, xl=0.0, xu=1.0)

        def _evaluate(self, x: Any, out: dict[str, Any], *args: Any, **kwargs: Any) -> None:
            rows = [_decode(problem, row) for row in x]
            new = [each for each in dict.fromkeys(rows) if each not in met]  # one in four is met again
            configs, orders = [problem.configs[number] for number, _ in new], [order for _, order in new]
            for at, floors in enumerate(chain_floors(problem, configs, orders, check=context.check_time)):
                is_legal = np.isfinite(floors).all() and may_fit(problem, configs[at], orders[at])
                met[new[at]] = floors if is_legal else np.full(2, np.inf)
            out["F"] = np.minimum(np.array([met[row] for row in rows]), WORST)

    minimize(Plans(), NSGA2(pop_size=POPULATION), ("n_gen", GENERATIONS), seed=int(context.rng.integers(2**31)))
    every = [(problem.configs[number], order) for number, order in met]
    return best_first(
        problem, context, scores(problem, context, np.array(list(met.values()))),
        lambda at, limit_s: legal_chain(problem, *every[at], limit_s=limit_s),
    )  # fmt: skip


def _decode(problem: Problem, row: Any) -> tuple[int, tuple[int, ...]]:
    """Return the number of the configuration and the domains in order that a vector stands for."""
    count = len(problem.fleet.domains)
    number = min(int(row[0] * len(problem.configs)), len(problem.configs) - 1)
    size = min(1 + int(row[1] * count), count)
    return number, tuple(int(i) for i in np.argsort(row[2:], kind="stable")[:size])
