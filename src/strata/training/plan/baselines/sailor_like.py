"""Sailor-like: an exhaustive search with uniform layer splits over regions ordered by bottleneck bandwidth.

After arXiv 2504.17096 §4: uniform splits, classic 1F1B, data parallelism never across regions (its H5), region
order by the best bottleneck bandwidth, no latency, no recomputation, and no thought for what a change of plan
costs (myopic). A restatement of its rules in strata's plan space, not its code.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from strata.training.plan.baselines.context import Context, best, evaluate
from strata.training.plan.baselines.uniform_split import uniform_chain
from strata.training.plan.exact.chain_space import ChainSpace
from strata.training.plan.exact.problem import POOL, Problem
from strata.training.plan.exact.routes import best_path
from strata.training.plan.exact.search import Evaluated

SHORTLIST: Final = 256


def plan(problem: Problem, context: Context) -> Evaluated | None:
    """Return the best uniform pipeline over any subset of (at most POOL) domains."""
    space = ChainSpace(problem, tuple(range(min(len(problem.fleet.domains), POOL))))
    plain = [s for s in problem.configs if s.recompute is problem.job.recompute[0]]
    if not plain or not space.members:
        return None
    bounds = np.stack([space.bounds(config).step_s for config in plain])
    slowness = problem.pair_costs(1).slowness
    plans = []
    for position in np.argsort(bounds, axis=None, kind="stable")[:SHORTLIST]:
        context.check_time()
        number, index = np.unravel_index(position, bounds.shape)
        if not np.isfinite(bounds[number, index]):
            break
        picked = tuple(i for i, inside in zip(space.members, space.inside[index], strict=True) if inside)
        order, cost = best_path(slowness, picked)
        uniform = uniform_chain(problem, plain[int(number)], order) if np.isfinite(cost) else None
        if uniform is not None:
            plans.append(uniform)
    return best(evaluate(problem, context, plans))
