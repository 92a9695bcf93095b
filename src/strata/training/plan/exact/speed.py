"""How fast domains could work at best: what orders them where not all can be tried."""

from __future__ import annotations

import numpy as np

from strata.arrays import Floats
from strata.training.plan.exact.problem import Problem


def speeds(problem: Problem) -> Floats:
    """Return how many samples per second each domain could work through with all its devices busy.

    In common settings, where there are any: the others take a second to time, and order domains alike.
    """
    kinds = problem.representatives
    of_kind = np.searchsorted(kinds, problem.alike)
    best = np.zeros(len(problem.fleet.domains))
    works = {config.work: config for config in problem.configs if config.is_common}
    for config in (works or {config.work: config for config in problem.configs}).values():
        ranks = config.tensor_parallel, config.context_parallel
        slots = np.array([problem.slots(problem.fleet.domains[i], *ranks) for i in kinds])[of_kind]
        best = np.maximum(best, slots * config.microbatch_size / problem.compute_cost(config).work_s)
    return best
