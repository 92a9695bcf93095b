"""All that could be built for a job, with estimates of what each would bring: what a shortlist is chosen from.

A branch is a configuration on a set of domains (a pipeline), or a way to share the batch between units of domains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.simulate.order import ORDERED
from strata.training.plan.exact.chain_space import ChainSpace
from strata.training.plan.exact.memory_fit import recomputing_least
from strata.training.plan.exact.problem import POOL, Problem
from strata.training.plan.exact.routes import best_path
from strata.training.plan.exact.rows import build_chain
from strata.training.plan.exact.shards import ShardSpace
from strata.training.plan.exact.sharing_plans import Way
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

LOOKED_OVER: Final = 64
"""Sets of three domains and more over which, and over all pairs, settings are compared, the best of them over all.
"""

PROMISING_CONFIGS: Final = 300
"""Settings that are: the best under each of LEANINGS."""

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
        self.built = problem.partly_recomputed
        count = len(problem.fleet.domains)
        members = tuple(range(count))
        self.chains: ChainSpace = (
            ChainSpace(problem, members)
            if count <= POOL
            else SomeChains(problem, list(islice(first_pools(problem), POOLS)), pairs=count <= PAIRS)
        )
        self.shards = ShardSpace(problem, members)
        self._sharings: dict[int, TrainingPlan | None] = {}
        # The fastest schedule first: where it fits, no other is built.
        order = sorted(problem.job.schedules, key=SCHEDULES.index)
        # GPipe keeps more than 1F1B: where that does not fit, neither does it.
        useless = {Schedule.GPIPE} if Schedule.ONE_F_ONE_B in order else set()
        self.in_turn = tuple(schedule for schedule in order if schedule not in {*ORDERED, *useless})
        self.ordered = tuple(schedule for schedule in order if schedule in ORDERED)

    @property
    def count(self) -> int:
        """How many branches there are, likely or not."""
        chains = len(self.problem.configs) * len(self.chains.masks)
        return chains + len(self.shards.ways) * len(self.shards.groups)

    @cached_property
    def branches(self) -> Branches:
        """All branches worth a look."""
        values, config, item, likely = self._pipelines(
            ChainEstimates(self.problem, self.chains, self.problem.configs)
        )
        shared, ways, groups = self._shared_estimates.values()
        sharing = ways * len(self.shards.groups) + groups
        single = (self.chains.inside.sum(axis=1) == 1)[item]
        return Branches(
            np.concatenate([values, shared], axis=1),
            np.concatenate([config, np.full(len(ways), -1)]),
            np.concatenate([item, sharing]),
            np.concatenate([single, np.zeros(len(ways), dtype=bool)]),
            np.concatenate([likely, np.ones(len(ways), dtype=bool)]),
        )

    @cached_property
    def _shared_estimates(self) -> DataParallelEstimates:
        return DataParallelEstimates(self.problem, self.shards, self.chains)

    def _pipelines(self, estimates: ChainEstimates) -> tuple[Floats, Ints, Ints, Bools]:
        """Return the pipelines that promise most at first glance, estimated closely where memory should do."""
        sizes, configs = self.chains.inside.sum(axis=1), np.arange(len(self.problem.configs))
        several = np.flatnonzero(sizes > 1)
        if len(several) > LOOKED_OVER:
            some = several[(sizes[several] == 2) | (np.arange(len(several)) % (len(several) // LOOKED_OVER) == 0)]
            configs = self._promising_configs(list(estimates.screen(configs, some)))
        parts = [*estimates.screen(np.arange(len(self.problem.configs)), np.flatnonzero(sizes == 1))]
        parts += [self._promising(*part) for part in estimates.screen(configs, several)]
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

    def _promising_configs(self, parts: Sequence[Screened]) -> Ints:
        """Return the settings that come closest to the best of some mask under each of LEANINGS."""
        values = np.concatenate([part[0] for part in parts], axis=1)
        config, item = (np.concatenate([part[k] for part in parts]) for k in (1, 2))
        picked, each = [], PROMISING_CONFIGS // len(LEANINGS)
        for score in LEANINGS @ _logs(values):
            least, behind = np.full(len(self.chains.masks), np.inf), np.full(len(self.problem.configs), np.inf)
            np.minimum.at(least, item, score)
            np.minimum.at(behind, config, score - least[item])
            picked.append(np.argsort(behind, kind="stable")[:each])
        return np.unique(np.concatenate(picked))

    def _promising(self, values: Floats, config: Ints, item: Ints) -> Screened:
        """Return all branches of one domain, and of several the best under each of LEANINGS."""
        several = np.flatnonzero(self.chains.inside.sum(axis=1)[item] > 1)
        if len(several) <= PROMISING:
            return values, config, item
        each = PROMISING // len(LEANINGS)
        near = np.ones(len(item), dtype=bool)
        near[several] = False
        for score in LEANINGS @ _logs(values[:, several]):
            near[several[np.argpartition(score, each)[:each]]] = True
        return values[:, near], config[near], item[near]

    def plans(self, row: int) -> list[TrainingPlan]:
        """Return the plans of one branch under whole stages: a pipeline by its fastest route, both ways round."""
        number, item = int(self.branches.config[row]), int(self.branches.item[row])
        if number >= 0:
            return self._pipelines_of(number, self._orders(number, item)[:2], self.in_turn)
        if item not in self._sharings:
            self._sharings[item] = self._shared(*divmod(item, len(self.shards.groups)))
        plan = self._sharings[item]
        return [] if plan is None else [plan]

    def _shared(self, way: int, group: int) -> TrainingPlan | None:
        """Return the plan of a sharing in the settings that its estimate is of, or else in those that could do
        most."""
        common = self.shards.ways[way].common
        if common.recompute not in self.built.modes:  # as little of all as fits
            common = replace(common, recompute=Recompute.NONE)
        built = self._built_ways[self.shards.ways[way]._replace(common=common)]
        settings = [
            [replace(config, recompute=common.recompute, holds_outer=common.holds_outer) for config in own]
            for own in self._shared_estimates.settings(way, group)
        ]
        plan = self._built_shards.build_in(built, group, settings) if all(settings) else None
        return self._built_shards.build_fast(built, group) if plan is None else plan

    @cached_property
    def _built_shards(self) -> ShardSpace:
        return ShardSpace(self.built, self.shards.members, is_thorough=False)

    @cached_property
    def _built_ways(self) -> dict[Way, int]:
        return {way: number for number, way in enumerate(self._built_shards.ways)}

    def other_plans(self, row: int) -> list[TrainingPlan]:
        """Return the other plans of a pipeline: by the cheapest route, both ways round, and in fixed orders
        (`ORDERED`), which take long to evaluate."""
        number, item = int(self.branches.config[row]), int(self.branches.item[row])
        if number < 0:
            return []
        orders = self._orders(number, item)
        plans = self._pipelines_of(number, orders[2:], self.in_turn)
        return plans + self._pipelines_of(number, orders, self.ordered)

    def _pipelines_of(
        self, number: int, orders: Sequence[tuple[int, ...]], schedules: tuple[Schedule, ...]
    ) -> list[TrainingPlan]:
        """Return the plan of each order in the first of some schedules that fits."""
        config, plans = self.problem.configs[number], list[TrainingPlan]()
        for order in orders if schedules else ():
            fits = next(build_chain(self.problem, config, order, schedules=schedules), None)
            if fits is not None:
                plans.append(recomputing_least(self.built, fits))
        return plans

    def _orders(self, number: int, item: int) -> list[tuple[int, ...]]:
        config, mask = self.problem.configs[number], int(self.chains.masks[item])
        picked = tuple(i for i in range(len(self.chains.members)) if mask >> i & 1)
        if len(picked) == 1:
            return [picked]
        fast = self.chains.fastest_order(config, picked)
        costs = self.problem.pair_costs(config.microbatch_size)
        cheap, cost = best_path(costs.price_sum, picked)
        if not np.isfinite(cost):
            return []
        return list(dict.fromkeys([fast, fast[::-1], cheap, cheap[::-1]]))


def _logs(values: Floats) -> Floats:
    """Return log time, log idleness and log money [3, N]."""
    return np.asarray(np.log(np.maximum(np.abs(values), 1e-300)) * np.array([[1.0], [-1.0], [1.0]]))
