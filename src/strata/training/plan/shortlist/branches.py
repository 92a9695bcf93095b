"""All that could be built for a job, with estimates of what each would bring: what a shortlist is chosen from.

A branch is a configuration on a set of domains (a pipeline), or a way to share the batch between units of domains.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.simulate.order import ORDERED
from strata.training.plan.exact.chain_space import ChainSpace
from strata.training.plan.exact.config import ParallelConfig
from strata.training.plan.exact.problem import POOL, Problem
from strata.training.plan.exact.routes import best_path
from strata.training.plan.exact.rows import build_chain
from strata.training.plan.exact.shards import ShardSpace
from strata.training.plan.exact.some_chains import SomeChains
from strata.training.plan.exact.wide import first_pools
from strata.training.plan.shortlist.pipelines import ChainEstimates, Screened
from strata.training.plan.shortlist.sharings import DataParallelEstimates
from strata.workload.job import Recompute, Schedule
from strata.workload.plan import TrainingPlan

POOLS: Final = 2
"""Of more domains than one pool all subsets of so many pools are looked at, and pairs up to PAIRS domains."""

PAIRS: Final = 16

PROMISING: Final = 6000
"""Pipelines over several domains that are estimated closely: the best under each of LEANINGS at first glance."""

LEANINGS: Final = np.array([[1, 0, 0], [0, 0, 1], [1, 1, 1], [2, 1, 0], [1, 0, 1], [0, 2, 1]], dtype=float)
"""Weights of log time, log idleness and log money."""

SCHEDULES: Final = (
    Schedule.LATENCY_AWARE, Schedule.DUAL_PIPE_V, Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE, Schedule.ONE_F_ONE_B,
    Schedule.GPIPE,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Branches:
    """Estimates [3, N] of (time, -utilisation, money), and where each comes from.

    config: [N] position in problem.configs, -1 for a sharing. item: [N] row of the chains' masks, or
    way × groups + group. single: [N] whether it is a pipeline in one domain. likely: [N] whether memory should
    do; others are single domains only, which building may still prove to fit.
    """

    values: Floats
    config: Ints
    item: Ints
    single: Bools
    likely: Bools


class Builder:
    """The branches of a problem, and the plans of each."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem = problem.undivided
        # Estimates are of stages that recompute all layers or none; what is built recomputes as many as it must.
        self.built = replace(problem, is_even=False) if problem.is_even else problem
        count = len(problem.fleet.domains)
        members = tuple(range(count))
        self.chains: ChainSpace = (
            ChainSpace(problem, members)
            if count <= POOL
            else SomeChains(problem, list(islice(first_pools(problem), POOLS)), pairs=count <= PAIRS)
        )
        self.shards = ShardSpace(problem, members)
        # The fastest schedule first: where it fits, no other is built.
        order = sorted(problem.job.schedules, key=SCHEDULES.index)
        self.schedules = [tuple(s for s in order if (s in ORDERED) is is_paced) for is_paced in (False, True)]

    @property
    def count(self) -> int:
        """How many branches there are, likely or not."""
        chains = len(self.problem.configs) * len(self.chains.masks)
        return chains + len(self.shards.ways) * len(self.shards.groups)

    @cached_property
    def branches(self) -> Branches:
        """All branches worth a look."""
        estimates = ChainEstimates(self.problem, self.chains)
        values, config, item, likely = self._pipelines(estimates)
        shared, ways, groups = DataParallelEstimates(self.problem, self.shards, estimates).values()
        sharing = ways * len(self.shards.groups) + groups
        single = (self.chains.inside.sum(axis=1) == 1)[item]
        return Branches(
            np.concatenate([values, shared], axis=1),
            np.concatenate([config, np.full(len(ways), -1)]),
            np.concatenate([item, sharing]),
            np.concatenate([single, np.zeros(len(ways), dtype=bool)]),
            np.concatenate([likely, np.ones(len(ways), dtype=bool)]),
        )

    def _pipelines(self, estimates: ChainEstimates) -> tuple[Floats, Ints, Ints, Bools]:
        """Return the pipelines that promise most at first glance, estimated closely where memory should do."""
        parts = [self._promising(*part) for part in estimates.screen()]
        values, config, item = self._promising(
            np.concatenate([part[0] for part in parts], axis=1),
            *(np.concatenate([part[k] for part in parts]) for k in (1, 2)),
        )
        closer = estimates.values(config, item)
        fits = np.isfinite(closer[0])
        # Where no estimate fits a domain's memory, the first glance is what there is: building tells.
        kept = fits | (self.chains.inside.sum(axis=1)[item] == 1) if fits.any() else np.ones(len(item), dtype=bool)
        values = np.where(fits, closer, values)[:, kept]
        return values, config[kept], item[kept], fits[kept] if fits.any() else kept

    def _promising(self, values: Floats, config: Ints, item: Ints) -> Screened:
        """Return all branches of one domain, and of several the best under each of LEANINGS."""
        several = np.flatnonzero(self.chains.inside.sum(axis=1)[item] > 1)
        if len(several) <= PROMISING:
            return values, config, item
        logs = np.log(np.maximum(np.abs(values[:, several]), 1e-300))
        each = PROMISING // len(LEANINGS)
        near = np.ones(len(item), dtype=bool)
        near[several] = False
        for score in LEANINGS @ (logs * np.array([[1.0], [-1.0], [1.0]])):
            near[several[np.argpartition(score, each)[:each]]] = True
        return values[:, near], config[near], item[near]

    def plans(self, row: int) -> list[TrainingPlan]:
        """Return the plans of one branch: a pipeline by the fastest and the cheapest route, both ways round."""
        number, item = int(self.branches.config[row]), int(self.branches.item[row])
        if number < 0:
            sharing = self.shards.sharing(*divmod(item, len(self.shards.groups)))
            common = replace(sharing.way.common, recompute=self._mode(sharing.way.common.recompute))
            plan = self._built_shards.build(replace(sharing, way=sharing.way._replace(common=common)))
            return [] if plan is None else [plan]
        return list(self._chain_plans(self.problem.configs[number], int(self.chains.masks[item])))

    @cached_property
    def _built_shards(self) -> ShardSpace:
        return ShardSpace(self.built, self.shards.members)

    def _mode(self, recompute: Recompute) -> Recompute:
        return recompute if recompute in self.built.modes else Recompute.NONE

    def _chain_plans(self, config: ParallelConfig, mask: int) -> Iterator[TrainingPlan]:
        config = replace(config, recompute=self._mode(config.recompute))
        picked = tuple(i for i in range(len(self.chains.members)) if mask >> i & 1)
        for order in self._orders(config, picked):
            # Which of these is faster depends on latency and bubble: the first that fits of either.
            for schedules in self.schedules:
                for plan in build_chain(self.built, config, order, schedules=schedules):
                    if isinstance(plan, TrainingPlan):
                        yield plan
                        break

    def _orders(self, config: ParallelConfig, picked: tuple[int, ...]) -> list[tuple[int, ...]]:
        if len(picked) == 1:
            return [picked]
        fast = self.chains.fastest_order(config, picked)
        costs = self.problem.pair_costs(config.microbatch_size)
        cheap, cost = best_path(costs.price_sum, picked)
        if not np.isfinite(cost):
            return []
        return list(dict.fromkeys([fast, fast[::-1], cheap, cheap[::-1]]))
