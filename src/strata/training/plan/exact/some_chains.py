"""Pipelines over chosen subsets of a large fleet: the same bounds and plans as `ChainSpace`, fewer branches."""

from __future__ import annotations

from typing import Final

import numpy as np

from strata.arrays import Floats, Ints
from strata.errors import UsageError
from strata.training.plan.exact.chain_space import ChainSpace
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.routes import PairCosts, path_table

MOST_DOMAINS: Final = 62
"""Subsets are bits of a signed 64-bit integer, and the masks of a path table are one bit more."""


class SomeChains(ChainSpace):
    """Every domain alone, every pair, and all subsets of each pool, of a fleet too large for all subsets."""

    def __init__(self, problem: Problem, pools: list[frozenset[int]], *, pairs: bool) -> None:
        """Pools hold positions in the fleet. Raises UsageError for more than MOST_DOMAINS usable domains."""
        count = len(problem.fleet.domains)
        if count > MOST_DOMAINS:
            raise UsageError(
                f"the learned policy chooses among up to {MOST_DOMAINS} domains, and this job may use {count}",
                hint="--planner exact, or name the domains to consider in the job's limits.domains",
            )
        super().__init__(problem, ())
        self.members = tuple(range(count))
        self.domains = list(problem.fleet.domains)
        self.pools = [tuple(sorted(pool)) for pool in pools]
        masks = {1 << i for i in range(count)}
        if pairs:
            masks |= {1 << i | 1 << j for i in range(count) for j in range(i)}
        for pool in self.pools:
            masks |= set(_spread(pool).tolist())
        self.masks = np.array(sorted(masks))
        self.inside = (self.masks[:, None] >> np.arange(count)) & 1

    def _least_paths(self, costs: PairCosts) -> tuple[Floats, Floats, Floats, Floats]:
        return (
            self._paths_over(costs.slowness, "max"),
            self._paths_over(costs.slowness_sum, "sum"),
            self._paths_over(costs.latency_sum, "sum"),
            self._paths_over(costs.price_sum, "sum"),
        )

    def _paths_over(self, pair: Floats, combine: str) -> Floats:
        size = self.inside.sum(axis=1)
        costs = np.where(size == 1, 0.0, np.inf)
        for row in np.flatnonzero(size == 2):
            costs[row] = pair[tuple(np.flatnonzero(self.inside[row]))]
        for pool in self.pools:
            table = path_table(pair[np.ix_(pool, pool)], "max" if combine == "max" else "sum")[1:].min(axis=1)
            costs[np.searchsorted(self.masks, _spread(pool))] = table
        return costs


def _spread(pool: tuple[int, ...]) -> Ints:
    """Return the masks over the fleet of all subsets of a pool, in the order of their masks over the pool."""
    inside = (np.arange(1, 1 << len(pool))[:, None] >> np.arange(len(pool))) & 1
    return np.asarray(inside @ (1 << np.array(pool, dtype=np.int64)))
