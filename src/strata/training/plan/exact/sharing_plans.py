"""The plans of data parallelism across domains: one pipeline per unit, in shapes that finish together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np

from strata.arrays import Floats
from strata.training.plan.exact.batch import best_shapes, could_be_picked, share, sharing_copies
from strata.training.plan.exact.config import CommonConfig
from strata.training.plan.exact.memory_fit import recomputing_least
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.shapes import Unit
from strata.training.plan.exact.unit import Inner, Units, moved
from strata.workload.plan import TrainingPlan

EVERY: Final = 1 << 16
"""More shapes than a unit has."""


class Way(NamedTuple):
    """How a batch is shared, whatever the units."""

    common: CommonConfig
    gradient_compression: float
    local_steps: int


@dataclass(frozen=True, slots=True)
class DataParallelPlan:
    """One way to share the batch: which units, at which microbatch, summing gradients how."""

    units: tuple[Unit, ...]
    way: Way


class SharingPlans:
    """Builds plans that share a batch."""

    def __init__(self, problem: Problem, units: Units) -> None:
        self.problem, self.units = problem, units

    def build(self, sharing: DataParallelPlan, ways: list[list[Inner]]) -> TrainingPlan | None:
        """Return the plan of units in one of these shapes each, or None where one has none or cannot be reached.

        A unit's shape is chosen for speed and for how much of the gradient sum its last backward hides: the
        least total is found by asking for every amount hidden that could pay.
        """
        batch, copies = self.problem.job.global_batch, self.problem.job.pins.data
        if not all(ways) or sum(max(each.room * each.samples for each in unit) for unit in ways) < batch:
            return None
        if copies is not None:
            fixed = sharing_copies(ways, batch, copies)
            if fixed is None:
                return None
            ways = fixed
        plan = self.plan(sharing, share(ways, batch))
        if plan.num_samples == batch:
            return self._fastest(sharing, ways, plan)
        plans = []  # a copy would be without a sample
        for fewer in _of_fewer_copies(ways, batch):
            plan = self.plan(sharing, share(fewer, batch))
            if plan.num_samples == batch and (fastest := self._fastest(sharing, fewer, plan)) is not None:
                plans.append(fastest)
        if len(plans) < 2:
            return plans[0] if plans else None
        return min(zip(plans, self.problem.model.bounds_s(plans), strict=True), key=itemgetter(1))[0]

    def fewest_devices(self, sharing: DataParallelPlan, ways: list[list[Inner]]) -> Floats | None:
        """Return how many devices of each domain [domains] the plan of units in one of these shapes each has at
        least; None where that is not known without building it."""
        batch, fleet = self.problem.job.global_batch, self.problem.fleet
        if self.problem.job.pins.data is not None or not all(ways):
            return None
        if sum(max(inner.plan.pipelines[0].replicas for inner in unit) for unit in ways) > batch:
            return None  # of fewer copies than these
        devices = np.zeros(len(fleet.domains))
        picked = could_be_picked(ways, batch, local_steps=sharing.way.local_steps)
        for unit, inners in zip(sharing.units, picked, strict=True):
            if len(unit) == 1:  # shapes may have the name of another domain of the kind
                devices[unit[0]] = min(inner.plan.num_devices for inner in inners)
                continue
            each = [inner.plan.devices() for inner in inners]
            for index in unit:
                devices[index] = min(own[fleet.domains[index].name] for own in each)
        return devices

    def _fastest(
        self, sharing: DataParallelPlan, ways: list[list[Inner]], plan: TrainingPlan
    ) -> TrainingPlan | None:
        """Return the plan in the shapes that make the shortest step; `plan` is one of those, for its sum."""
        batch, across = self.problem.job.global_batch, self.problem.model.all_reduce(plan)
        wire_s = across.time_s if across is not None else 0.0
        if not np.isfinite(wire_s):
            return None
        picked = share(best_shapes(ways, batch, wire_s=wire_s, local_steps=sharing.way.local_steps), batch)
        best = self.plan(sharing, picked)
        if best.num_samples != batch:
            return recomputing_least(self.problem, plan)
        # Of fewer microbatches fewer may be in flight than the shapes were chosen for: less is recomputed.
        best = recomputing_least(self.problem, best)
        if not self.units.is_thorough:
            return best
        again = recomputing_least(self.problem, self.plan(sharing, picked, is_split_again=True))
        if not self.problem.model.fits(again):
            return best
        best_s, again_s = self.problem.model.bounds_s([best, again])
        return best if best_s <= again_s else again

    def plan(
        self, sharing: DataParallelPlan, picked: list[tuple[Inner, int]], *, is_split_again: bool = False
    ) -> TrainingPlan:
        """Return the plan of units in these shapes that work through so many microbatches a copy.

        `is_split_again`: layers are split as is best for so many, not for all.
        """
        common = sharing.way.common
        longest = max(picked, key=lambda item: len(item[0].plan.domains))[0].plan
        pipelines, zero_stage = [], 0
        for (inner, count), unit in zip(picked, sharing.units, strict=True):
            plan = self.units.split_for(unit, inner, count) if is_split_again else inner.plan
            pipeline, zero_stage = plan.pipelines[0].with_microbatches(count), max(zero_stage, plan.zero_stage)
            name = self.problem.fleet.domains[unit[0]].name
            pipelines.append(pipeline if len(unit) > 1 else moved(pipeline, name))
        plan = TrainingPlan(
            pipelines=tuple(pipelines),
            microbatch_size=common.microbatch_size,
            schedule=longest.schedule,
            recompute=common.recompute,
            zero_stage=zero_stage,
            gradient_compression=sharing.way.gradient_compression,
            local_steps=sharing.way.local_steps,
            context_exchange=common.context_exchange,
            expert_parallel=common.expert_parallel,
        )
        return plan.with_samples(self.problem.job.global_batch)


def _of_fewer_copies(ways: list[list[Inner]], batch: int) -> Iterator[list[list[Inner]]]:
    """Yield the shapes of units with no more copies than an even share of a batch has samples, those with no more
    than a share by what units do, and those with the fewest."""
    copies = [[inner.plan.pipelines[0].replicas for inner in unit] for unit in ways]
    least, rate = [min(own) for own in copies], [max(i.samples / i.every_s for i in unit) for unit in ways]
    even = [batch // len(ways)] * len(ways)
    fair = [max(few, int(batch * own / sum(rate))) for few, own in zip(least, rate, strict=True)]
    for most in (even, fair, least):
        fewer = [
            [inner for inner, count in zip(unit, own, strict=True) if count <= cap]
            for unit, own, cap in zip(ways, copies, most, strict=True)
        ]
        if all(fewer):
            yield fewer
