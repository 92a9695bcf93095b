"""One pipeline made concrete: stages in their domains, their warm-ups, and every split of the layers that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.decision import Reason
from strata.fleet.fleet import Domain
from strata.simulate.memory import StageRoom, StageShape
from strata.simulate.pipeline import StageTimes, classic_warmup, latency_aware_warmup, recurrence_s
from strata.simulate.pipeline_times import stack
from strata.simulate.traffic import Hop, hops
from strata.training.plan.exact.problem import ParallelConfig, Problem
from strata.training.plan.exact.splits import EXACT, Splits
from strata.units import show_bytes
from strata.workload.job import Schedule, TrainingJob
from strata.workload.plan import Pipeline, Stage, TrainingPlan

CHUNKS: Final = 2
"""Chunks of an interleaved stage."""

MANY: Final = 10**9
"""Microbatches so many that only the slowest stage counts."""

FEW: Final = 64
MOST_TIMED: Final = 4096
"""Splits of one chain whose pipelines are timed together before any is built, a FEW of them first."""

Layout = tuple[tuple[Domain, int], ...]
"""Domain and tensor-parallel degree of each stage, in pipeline order."""


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
    cuts: tuple[tuple[Hop, Hop], ...] = ()
    """What a microbatch costs at least over each cut, there and back."""
    after_s: float = 0.0
    """What a step takes at least after its pipeline."""

    @property
    def bound_s(self) -> float:
        """What no split's step can beat."""
        return self.after_s + (self.splits.bound_s if self.splits is not None else 0.0)

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

    def within(self, limit_s: float) -> Iterator[TrainingPlan]:
        """Yield the plan of every other split whose step could take at most `limit_s`."""
        own = tuple(stage.num_layers for stage in self.plan.pipelines[0].stages)
        for counts in self._close(limit_s - self.after_s):
            if counts != own:
                plan = _with_layers(self.plan, counts)
                fitting = self.problem.model.fastest_zero(plan, _zero_stages(self.problem, plan))
                if fitting is not None:
                    yield fitting

    def _close(self, limit_s: float) -> Iterator[tuple[int, ...]]:
        """Yield the splits within a limit, the first MOST_TIMED of them as far as the recurrence says so, too."""
        splits = self.splits.within(limit_s) if self.splits is not None else iter(())
        for size in (FEW, MOST_TIMED):
            done = list(islice(splits, size))
            for counts, time_s in zip(done, self._least_s(done) if done else (), strict=True):
                if time_s <= limit_s * EXACT:
                    yield counts
        yield from splits

    def _least_s(self, splits: Sequence[tuple[int, ...]]) -> Floats:
        """Return the time of the pipeline in each of these splits, but for what its copies exchange."""
        pipeline = self.plan.pipelines[0]
        ends = np.cumsum([[0, *counts] for counts in splits], axis=1)
        forward, backward = np.empty((2, *ends[:, 1:].shape))
        for i, stage in enumerate(pipeline.stages):
            layers = self.problem.model.layers(
                self.problem.fleet.domain(stage.domain), stage.tensor_parallel,
                self.plan.microbatch_size, self.plan.recompute,
            )  # fmt: skip
            assert layers is not None, "domains of unknown speed are excluded before"
            for times, sums in ((forward, layers.forward), (backward, layers.backward)):
                times[:, i] = sums[ends[:, i + 1]] - sums[ends[:, i]]
        links = [
            np.broadcast_to([getattr(cut[way], name) for cut in self.cuts], forward[:, 1:].shape)
            for way in (0, 1)
            for name in ("serial_s", "latency_s")
        ]
        warmup = np.array([stage.warmup for stage in pipeline.stages])
        return np.asarray(recurrence_s(StageTimes(forward, backward, *links), pipeline.microbatches, warmup))


def least_path_share(job: TrainingJob) -> float:
    """Return the least share of its work that a microbatch goes through one thing after another.

    Weight gradients apart from the others, a third of the useful work (`analytic.operations_s`), wait for no one.
    """
    return 2 / 3 if Schedule.ZERO_BUBBLE in job.schedules else 1.0


def build_chain(
    problem: Problem,
    config: ParallelConfig,
    order: tuple[int, ...],
    *,
    microbatches: int | None = None,
    schedules: tuple[Schedule, ...] | None = None,
) -> Iterator[TrainingPlan | Reason]:
    """Yield one plan per allowed schedule, in the layer split of the least bound (see `chains`)."""
    for chain in chains(problem, config, order, microbatches=microbatches, schedules=schedules):
        yield chain.plan if isinstance(chain, Chain) else chain


def chains(
    problem: Problem,
    config: ParallelConfig,
    order: tuple[int, ...],
    *,
    microbatches: int | None = None,
    schedules: tuple[Schedule, ...] | None = None,
) -> Iterator[Chain | Reason]:
    """Yield one chain per allowed schedule for domains (positions in the fleet) in this order.

    A schedule that does not fit memory yields its Reason instead. `microbatches` per copy is the whole
    batch's unless given (a pipeline of several, which share the batch); `schedules` are the job's, in its order.
    """
    count = microbatches or problem.microbatches(config)
    stages: list[tuple[Domain, int]] = []
    for domain in (problem.fleet.domains[i] for i in order):
        ranks = problem.ranks(domain, config)
        if problem.model.layers(domain, ranks, config.microbatch_size, config.recompute) is None:
            kind = f"layer times for microbatch {config.microbatch_size}, tensor parallel {ranks}"
            yield Reason("figure-missing", domain.name, {"figure": kind, "accelerator": domain.accelerator.name})
            return
        stages += [(domain, ranks)] * problem.stages(domain, config)
    if not 1 <= len(stages) <= len(problem.job.layers):
        return
    crosses = len(order) > 1
    row = _Row(problem, config, tuple(stages), count)
    for schedule in (schedules or problem.job.schedules) if len(stages) > 1 else (Schedule.ONE_F_ONE_B,):
        if schedule is Schedule.LATENCY_AWARE and not crosses:
            continue
        if schedule is Schedule.GPIPE and not crosses and Schedule.ONE_F_ONE_B in problem.job.schedules:
            continue  # without a slow link GPipe only costs memory
        if schedule is Schedule.INTERLEAVED and (
            crosses or count % len(stages) or 2 * len(stages) > len(problem.job.layers)
        ):
            continue
        yield row.scheduled(schedule)


@dataclass(frozen=True)
class _Row:
    """Stages in order, and how many microbatches each copy works through."""

    problem: Problem
    config: ParallelConfig
    layout: Layout
    microbatches: int

    def scheduled(self, schedule: Schedule) -> Chain | Reason:
        """Return these stages under a schedule, or why they do not fit."""
        count = self.microbatches
        warmup = [min(w, count - 1) for w in classic_warmup(len(self.layout))]
        # In pieces hardly more than the slowest stage counts: the split for very many microbatches.
        paced = schedule in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE)
        free = self._splits(None, (), MANY if paced else count).best
        assert free is not None, "no more stages than layers"
        plan = self._plan(free, warmup, schedule)
        if schedule is Schedule.GPIPE:
            plan = _with_warmup(plan, [count - 1] * len(self.layout))
        elif schedule is Schedule.LATENCY_AWARE:
            times = stack([self.problem.model.times(plan, plan.pipelines[0])])
            deeper = np.minimum(latency_aware_warmup(times, count)[0], count - 1)
            plan = _with_warmup(plan, [int(w) for w in deeper])
        zero_stages = _zero_stages(self.problem, plan)
        several = MANY if paced else count
        best = [self._splits(replace(plan, zero_stage=zero), (zero,), several).best for zero in zero_stages]
        fitting = [_with_layers(plan, counts) for counts in dict.fromkeys(best) if counts is not None]
        fastest = [self.problem.model.fastest_zero(each, zero_stages) for each in fitting]
        plans = [each for each in fastest if each is not None]
        if not plans:
            return _too_large(self.problem, replace(plan, zero_stage=max(zero_stages)))
        if len(plans) > 1:
            plans.sort(key=lambda each: self.problem.model.bounds([each])[0].step_time_s)
        messages = count * self.config.data_parallel
        useful_s = self.problem.compute_cost(self.config).useful_s
        most_useful_s = max(float(useful_s[self.problem.fleet.index(domain.name)]) for domain, _ in self.layout)
        return Chain(
            self.problem,
            plans[0],
            None if paced or len(self.layout) == 1 else self._splits(plan, zero_stages, count),
            egress_usd=messages * sum(hop.egress_usd + back.egress_usd for hop, back in self._hops),
            useful_s=messages * most_useful_s,
            cuts=tuple(self._hops),
        )

    def _splits(self, plan: TrainingPlan | None, zero_stages: tuple[int, ...], microbatches: int) -> Splits:
        """Return the splits whose stages each fit under one of these ZeRO stages; without a plan, all."""
        config, kinds = self.config, self.problem.kinds
        shapes: list[tuple[StageShape, ...]] = [()] * len(self.layout)
        warmup: tuple[int, ...] = ()
        if plan is not None:
            pipeline = plan.pipelines[0]
            with_zero = [replace(plan, zero_stage=zero) for zero in zero_stages]
            shapes = [
                tuple(StageShape.of(each, pipeline, position) for each in with_zero)
                for position in range(len(self.layout))
            ]
            if plan.schedule not in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE):
                warmup = tuple(min(stage.warmup, microbatches - 1) for stage in pipeline.stages)
        row = tuple((kinds[domain.name], ranks) for domain, ranks in self.layout)
        work = config.microbatch_size, config.recompute
        key = (row, work, self._hops_s, self._slowest_s, tuple(shapes), warmup, microbatches)
        if key not in self.problem.splits:
            times = [
                self._stage_s(domain, ranks, some)
                for (domain, ranks), some in zip(self.layout, shapes, strict=True)
            ]
            self.problem.splits[key] = Splits(times, self._hops_s, warmup, self._slowest_s, microbatches)
        return self.problem.splits[key]

    def _stage_s(self, domain: Domain, ranks: int, shapes: tuple[StageShape, ...]) -> Floats:
        """Return how long layers from a row to a column take on one stage [L + 1, L + 1], inf: too large."""
        problem, config = self.problem, self.config
        key = (problem.kinds[domain.name], ranks, config.microbatch_size, config.recompute, shapes)
        if key not in problem.stage_times:
            layers = problem.model.layers(domain, ranks, config.microbatch_size, config.recompute)
            assert layers is not None, "domains of unknown speed are excluded before"
            times = layers.work[None, :] - layers.work[:, None]
            at, limit_bytes = np.arange(len(times)), problem.model.memory_limit_bytes(domain)
            rooms = [StageRoom(problem.job, shape, limit_bytes=limit_bytes) for shape in shapes]
            most = at + (
                np.max([[room.layers(first) for first in at.tolist()] for room in rooms], axis=0)
                if rooms
                else len(times)
            )
            problem.stage_times[key] = np.where(
                (at[None, :] > at[:, None]) & (at[None, :] <= most[:, None]), times, np.inf
            )
        return problem.stage_times[key]

    @cached_property
    def _hops_s(self) -> tuple[float, ...]:
        return tuple(hop.serial_s + hop.latency_s + back.serial_s + back.latency_s for hop, back in self._hops)

    @cached_property
    def _slowest_s(self) -> float:
        return max((max(hop.serial_s, back.serial_s) for hop, back in self._hops), default=0.0)

    @cached_property
    def _hops(self) -> list[tuple[Hop, Hop]]:
        """What a microbatch costs at least over each cut, there and back."""
        stages = tuple(Stage(domain.name, 0, 0, ranks) for domain, ranks in self.layout)
        pipeline = Pipeline(stages, self.config.data_parallel, self.microbatches)
        sizes = [self.problem.message_bytes(self.config.microbatch_size)] * (len(stages) - 1)
        return hops(self.problem.fleet, pipeline, sizes)

    def _plan(self, counts: tuple[int, ...], warmup: list[int], schedule: Schedule) -> TrainingPlan:
        stages = tuple(
            Stage(domain.name, 0, 0, ranks, depth)
            for (domain, ranks), depth in zip(self.layout, warmup, strict=True)
        )
        plan = TrainingPlan(
            pipelines=(Pipeline(stages, self.config.data_parallel, self.microbatches),),
            microbatch_size=self.config.microbatch_size, schedule=schedule, recompute=self.config.recompute,
            virtual_stages=CHUNKS if schedule is Schedule.INTERLEAVED else 1,
        )  # fmt: skip
        if self.microbatches == self.problem.microbatches(self.config):
            plan = plan.with_samples(self.problem.job.global_batch)
        return _with_layers(plan, counts)


def _zero_stages(problem: Problem, plan: TrainingPlan) -> tuple[int, ...]:
    stages = problem.job.zero_stages
    return stages if plan.pipelines[0].replicas > 1 else stages[:1]


def _too_large(problem: Problem, plan: TrainingPlan) -> Reason:
    """Return which stage lacks most memory in the split that ignores it."""
    model, pipeline = problem.model, plan.pipelines[0]
    needs = [
        (
            model.stage_memory_bytes(plan, pipeline, stage),
            model.memory_limit_bytes(problem.fleet.domain(stage.domain)),
            stage,
        )
        for stage in pipeline.stages
    ]
    need, have, stage = max(needs, key=lambda item: item[0] / item[1])
    return Reason(
        "memory-exceeded", stage.domain,
        {"need": show_bytes(need), "have": show_bytes(have), "need_bytes": need, "have_bytes": have},
    )  # fmt: skip


def _with_layers(plan: TrainingPlan, counts: tuple[int, ...]) -> TrainingPlan:
    pipeline = plan.pipelines[0]
    stages, first = [], 0
    for stage, layers in zip(pipeline.stages, counts, strict=True):
        stages.append(replace(stage, first_layer=first, num_layers=layers))
        first += layers
    return replace(plan, pipelines=(replace(pipeline, stages=tuple(stages)),))


def _with_warmup(plan: TrainingPlan, warmup: list[int]) -> TrainingPlan:
    pipeline = plan.pipelines[0]
    stages = tuple(replace(stage, warmup=w) for stage, w in zip(pipeline.stages, warmup, strict=True))
    return replace(plan, pipelines=(replace(pipeline, stages=stages),))
