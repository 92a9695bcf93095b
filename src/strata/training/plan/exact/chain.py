"""One pipeline made concrete: stages in their domains, their warm-ups, and every split of the layers that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.clock import Check, unlimited
from strata.decision import Reason
from strata.fleet.fleet import Domain
from strata.simulate.least_recomputed import NEVER
from strata.simulate.memory import StageShape
from strata.simulate.pipeline import StageTimes, classic_warmup, latency_aware_warmup, recurrence_s
from strata.simulate.pipeline_times import stack
from strata.simulate.traffic import Hop, hops
from strata.training.plan.exact.config import ParallelConfig
from strata.training.plan.exact.memory_fit import fitting, without_recomputation
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.splits import EXACT, Splits
from strata.units import show_bytes
from strata.workload.job import Recompute, Schedule, TrainingJob
from strata.workload.plan import Pipeline, Stage, TrainingPlan

CHUNKS: Final = (8, 4, 2)
"""Chunks of an interleaved stage that are tried."""

UNEVEN: Final = 1.25
"""The largest chunk has at most so many times the layers of the mean."""

PACED: Final = (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE)
"""Schedules of which hardly more than the slowest stage counts: their split is that whose slowest is fastest."""

WHOLE_WEIGHTS: Final = 2
"""Up to this ZeRO stage a higher one holds all that a lower one does; stage 3 has layers gathered beside it."""

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
    others: tuple[TrainingPlan, ...] = ()
    """In the same split, under other ZeRO stages, which leave less to recompute."""
    cuts: tuple[tuple[Hop, Hop], ...] = ()
    """What a microbatch costs at least over each cut, there and back."""
    after_s: float = 0.0
    """What a step takes at least after its pipeline."""

    @property
    def plans(self) -> tuple[TrainingPlan, ...]:
        """Those of the split of the least bound."""
        return (self.plan, *self.others)

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

    def within(self, limit_s: float, *, check: Check = unlimited) -> Iterator[TrainingPlan]:
        """Yield the plan of every other split whose step could take at most `limit_s`; `check` may end it."""
        own = tuple(stage.num_layers for stage in self.plan.pipelines[0].stages)
        bare = without_recomputation(self.problem, self.plan) or self.plan
        for counts in self._close(limit_s - self.after_s, check):
            if counts != own:
                plan = _with_layers(bare, counts)
                yield from fitting(self.problem, plan, _zero_stages(self.problem, plan))

    def _close(self, limit_s: float, check: Check) -> Iterator[tuple[int, ...]]:
        """Yield the splits within a limit, the first MOST_TIMED of them as far as the recurrence says so, too."""
        splits = self.splits.within(limit_s, check=check) if self.splits is not None else iter(())
        for size in (FEW, MOST_TIMED):
            done = list(islice(splits, size))
            for counts, time_s in zip(done, self._least_s(done) if done else (), strict=True):
                if time_s <= limit_s * EXACT:
                    yield counts
        yield from splits

    def _least_s(self, splits: Sequence[tuple[int, ...]]) -> Floats:
        """Return the time of the pipeline in each of these splits, but for what its copies exchange."""
        assert self.splits is not None, "who asks has splits"
        pipeline, ends = self.plan.pipelines[0], np.cumsum([[0, *counts] for counts in splits], axis=1)
        bare = without_recomputation(self.problem, self.plan) or self.plan
        forward, backward = np.empty((2, *ends[:, 1:].shape))
        for i, stage in enumerate(pipeline.stages):
            sums = self.problem.model.stage_layers(bare, stage).forward
            forward[:, i] = sums[ends[:, i + 1]] - sums[ends[:, i]]
            # What is recomputed comes with the backward.
            backward[:, i] = self.splits.times[i][ends[:, i], ends[:, i + 1]] - forward[:, i]
        links = [
            np.broadcast_to([getattr(cut[way], name) for cut in self.cuts], forward[:, 1:].shape)
            for way in (0, 1)
            for name in ("serial_s", "latency_s")
        ]
        warmup = np.array([stage.warmup for stage in pipeline.stages])
        return np.asarray(recurrence_s(StageTimes(forward, backward, *links), pipeline.microbatches, warmup))


def chunk_counts(job: TrainingJob, stages: int) -> tuple[int, ...]:
    """Return how many chunks so many interleaved stages may have, most first: some of CHUNKS, or what is fixed.

    The model takes chunks as equal, so the largest has hardly more layers than the mean, embedding and head
    counted or left out.
    """
    fixed, layers = job.pins.virtual_stages, len(job.layers)
    if fixed is not None:
        return (fixed,) if 1 < fixed <= layers // stages else ()
    return tuple(v for v in CHUNKS if v * stages <= layers and _is_even(layers, v * stages))


def _is_even(layers: int, pieces: int) -> bool:
    return any(-(-count // pieces) * pieces <= UNEVEN * count for count in (layers, layers - 2) if count > 0)


def schedules_of(
    job: TrainingJob, stages: int, microbatches: int, *, crosses: bool, among: Sequence[Schedule]
) -> Iterator[tuple[Schedule, int]]:
    """Yield the schedules `among` some, and their chunks a stage, that a pipeline may follow."""
    fixed = job.pins.virtual_stages or 1
    if stages == 1 or fixed > 1:
        among = (Schedule.ONE_F_ONE_B,) if fixed == 1 else (Schedule.INTERLEAVED,)
    for schedule in among:
        if schedule is Schedule.LATENCY_AWARE and not crosses:
            continue
        if schedule is Schedule.GPIPE and not crosses and Schedule.ONE_F_ONE_B in job.schedules:
            continue  # without a slow link GPipe only costs memory
        if schedule is not Schedule.INTERLEAVED:
            yield schedule, 1
        elif not crosses and stages > 1 and not microbatches % stages:
            yield from ((schedule, chunks) for chunks in chunk_counts(job, stages))


def build_chain(
    problem: Problem, config: ParallelConfig, order: tuple[int, ...],
    *, microbatches: int | None = None, schedules: tuple[Schedule, ...] | None = None,
) -> Iterator[TrainingPlan | Reason]:  # fmt: skip
    """Yield one plan per allowed schedule, in the layer split of the least bound (see `chains`)."""
    for chain in chains(problem, config, order, microbatches=microbatches, schedules=schedules):
        if isinstance(chain, Chain):
            yield from chain.plans
        elif chain is not None:
            yield chain


def chains(
    problem: Problem, config: ParallelConfig, order: tuple[int, ...],
    *, microbatches: int | None = None, schedules: tuple[Schedule, ...] | None = None, limit_s: float = np.inf,
) -> Iterator[Chain | Reason | None]:  # fmt: skip
    """Yield one chain per allowed schedule for domains (positions in the fleet) in this order.

    A schedule that does not fit memory yields its Reason instead, one of which no pipeline takes less than
    `limit_s` None. `microbatches` per copy is the whole batch's unless given (a pipeline of several, which share
    the batch); `schedules` are the job's, in its order.
    """
    count = microbatches or problem.microbatches(config)
    stages: list[tuple[Domain, int]] = []
    for domain in (problem.fleet.domains[i] for i in order):
        ranks = problem.ranks(domain, config)
        if problem.layers(domain, config) is None:
            kind = f"layer times for microbatch {config.microbatch_size}, tensor parallel {ranks}"
            yield Reason("figure-missing", domain.name, {"figure": kind, "accelerator": domain.accelerator.name})
            return
        stages += [(domain, ranks)] * problem.stages(domain, config)
    if not 1 <= len(stages) <= len(problem.job.layers):
        return
    row = _Row(problem, config, tuple(stages), count)
    among = problem.job.schedules if schedules is None else schedules
    for schedule, chunks in schedules_of(problem.job, len(stages), count, crosses=len(order) > 1, among=among):
        chain = row.scheduled(schedule, chunks, limit_s)
        yield chain
        if schedule is not Schedule.LATENCY_AWARE or chain is None or not problem.is_partial:
            continue
        # Stages that recompute are slower: they hide a link with fewer microbatches in flight.
        if isinstance(chain, Reason) or chain.plan.recompute is Recompute.FULL:
            slow = replace(row, is_slow=True).scheduled(schedule, chunks, limit_s)
            yield replace(slow, splits=None) if isinstance(slow, Chain) else slow


@dataclass(frozen=True)
class _Row:
    """Stages in order, and how many microbatches each copy works through."""

    problem: Problem
    config: ParallelConfig
    layout: Layout
    microbatches: int
    is_slow: bool = False
    """Warm-ups are those of stages that recompute all their layers."""

    def scheduled(self, schedule: Schedule, chunks: int, limit_s: float) -> Chain | Reason | None:
        """Return these stages under a schedule, or why they do not fit; None: all take longer than a limit."""
        count = self.microbatches
        warmup = [min(w, count - 1) for w in classic_warmup(len(self.layout))]
        paced = schedule in PACED
        any_counts = (
            *[chunks] * (len(self.layout) - 1),
            len(self.problem.job.layers) - chunks * (len(self.layout) - 1),
        )
        plan = self._plan(any_counts, warmup, schedule, chunks)  # what memory depends on has no layers in it
        if schedule is Schedule.GPIPE:
            plan = _with_warmup(plan, [count - 1] * len(self.layout))
        elif schedule is Schedule.LATENCY_AWARE:
            plan = _with_layers(plan, self._free(count, chunks))
            timed = replace(plan, recompute=Recompute.FULL) if self.is_slow else plan
            times = stack([self.problem.model.times(timed, plan.pipelines[0])])
            deeper = np.minimum(latency_aware_warmup(times, count)[0], count - 1)
            plan = _with_warmup(plan, [int(w) for w in deeper])
        zero_stages = _zero_stages(self.problem, plan)
        several = MANY if paced else count
        each = [self._splits(replace(plan, zero_stage=zero), (zero,), several, chunks) for zero in zero_stages]
        least_s = min(splits.bound_s for splits in each)
        if limit_s <= least_s * (count / several * (1 - 1e-6) if paced else 1.0) < np.inf:
            return None
        best = [splits.best for splits in each]
        counted = [_with_layers(plan, counts) for counts in dict.fromkeys(best) if counts is not None]
        plans = [fits for each_split in counted for fits in fitting(self.problem, each_split, zero_stages)]
        if not plans:
            plan = _with_layers(plan, self._free(several, chunks))
            if self.problem.is_partial and plan.recompute is Recompute.NONE:
                plan = replace(plan, recompute=Recompute.FULL)
            return _too_large(self.problem, replace(plan, zero_stage=max(zero_stages)))
        if len(plans) > 1:
            plans.sort(key=lambda fits: self.problem.model.bounds([fits])[0].step_time_s)
        messages = count * self.config.data_parallel
        useful_s = self.problem.compute_cost(self.config).useful_s
        most_useful_s = max(float(useful_s[self.problem.fleet.index(domain.name)]) for domain, _ in self.layout)
        return Chain(
            self.problem,
            plans[0],
            None if paced or len(self.layout) == 1 else self._splits(plan, zero_stages, count),
            egress_usd=messages * sum(hop.egress_usd + back.egress_usd for hop, back in self._hops),
            useful_s=messages * most_useful_s,
            others=tuple(plans[1:]),
            cuts=tuple(self._hops),
        )

    def _free(self, microbatches: int, chunks: int) -> tuple[int, ...]:
        """Return the split of the least bound, memory left out."""
        free = self._splits(None, (), microbatches, chunks).best
        assert free is not None, "no more stages or chunks than layers"
        return free

    def _splits(
        self, plan: TrainingPlan | None, zero_stages: tuple[int, ...], microbatches: int, chunks: int = 1
    ) -> Splits:
        """Return the splits whose stages each fit under one of these ZeRO stages; without a plan, all.

        Every stage has at least a layer for each of its `chunks`.
        """
        config, kinds = self.config, self.problem.kinds
        shapes: list[tuple[StageShape, ...]] = [()] * len(self.layout)
        warmup: tuple[int, ...] = ()
        if plan is not None:
            pipeline = plan.pipelines[0]
            if max(zero_stages) <= WHOLE_WEIGHTS:
                zero_stages = (max(zero_stages),)
            with_zero = [replace(plan, zero_stage=zero) for zero in zero_stages]
            shapes = [
                tuple(StageShape.of(each, pipeline, position) for each in with_zero)
                for position in range(len(self.layout))
            ]
            if plan.schedule not in PACED:
                warmup = tuple(min(stage.warmup, microbatches - 1) for stage in pipeline.stages)
        row = tuple((kinds[domain.name], ranks) for domain, ranks in self.layout)
        key = (row, config.work, self._hops_s, self._slowest_s, tuple(shapes), warmup, microbatches, chunks)
        if key not in self.problem.splits:
            times = [
                self._stage_s(domain, some, chunks) for (domain, _), some in zip(self.layout, shapes, strict=True)
            ]
            self.problem.splits[key] = Splits(times, self._hops_s, warmup, self._slowest_s, microbatches)
        return self.problem.splits[key]

    def _stage_s(self, domain: Domain, shapes: tuple[StageShape, ...], chunks: int) -> Floats:
        """Return how long layers from a row to a column take on one stage [L + 1, L + 1], inf: too few or many."""
        problem, config = self.problem, self.config
        key = (problem.kinds[domain.name], problem.ranks(domain, config), config.work, shapes, chunks)
        if key not in problem.stage_times:
            layers = problem.layers(domain, config)
            assert layers is not None, "domains of unknown speed are excluded before"
            times = layers.work[None, :] - layers.work[:, None]
            at, limit_bytes = np.arange(len(times)), problem.model.memory_limit_bytes(domain)
            fits = at[None, :] >= at[:, None] + chunks
            if shapes and problem.recomputes_some(config):
                again = [self._again_s(domain, shape, limit_bytes, is_whole=chunks > 1) for shape in shapes]
                times = times + np.min(again, axis=0)
            elif shapes:
                fits &= np.any([problem.fitting(shape, limit_bytes) for shape in shapes], axis=0)
            problem.stage_times[key] = np.where(fits, times, np.inf)
        return problem.stage_times[key]

    def _again_s(self, domain: Domain, shape: StageShape, limit_bytes: float, *, is_whole: bool) -> Floats:
        """Return what runs of layers take longer because they recompute as many of them as they must, or all of
        them (`is_whole`) [L + 1, L + 1]; inf where they do not fit even so."""
        count = self.problem.recomputing(shape).counts(shape.in_flight, limit_bytes)
        if not count.any():
            return np.zeros(count.shape)
        more, at = self.problem.again_s(domain, self.config), np.arange(len(count))
        last = np.minimum(at[:, None] + count, len(at) - 1)
        if is_whole:
            last = np.where(count > 0, at[None, :], at[:, None])
        return np.where(count < NEVER, more[last] - more[:, None], np.inf)

    @cached_property
    def _hops_s(self) -> tuple[float, ...]:
        return tuple(hop.serial_s + hop.latency_s + back.serial_s + back.latency_s for hop, back in self._hops)

    @cached_property
    def _slowest_s(self) -> float:
        return max((max(hop.serial_s, back.serial_s) for hop, back in self._hops), default=0.0)

    @cached_property
    def _hops(self) -> list[tuple[Hop, Hop]]:
        """What a microbatch costs at least over each cut, there and back."""
        context = self.config.context_parallel
        stages = tuple(Stage(domain.name, 0, 0, ranks, 0, context) for domain, ranks in self.layout)
        pipeline = Pipeline(stages, self.config.data_parallel, self.microbatches)
        sizes = [self.problem.message_bytes(self.config.microbatch_size)] * (len(stages) - 1)
        return hops(self.problem.fleet, pipeline, sizes)

    def _plan(self, counts: tuple[int, ...], warmup: list[int], schedule: Schedule, chunks: int) -> TrainingPlan:
        stages = tuple(
            Stage(domain.name, 0, 0, ranks, depth, self.config.context_parallel)
            for (domain, ranks), depth in zip(self.layout, warmup, strict=True)
        )
        plan = TrainingPlan(
            pipelines=(Pipeline(stages, self.config.data_parallel, self.microbatches),),
            microbatch_size=self.config.microbatch_size, schedule=schedule, recompute=self.config.recompute,
            virtual_stages=chunks,
            local_steps=2 if self.config.holds_outer else 1,  # memory asks whether there are several, not how many
            context_exchange=self.config.context_exchange, expert_parallel=self.config.expert_parallel,
        )  # fmt: skip
        if self.microbatches == self.problem.microbatches(self.config):
            plan = plan.with_samples(self.problem.job.global_batch)
        return _with_layers(plan, counts)


def _zero_stages(problem: Problem, plan: TrainingPlan) -> tuple[int, ...]:
    stages = problem.job.zero_stages
    pipeline = plan.pipelines[0]
    return stages if pipeline.replicas * pipeline.stages[0].context_parallel > 1 else stages[:1]


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
