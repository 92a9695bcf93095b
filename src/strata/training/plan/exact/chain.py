"""Stages in their domains under one schedule, and the plans of every split of their layers that fits."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from typing import Final

import numpy as np

from strata.arrays import Floats, Ints
from strata.clock import Check, unlimited
from strata.simulate.order import ORDERED
from strata.simulate.pipeline import StageTimes, recurrence_s
from strata.simulate.pipeline_times import in_order_s, split_work_s, wires
from strata.simulate.split_search import SplitsWithin
from strata.simulate.splits import EXACT, Splits
from strata.simulate.traffic import Hop
from strata.training.plan.exact.copy_sums import ends_s
from strata.training.plan.exact.memory_fit import fitting, without_recomputation, zero_stages
from strata.training.plan.exact.problem import Problem
from strata.workload.plan import TrainingPlan

SHARE: Final = 1 / 64
LEAST_SHARE: Final = 1 / 4096
"""Splits are looked for whose bounds are in the first such share of what is below a limit, then in the rest."""

FEW: Final = 16
ENOUGH: Final = 4
MOST_TIMED: Final = 4096
MOST_OPERATIONS: Final = 1 << 25
"""Splits of one chain whose pipelines are timed together: as many as have so many operations (half a second)."""

ORDERED_OPERATIONS: Final = 1 << 23
"""The same of fixed orders, which take four times as long."""


@dataclass(frozen=True)
class Chain:
    """Stages in their domains under one schedule, whose layers may still be split in any way that fits.

    `plan` is the split of the least bound. A chain without `splits` is built in that split alone.
    """

    problem: Problem
    plan: TrainingPlan
    splits: Splits | None
    egress_usd: float
    """What its messages between domains cost a step at least."""
    useful_s: float
    """Device-seconds of use in a step at most."""
    others: tuple[TrainingPlan, ...] = ()
    """In the same split, under other ZeRO stages, which leave less to recompute."""
    cuts: tuple[tuple[Hop, Hop], ...] = ()
    """What a microbatch costs at least over each cut, there and back."""
    after_s: float = 0.0
    """What a step takes at least after its pipeline."""
    unsplit_s: float = np.inf
    """Without `splits`: what the step of a split that is not built takes at least."""

    @property
    def plans(self) -> tuple[TrainingPlan, ...]:
        """Those of the split of the least bound."""
        return (self.plan, *self.others)

    @property
    def loose_s(self) -> float:
        """`bound_s` at once."""
        return self.after_s + (self.splits.bound_s if self.splits is not None else 0.0)

    @property
    def early_s(self) -> tuple[float, float]:
        """What no split's step can beat, ten times as fast: however many are in flight, and with that."""
        return (self.after_s,) * 2 if self._steps is None else (self._steps.paced_ending_s, self._steps.ending_s)

    @property
    def bound_s(self) -> float:
        """What no split's step can beat."""
        return self.after_s if self._steps is None else self._steps.step_s

    @cached_property
    def _steps(self) -> Splits | None:
        """The splits with what follows their microbatches."""
        if (splits := self.splits) is None:
            return None
        ends = [
            ends_s(self.problem, self._bare, stage, times)
            for stage, times in zip(self._bare.pipelines[0].stages, splits.times, strict=True)
        ]
        return replace(splits, sums_of=lambda: splits.sums, ends=ends, end_s=self.after_s)

    @property
    def _bare(self) -> TrainingPlan:
        return without_recomputation(self.problem, self.plan) or self.plan

    def least(self, step_s: float) -> tuple[float, float]:
        """Return bounds on utilisation (from above) and money (USD, from below) of a step that takes so long."""
        usd = self.egress_usd
        prices = [
            (self.problem.fleet.domain(name).price_usd_per_device_hour, count)
            for name, count in self.plan.devices().items()
        ]
        if all(price is not None for price, _ in prices):
            usd += sum((price or 0.0) * count for price, count in prices) * step_s / 3600
        return self.useful_s / (self.plan.num_devices * step_s), usd

    def longest_s(self, is_worth: Callable[[float], bool]) -> float:
        """Return up to which step time a plan of this chain `is_worth` building, which no longer one then is."""
        low, high = self.bound_s, self.bound_s * 1e9
        if is_worth(high):  # the goal is money, and none is known of these devices
            return np.inf
        while high - low > 1e-5 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if is_worth(middle) else (low, middle)
        return high

    def within(
        self, limit_s: Callable[[], float], *, most_timed: int = MOST_TIMED, check: Check = unlimited
    ) -> Iterator[tuple[float, TrainingPlan | None]]:
        """Yield the plan of every other split whose step could take at most `limit_s()`; `check` may end it.

        With each comes what neither it nor any that is left can beat. A limit may fall from one to the next. None
        comes last where more splits than can be timed are left.
        """
        own = tuple(stage.num_layers for stage in self.plan.pipelines[0].stages)
        for least_s, counts in self._close(limit_s, most_timed, check):
            if counts is None:
                yield least_s, None
            elif counts != own:
                plan = with_layers(self._bare, counts)
                for fits in fitting(self.problem, plan, zero_stages(self.problem, plan)):
                    yield least_s, fits

    def _close(
        self, limit_s: Callable[[], float], most: int, check: Check
    ) -> Iterator[tuple[float, tuple[int, ...] | None]]:
        """Yield the splits within a limit, those of the shortest steps first, with what all that are left take.

        Those of long pipelines that are not timed come last; of others None.
        """
        if (splits := self._steps) is None:
            return
        pipeline = self.plan.pipelines[0]
        each = 3 * len(pipeline.stages) * pipeline.microbatches * self.plan.virtual_stages
        operations = ORDERED_OPERATIONS if self.plan.schedule in ORDERED else MOST_OPERATIONS
        most, timed = max(FEW, min(most, operations // each)), set[tuple[int, ...]]()
        left: list[tuple[float, tuple[int, ...]]] = []
        # Of all splits whose bounds are below the floor the times are known; up to `beyond_s` there are no others.
        floor_s, beyond_s, share = self.bound_s, -np.inf, SHARE
        while floor_s < limit_s():
            wide_s = floor_s + share * (limit_s() - floor_s) if np.isfinite(limit_s()) else np.inf
            new, untimed = list[tuple[int, ...]](), None
            if wide_s >= beyond_s:
                others = SplitsWithin(splits, wide_s, check=check)
                new = [counts for counts in islice(others, most) if counts not in timed]
                untimed = next(others, None)
                beyond_s = others.beyond_s if untimed is None else -np.inf
            timed.update(new)
            if new:
                steps_s = self._pipeline_s(np.array(new), check) + splits.ends_s(np.array(new))
                left += zip(steps_s.tolist(), new, strict=True)
                heapq.heapify(left)
            if untimed is None:
                floor_s, share = wide_s, min(1.0, (4 if new else 2) * share)
            else:
                share /= 4
            early = FEW if untimed is not None else 0
            while left and (left[0][0] <= floor_s or early) and left[0][0] <= limit_s() * EXACT:
                least_s, counts = heapq.heappop(left)
                early = max(0, early - 1)
                yield min(least_s, floor_s), counts
            if untimed is not None and (share < LEAST_SHARE or len(timed) > ENOUGH * most):
                if most < MOST_TIMED:
                    yield from ((floor_s, each) for each in chain([untimed], others) if each not in timed)
                else:  # the best of so many that were timed is hardly beaten by some that were not
                    yield floor_s, None
                return

    def _pipeline_s(self, counts: Ints, check: Check) -> Floats:
        """Return the time of the pipeline with so many layers a stage [N, S], but for what its copies exchange."""
        assert self.splits is not None, "who asks has splits"
        pipeline, ends = self.plan.pipelines[0], np.cumsum(np.insert(counts, 0, 0, axis=1), axis=1)
        forward, backward, useful = np.empty((3, *ends[:, 1:].shape))
        for i, stage in enumerate(pipeline.stages):
            layers, first, last = self.problem.model.stage_layers(self._bare, stage), ends[:, i], ends[:, i + 1]
            forward[:, i] = layers.forward[last] - layers.forward[first]
            useful[:, i] = layers.useful[last] - layers.useful[first]
            # What is recomputed comes with the backward.
            backward[:, i] = self.splits.times[i][first, last] - forward[:, i]
        if self.plan.schedule in ORDERED:
            there, back = ([cut[way] for cut in self.cuts] for way in (0, 1))
            work_s = split_work_s(self.plan, forward, backward, useful)
            return in_order_s(self.plan, pipeline, work_s, wires(there, back, len(counts)), check=check)
        links = [
            np.broadcast_to([getattr(cut[way], name) for cut in self.cuts], forward[:, 1:].shape)
            for way in (0, 1)
            for name in ("serial_s", "latency_s")
        ]
        warmup = np.array([stage.warmup for stage in pipeline.stages])
        return np.asarray(recurrence_s(StageTimes(forward, backward, *links), pipeline.microbatches, warmup))


class OtherSplits:
    """The plans of a chain in other splits, some at a time, those that could be fastest first."""

    def __init__(self, chain: Chain, most_timed: int = MOST_TIMED) -> None:
        self.chain, self.least_s, self.num_taken, self._limit_s = chain, chain.loose_s, 0, np.inf
        self._most_timed = most_timed
        self.is_over = False
        """Whether what is left is not known."""
        self._left: Iterator[tuple[float, TrainingPlan | None]] | None = None

    def take(self, limit_s: float, most: int, *, check: Check) -> list[TrainingPlan]:
        """Return plans not taken before that could take at most `limit_s`; `least_s` is then what is left."""
        self._limit_s = limit_s
        if self._left is None:
            self._left = self.chain.within(lambda: self._limit_s, most_timed=self._most_timed, check=check)
        new: list[TrainingPlan] = []
        for least_s, plan in self._left:
            self.least_s, self.is_over = least_s, plan is None
            if plan is None:
                break
            if len(new) == most:
                self._left = chain([(least_s, plan)], self._left)
                break
            new.append(plan)
        else:
            self.least_s = np.inf
        self.num_taken += len(new)
        return new


def with_layers(plan: TrainingPlan, counts: tuple[int, ...]) -> TrainingPlan:
    """Return a plan of one pipeline whose stages have so many layers."""
    pipeline = plan.pipelines[0]
    stages, first = [], 0
    for stage, layers in zip(pipeline.stages, counts, strict=True):
        stages.append(stage.holding(first, layers))
        first += layers
    return replace(plan, pipelines=(replace(pipeline, stages=tuple(stages)),))
