"""One pipeline made concrete: its stages in a row, their warm-ups, and the splits of the layers that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.decision import Reason
from strata.fleet.fleet import Domain
from strata.simulate.least_recomputed import NEVER
from strata.simulate.memory import StageShape
from strata.simulate.order import ORDERED
from strata.simulate.ordered import planes
from strata.simulate.pipeline import classic_warmup, latency_aware_warmup
from strata.simulate.pipeline_times import split_work_s, stack
from strata.simulate.plane_sums import PlaneSums
from strata.simulate.splits import Splits, times_of_runs
from strata.simulate.tied_table import table_sum
from strata.simulate.traffic import Hop, hops
from strata.training.plan.exact.chain import Chain, with_layers
from strata.training.plan.exact.config import ParallelConfig
from strata.training.plan.exact.memory_fit import fitting, too_large, zero_stages
from strata.training.plan.exact.orders import schedules_of
from strata.training.plan.exact.problem import Problem
from strata.workload.job import Recompute, Schedule
from strata.workload.plan import Pipeline, Stage, TrainingPlan

WHOLE_WEIGHTS: Final = 2
"""Up to this ZeRO stage a higher one holds all that a lower one does; stage 3 has layers gathered beside it."""

Refusal = Callable[[], Reason]
"""Why stages cannot run: what that takes to find out, most callers do not need."""

Layout = tuple[tuple[Domain, int], ...]
"""Domain and tensor-parallel degree of each stage, in pipeline order."""


def build_chain(
    problem: Problem, config: ParallelConfig, order: tuple[int, ...],
    *, microbatches: int | None = None, schedules: tuple[Schedule, ...] | None = None,
) -> Iterator[TrainingPlan]:  # fmt: skip
    """Yield one plan per allowed schedule that fits, in the layer split of the least bound (see `chains`)."""
    for chain in chains(problem, config, order, microbatches=microbatches, schedules=schedules):
        if isinstance(chain, Chain):
            yield from chain.plans


def chains(
    problem: Problem, config: ParallelConfig, order: tuple[int, ...],
    *, microbatches: int | None = None, schedules: tuple[Schedule, ...] | None = None, limit_s: float = np.inf,
    after_s: float = 0.0,
) -> Iterator[Chain | Refusal | None]:  # fmt: skip
    """Yield one chain per allowed schedule for domains (positions in the fleet) in this order.

    A schedule that does not fit memory yields its Refusal instead, one of which no step takes less than `limit_s`
    None; at least `after_s` follows the pipeline. `microbatches` per copy is the whole batch's unless given (a
    pipeline of several, which share the batch); `schedules` are the job's, in its order.
    """
    count = microbatches or problem.microbatches(config)
    stages: list[tuple[Domain, int]] = []
    for domain in (problem.fleet.domains[i] for i in order):
        ranks = problem.ranks(domain, config)
        if problem.layers(domain, config) is None:
            kind = f"layer times for microbatch {config.microbatch_size}, tensor parallel {ranks}"
            data = {"figure": kind, "accelerator": domain.accelerator.name}
            yield partial(Reason, "figure-missing", domain.name, data)
            return
        stages += [(domain, ranks)] * problem.stages(domain, config)
    if not 1 <= len(stages) <= len(problem.job.layers):
        return
    row = Row(problem, config, tuple(stages), count)
    among = problem.job.schedules if schedules is None else schedules
    for schedule, chunks in schedules_of(problem.job, len(stages), count, crosses=len(order) > 1, among=among):
        if schedule is Schedule.DUAL_PIPE_V:
            yield row.folded(after_s)
            continue
        chain = row.scheduled(schedule, chunks, limit_s, after_s + row.tables_s)
        yield chain
        if schedule is not Schedule.LATENCY_AWARE or not problem.is_partial:
            continue
        # Stages that recompute are slower: they hide a link with fewer microbatches in flight, and recompute less.
        if not isinstance(chain, Chain) or chain.plan.recompute is Recompute.FULL:
            slow = replace(row, is_slow=True).scheduled(schedule, chunks, limit_s, after_s + row.tables_s)
            yield replace(slow, splits=None) if isinstance(slow, Chain) else slow


@dataclass(frozen=True)
class Row:
    """Stages in order, and how many microbatches each copy works through."""

    problem: Problem
    config: ParallelConfig
    layout: Layout
    microbatches: int
    is_slow: bool = False
    """Warm-ups are those of stages that recompute all their layers."""
    is_free: bool = False
    """Messages take no time, whether there are links for them or not."""

    @classmethod
    def of(cls, problem: Problem, config: ParallelConfig, order: tuple[int, ...], microbatches: int) -> Row:
        """Return the stages of domains (positions in the fleet) of known speed in this order."""
        stages: list[tuple[Domain, int]] = []
        for domain in (problem.fleet.domains[i] for i in order):
            stages += [(domain, problem.ranks(domain, config))] * problem.stages(domain, config)
        return cls(problem, config, tuple(stages), microbatches)

    @property
    def _is_classic(self) -> bool:
        """Whether warm-ups are those of 1F1B: no others are built inside one domain (`orders.schedules_of`)."""
        is_alone = all(domain is self.layout[0][0] for domain, _ in self.layout)
        return is_alone and Schedule.ONE_F_ONE_B in self.problem.job.schedules

    @cached_property
    def whole(self) -> tuple[TrainingPlan, Splits]:
        """A plan under a schedule of whole stages, and its splits, whatever its warm-ups."""
        count, last = self.microbatches, len(self.layout) - 1
        is_filled = self.problem.is_filled and last > 0  # a stage alone has one microbatch in flight
        warmup = [count - 1 if is_filled else min(w, count - 1) for w in classic_warmup(last + 1)]
        counts = *[1] * last, len(self.problem.job.layers) - last
        plan = self._plan(counts, warmup, Schedule.GPIPE, 1)
        return plan, self.splits(plan, zero_stages(self.problem, plan), count, 1, is_ordered=False)

    def scheduled(self, schedule: Schedule, chunks: int, limit_s: float, after_s: float) -> Chain | Refusal | None:
        """Return these stages under a schedule, or why they do not fit; None: all take longer than a limit."""
        count = self.microbatches
        warmup = [min(w, count - 1) for w in classic_warmup(len(self.layout))]
        any_counts = (
            *[chunks] * (len(self.layout) - 1),
            len(self.problem.job.layers) - chunks * (len(self.layout) - 1),
        )
        plan = self._plan(any_counts, warmup, schedule, chunks)  # what memory depends on has no layers in it
        if schedule is Schedule.GPIPE:
            plan = with_warmup(plan, [count - 1] * len(self.layout))
        elif schedule is Schedule.LATENCY_AWARE:
            plan = with_layers(plan, self._free(plan, chunks))
            timed = replace(plan, recompute=Recompute.FULL) if self.is_slow else plan
            times = stack([self.problem.model.times(timed, plan.pipelines[0])])
            deeper = np.minimum(latency_aware_warmup(times, count)[0], count - 1)
            plan = with_warmup(plan, [int(w) for w in deeper])
        allowed = zero_stages(self.problem, plan)
        each = {zero: self.splits(replace(plan, zero_stage=zero), (zero,), count, chunks) for zero in allowed}
        if limit_s < np.inf and limit_s <= min(splits.bound_s for splits in each.values()) + after_s < np.inf:
            return None
        splits = None
        if len(self.layout) > 1:
            most = max(allowed)
            splits = each[most] if most <= WHOLE_WEIGHTS else self.splits(plan, allowed, count, chunks)
            if limit_s < np.inf and not max(
                self._hops_s, default=0
            ):  # beside links what copies exchange is little
                free = replace(splits, sums_of=lambda: None)  # they take ten times as long
                if limit_s <= Chain(self.problem, plan, free, 0.0, 0.0, after_s=after_s).bound_s < np.inf:
                    return None
        best = [splits.best for splits in each.values()]
        counted = [with_layers(plan, counts) for counts in dict.fromkeys(best) if counts is not None]
        plans = [fits for each_split in counted for fits in fitting(self.problem, each_split, allowed)]
        if not plans:
            return partial(self._too_large, replace(plan, zero_stage=max(allowed)), chunks)
        if len(plans) > 1:
            plans.sort(key=lambda fits: self.problem.model.bounds_s([fits])[0])
        messages = count * self.config.data_parallel
        useful_s = self.problem.compute_cost(self.config).useful_s
        most_useful_s = max(float(useful_s[self.problem.fleet.index(domain.name)]) for domain, _ in self.layout)
        return Chain(
            self.problem,
            plans[0],
            splits,
            egress_usd=messages * sum(hop.egress_usd + back.egress_usd for hop, back in self._hops),
            useful_s=messages * most_useful_s,
            others=tuple(plans[1:]),
            cuts=tuple(self._hops),
            after_s=after_s,
        )

    def _too_large(self, plan: TrainingPlan, chunks: int) -> Reason:
        plan = with_layers(plan, self._free(plan, chunks))
        if self.problem.is_partial and plan.recompute is Recompute.NONE:
            plan = replace(plan, recompute=Recompute.FULL)
        return too_large(self.problem, plan)

    def folded(self, after_s: float) -> Chain | Refusal:
        """Return these stages under DualPipeV in one split, the even one whose slowest stage is fastest, or why it
        does not fit; all stages recompute all or nothing."""
        problem, count = self.problem, self.microbatches
        warmup = [min(w, count - 1) for w in classic_warmup(len(self.layout))]
        plan = self._plan(self._even_counts(), warmup, Schedule.DUAL_PIPE_V, 2)
        allowed, modes = zero_stages(problem, plan), [plan.recompute]
        if problem.recomputes_some(self.config):
            modes.append(Recompute.FULL)
        plans = [
            fits
            for mode in modes
            if (fits := problem.model.fastest_zero(replace(plan, recompute=mode), allowed)) is not None
        ]
        if not plans:
            return partial(too_large, problem, replace(plan, recompute=modes[-1], zero_stage=max(allowed)))
        cost = problem.compute_cost(self.config)
        at = problem.fleet.index(self.layout[0][0].name)
        return Chain(
            problem, plans[0], None, egress_usd=0.0,
            useful_s=count * self.config.data_parallel * float(cost.useful_s[at]),
            others=tuple(plans[1:]), after_s=after_s,
            unsplit_s=count * max(float(cost.work_s[at]) / len(self.layout), float(cost.longest_s[at])),
        )  # fmt: skip

    def _even_counts(self) -> tuple[int, ...]:
        """Return layers of each stage, which are alike but for the first one's embedding and head."""
        domain, stages = self.layout[0][0], len(self.layout)
        layers = self.problem.layers(domain, self.config)
        assert layers is not None, "domains of unknown speed are excluded before"
        each = np.diff(layers.work)
        ends, blocks = float(each[0] + each[-1]), len(each) - 2
        mean = float(each[1:-1].mean())

        def slowest(first: int) -> float:
            return max(first * mean + ends, -(-(blocks - first) // (stages - 1)) * mean)

        first = min(range(blocks - 2 * (stages - 1) + 1), key=slowest)
        whole, more = divmod(blocks - first, stages - 1)
        return (first + 2, *(whole + (at >= stages - 1 - more) for at in range(stages - 1)))

    def _free(self, plan: TrainingPlan, chunks: int) -> tuple[int, ...]:
        """Return the split of the least bound, memory left out."""
        free = self.splits(plan, (), self.microbatches, chunks, fits=False).best
        assert free is not None, "no more stages or chunks than layers"
        return free

    def splits(
        self,
        plan: TrainingPlan,
        zero_stages: tuple[int, ...],
        count: int,
        chunks: int,
        *,
        fits: bool = True,
        is_ordered: bool = True,
    ) -> Splits:
        """Return the splits whose stages each fit under one of these ZeRO stages; not `fits`: all.

        Every stage has at least a layer for each of its `chunks`. Not `is_ordered`: warm-ups are not known, but
        under 1F1B inside one domain how many microbatches are in flight is.
        """
        config, kinds, stages = self.config, self.problem.kinds, len(self.layout)
        shapes: list[tuple[StageShape, ...]] = [()] * stages
        pipeline, warmup, in_flight, depths = plan.pipelines[0], tuple[int, ...](), 0, tuple[int, ...]()
        if fits:
            if max(zero_stages) <= WHOLE_WEIGHTS:
                zero_stages = (max(zero_stages),)
            with_zero = [replace(plan, zero_stage=zero) for zero in zero_stages]
            shapes = list(zip(*(StageShape.each_of(each, pipeline) for each in with_zero), strict=True))
            if plan.schedule not in ORDERED and is_ordered:
                warmup = tuple(min(stage.warmup, count - 1) for stage in pipeline.stages)
            if warmup or plan.schedule is Schedule.ZERO_BUBBLE or (not is_ordered and self._is_classic):
                in_flight = pipeline.stages[0].warmup + 1
            if warmup or (not is_ordered and self._is_classic):
                depths = tuple(min(stage.warmup, count - 1) for stage in pipeline.stages)
        upstream, path, busy, rounds = 1 / chunks, 1.0, tuple[float, ...](), tuple[int, ...]()
        if plan.schedule is Schedule.ZERO_BUBBLE:
            share = self.problem.compute_cost(config).weight_share
            late = [0, *(min(at + 1, count) for at in range(1, stages))]
            upstream = path = 1 - share
            busy = tuple(count - share * each for each in late)
            # Two microbatches are in flight between neighbours (`screening.ordered_bound_s`).
            rounds = tuple(max(0, count - (stages - at)) // 2 for at in range(1, stages))
        row = tuple((kinds[domain.name], ranks) for domain, ranks in self.layout)
        key = (
            row, config.work, self._hops_s, self._slowest_s, tuple(shapes), warmup, count, chunks, busy, in_flight,
        )  # fmt: skip
        if key not in self.problem.splits:
            each = [
                self._stage_s(domain, some, chunks) for (domain, _), some in zip(self.layout, shapes, strict=True)
            ]
            times = [times for times, _ in each]
            is_fixed = fits and plan.schedule in ORDERED
            self.problem.splits[key] = Splits(
                times, self._hops_s, warmup, self._slowest_s, count, upstream, path, busy, rounds,
                (lambda: self._sums(plan, times)) if is_fixed else lambda: None,
                in_flight=in_flight, depths=depths, work=self._work if depths else None,
                runs=[runs for _, runs in each],
            )  # fmt: skip
        return self.problem.splits[key]

    @cached_property
    def _work(self) -> Floats | None:
        """What the first layers take at least; None where domains are unlike."""
        [(domain, _), *others] = self.layout
        kinds = self.problem.kinds
        layers = self.problem.layers(domain, self.config)
        is_alike = all(kinds[other.name] == kinds[domain.name] for other, _ in others)
        return layers.work if layers is not None and is_alike else None

    def _sums(self, plan: TrainingPlan, times: list[Floats]) -> PlaneSums | None:
        """Return what stages in a fixed order take together; None of too many operations."""
        stages, works_s = plan.pipelines[0].stages, []
        counts = planes(plan.schedule, len(stages), self.microbatches, plan.virtual_stages)
        if not len(counts):
            return None
        for stage, whole in zip(stages, times, strict=True):
            layers = self.problem.model.stage_layers(replace(plan, recompute=self.config.recompute), stage)
            forward, useful = (each - each[:, None] for each in (layers.forward, layers.useful))
            backward = np.where(np.isfinite(whole), whole, 0.0) - forward
            works_s.append(split_work_s(plan, forward, backward, useful))
        return PlaneSums.of(counts, works_s, times)

    def _stage_s(self, domain: Domain, shapes: tuple[StageShape, ...], chunks: int) -> tuple[Floats, Floats]:
        """Return how long layers from a row to a column take on one stage [L + 1, L + 1], inf: too few or many;
        and the same by how many they are (`splits.times_of_runs`)."""
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
                times = times + reduce(np.minimum, again)
            elif shapes:
                fits &= reduce(np.logical_or, [problem.fitting(shape, limit_bytes) for shape in shapes])
            times = np.where(fits, times, np.inf)
            problem.stage_times[key] = times, times_of_runs(times)
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
        if self.is_free:
            return (0.0,) * (len(self.layout) - 1)
        return tuple(hop.serial_s + hop.latency_s + back.serial_s + back.latency_s for hop, back in self._hops)

    @cached_property
    def _slowest_s(self) -> float:
        return (
            0.0
            if self.is_free
            else max((max(hop.serial_s, back.serial_s) for hop, back in self._hops), default=0.0)
        )

    @cached_property
    def _hops(self) -> list[tuple[Hop, Hop]]:
        """What a microbatch costs at least over each cut, there and back."""
        sizes = [self.problem.message_bytes(self.config.microbatch_size)] * (len(self.layout) - 1)
        return hops(self.problem.fleet, self._pipeline, sizes)

    @cached_property
    def tables_s(self) -> float:
        """What the sum of a tied table's gradients takes."""
        tables = table_sum(self.problem.fleet, self.problem.job, self._pipeline)
        return 0.0 if tables is None else tables.serial_s + tables.latency_s

    @property
    def _pipeline(self) -> Pipeline:
        context = self.config.context_parallel
        stages = tuple(Stage(domain.name, 0, 0, ranks, 0, context) for domain, ranks in self.layout)
        return Pipeline(stages, self.config.data_parallel, self.microbatches)

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
        return with_layers(plan, counts)


def with_warmup(plan: TrainingPlan, warmup: list[int]) -> TrainingPlan:
    """Return a plan of one pipeline whose stages have these warm-ups."""
    pipeline = plan.pipelines[0]
    stages = tuple(replace(stage, warmup=w) for stage, w in zip(pipeline.stages, warmup, strict=True))
    return replace(plan, pipelines=(replace(pipeline, stages=stages),))
