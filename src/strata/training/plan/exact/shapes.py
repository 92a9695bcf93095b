"""The inner shapes that use all of a unit, and what each can do at most before its layers are split.

No stage is built for it: a unit has dozens of shapes at every microbatch, and a search looks at few of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.clock import Check, unlimited
from strata.fleet.fleet import Domain
from strata.simulate.copies import shared_weights
from strata.simulate.memory import FIXED_BYTES, StageShape, kept_bytes, layer_state_bytes, transient_bytes
from strata.training.plan.exact.config import CommonConfig, ParallelConfig
from strata.training.plan.exact.copy_sums import after_s, gradients_s
from strata.training.plan.exact.problem import Problem
from strata.workload.job import Recompute
from strata.workload.plan import Stage

Unit = tuple[int, ...]
"""Positions of the domains in the fleet, in pipeline order."""


@dataclass(frozen=True, slots=True)
class ShapeBounds:
    """What some shapes of a unit can do at most, arrays [shapes].

    With W the work of a microbatch over S stages, M microbatches take at least W + (M - 1) × the longest
    operation, and at least W / (1 - (1 - 1/M)^S) >= W / S (M + (S - 1) / 2). Where all stages have like devices
    and share N layers of time t, some stage holds q = ceil(N/S) or more. If none holds more, the last of those
    comes after at least S - r - 1 others, r = qS - N: at least q t (M + S - r - 1), else (q + 1) t M.
    """

    work_s: Floats
    stages: Ints
    samples: Ints
    """Samples one microbatch of every copy makes together."""
    pace_s: Floats
    hidden_s: Floats
    """At most so much of a gradient sum between units the last backward hides."""
    full: Ints
    """Like layers of a fullest stage."""
    short: Ints
    """Like layers that would be missing if all stages were as full."""
    layer_s: Floats
    after_s: Floats
    """What follows the microbatches at least: sums between copies, and updates."""

    @property
    def first_s(self) -> Floats:
        """Time of one microbatch."""
        return self.work_s + self.after_s

    @property
    def rate(self) -> float:
        """Samples a second in the best shape, in steady state."""
        return float((self.samples * self.stages / self.work_s).max(initial=0.0))

    def most_samples(self, limits_s: Floats) -> Floats:
        """Return a bound on the samples within each time limit [shapes, limits]."""
        work, stages, left_s = self.work_s[:, None], self.stages[:, None], limits_s - self.after_s[:, None]
        most = np.minimum((left_s - work) / self.pace_s[:, None] + 1, stages * left_s / work - (stages - 1) / 2)
        step = (self.full * self.layer_s)[:, None]
        even = left_s / step - (self.stages - self.short - 1)[:, None]
        fuller = left_s / (step + self.layer_s[:, None])
        most = np.minimum(most, np.maximum(even, fuller))
        most = np.where(left_s >= work * (1 - 1e-12), np.floor(most * (1 + 1e-12) + 1e-9), 0.0)
        return np.asarray(np.maximum(0.0, most) * self.samples[:, None])


class Rates(NamedTuple):
    """What domains do at most in a common setting, arrays [domains]."""

    samples_per_s: Floats
    sample_usd: Floats
    """What a sample costs at least."""
    first_s: Floats
    """What one microbatch takes at least."""
    sample_useful_s: Floats
    """Device-seconds of use a sample at most: see `ComputeCost`."""


@dataclass(frozen=True)
class _Whole:
    """The shapes that use all of a unit, at microbatches of one sample; stages a domain [shapes, domains]."""

    configs: tuple[ParallelConfig, ...]
    stages: Ints
    way: Ints
    """Which of `Shapes._ways` each is."""
    state_bytes: Floats
    """What a like layer's weights, gradients and optimizer take a device."""

    @cached_property
    def total(self) -> Ints:
        return np.asarray(self.stages.sum(axis=1))

    @cached_property
    def ranks(self) -> Ints:
        return np.array([c.tensor_parallel * c.context_parallel for c in self.configs], dtype=np.int64)

    @cached_property
    def copies(self) -> Ints:
        return np.array([c.data_parallel * c.context_parallel for c in self.configs], dtype=np.int64)

    @cached_property
    def data_parallel(self) -> Ints:
        return np.array([config.data_parallel for config in self.configs], dtype=np.int64)

    def config(self, row: int, common: CommonConfig) -> ParallelConfig:
        """Return a shape at the microbatch that pipelines have in common."""
        return replace(self.configs[row], microbatch_size=common.microbatch_size)


def _at(shape: ParallelConfig, common: CommonConfig) -> ParallelConfig:
    """Return a setting in which the same is common to pipelines."""
    return replace(
        shape, microbatch_size=common.microbatch_size, recompute=common.recompute,
        context_exchange=common.context_exchange, expert_parallel=common.expert_parallel,
    )  # fmt: skip


class Shapes:
    """The shapes of every unit at every microbatch, with and without recomputation."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._whole: dict[tuple[Unit, CommonConfig], _Whole] = {}
        self._figures: dict[tuple[int, CommonConfig], Floats] = {}
        self._states: dict[object, float] = {}
        self._transient: dict[object, Floats] = {}

    def fastest_first(self, unit: Unit, common: CommonConfig) -> Iterator[ParallelConfig]:
        """Yield the settings that use all of a unit and might fit its memory, the fastest first."""
        yield from sorted(self.settings(unit, common), key=lambda config: self._pace(unit, config))

    def bounds(self, unit: Unit, common: CommonConfig) -> ShapeBounds:
        """Return what these shapes can do at most."""
        shapes, rows = self._fitting(unit, common)
        kinds = {self.problem.kinds[self.problem.fleet.domains[i].name] for i in unit}
        if len(kinds) == 1:
            return self._alike(unit, common, shapes, rows)
        each = [self._unlike(unit, shapes.config(row, common), shapes.stages[row]) for row in rows.tolist()]
        columns = [np.array(column) for column in zip(*each, strict=True)] or [np.empty(0)] * 9
        return ShapeBounds(*columns)

    def settings(self, unit: Unit, common: CommonConfig) -> list[ParallelConfig]:
        """Return the settings of `bounds`, in its order."""
        shapes, rows = self._fitting(unit, common)
        return [shapes.config(row, common) for row in rows.tolist()]

    def rates(self, members: Sequence[int], *, check: Check = unlimited) -> dict[CommonConfig, Rates]:
        """Return by what pipelines have in common what each of some domains does at most."""
        problem = self.problem
        domains = [problem.fleet.domains[i] for i in members]
        usd_per_s = np.array([(domain.price_usd_per_device_hour or 0.0) / 3600 for domain in domains])
        rates: dict[CommonConfig, Rates] = {}
        slots: dict[tuple[int, int], tuple[Floats, Floats]] = {}
        for shapes in self._configs.values():
            ways = {(c.tensor_parallel, c.context_parallel): c for c in shapes}
            for size in problem.microbatch_sizes:
                check()
                (best, useful_s), (least_usd, first_s) = (
                    np.zeros((2, len(domains))),
                    np.full((2, len(domains)), np.inf),
                )
                for way, shape in ways.items():
                    if way not in slots:
                        room = np.array([problem.slots(domain, *way) for domain in domains], dtype=float)
                        slots[way] = room, usd_per_s * [problem.stage_devices(domain, shape) for domain in domains]
                    config = replace(shape, microbatch_size=size)
                    cost = problem.compute_cost(config)
                    work_s, useful_s = (
                        cost.work_s[list(members)],
                        np.maximum(useful_s, cost.useful_s[list(members)]),
                    )
                    best = np.maximum(best, slots[way][0] / work_s)
                    first_s = np.minimum(first_s, work_s)
                    # Where the speed is not known no work is done, whatever it costs.
                    usd = np.multiply(slots[way][1], work_s, where=np.isfinite(work_s), out=work_s.copy())
                    least_usd = np.minimum(least_usd, usd)
                rates[config.common] = Rates(best * size, least_usd / size, first_s, useful_s / size)
        return rates

    def _alike(self, unit: Unit, common: CommonConfig, shapes: _Whole, rows: Ints) -> ShapeBounds:
        total, made = shapes.total[rows], shapes.data_parallel[rows] * common.microbatch_size
        figures = self._figures_of(unit[0], common)[shapes.way[rows]]
        work_s, backward_s, equal, layer_s, operation_s, update_s, forward_s = figures.T
        full = -(-equal.astype(np.int64) // total)
        exchanged_s = np.zeros(len(rows))
        if max(self.problem.job.zero_stages) >= 2:
            domains = [self.problem.fleet.domains[i] for i in unit]
            exchanged_s += [
                self._exchanged_s(domains, shapes.config(row, common), shapes.stages[row]) for row in rows.tolist()
            ]
        return ShapeBounds(
            work_s, total, made, np.maximum(full * operation_s, work_s / total / 2),
            (backward_s + exchanged_s) / total, full, full * total - equal.astype(np.int64), layer_s,
            self._after_s(unit, shapes, rows, (forward_s, backward_s, update_s)) / total,
        )  # fmt: skip

    def _after_s(self, unit: Unit, shapes: _Whole, rows: Ints, each_s: tuple[Floats, Floats, Floats]) -> Floats:
        """Return what follows the microbatches at least, all stages together (`copy_sums.after_s`)."""
        domains, sums_s = [self.problem.fleet.domains[i] for i in unit], np.zeros((4, len(rows)))
        if max(self.problem.job.zero_stages) < 2:
            for at, row in enumerate(rows.tolist()):
                each = [gradients_s(self.problem, domain, shapes.configs[row]) for domain in domains]
                sums_s[:, at] = np.min(each, axis=0)
        return after_s(
            self.problem.job, sums_s, stages=shapes.total[rows], shards=shapes.copies[rows],
            ways_s=(each_s[0], each_s[1]), update_s=each_s[2], is_apart=self.problem.splitting.is_any,
        )  # fmt: skip

    def _unlike(
        self, unit: Unit, config: ParallelConfig, stages: Ints
    ) -> tuple[float, int, int, float, float, int, int, float, float]:
        problem, total = self.problem, int(stages.sum())
        domains, cost = [problem.fleet.domains[i] for i in unit], problem.compute_cost(config)
        works = cost.work_s[list(unit)]
        pace = 1 / float((stages / works).sum())
        backward_s = problem.compute_cost(problem.longest_backwards(config)).backward_s
        hidden_s = (backward_s + self._exchanged_s(domains, config, stages)) / total
        samples = config.microbatch_size * config.data_parallel
        # Of the slowest stage forward or backward is half; it counts as one of a like layer each.
        return float(works.min()), total, samples, pace / 2, hidden_s, 1, total - 1, pace, 0.0

    def _exchanged_s(self, domains: list[Domain], config: ParallelConfig, stages: Ints) -> float:
        """Return by how much at most exchanges of shards lengthen all backwards (`simulate.copies`)."""
        job, longest_s = self.problem.job, 0.0
        if max(job.zero_stages) < 2:
            return 0.0
        for domain, count in zip(domains, stages, strict=True):
            whole = Stage(
                domain.name, 0, len(job.layers), self.problem.ranks(domain, config), 0, config.context_parallel
            )
            parts = shared_weights(
                job, domain, whole, replicas=config.data_parallel,
                copy_devices=self.problem.stage_devices(domain, config) * int(count),
                expert_parallel=config.expert_parallel,
            )  # fmt: skip
            longest_s = max(longest_s, sum(float(part.half_rings_s(domain, None).sum()) for part in parts))
        return 2 * longest_s

    def _figures_of(self, index: int, common: CommonConfig) -> Floats:
        """Return what layers take in a domain in each way to split them [ways, 7], NaN where that is not known.

        Work of all layers, their backward at most; the largest group alike in time: how many, their time, and that
        of the longer way; and updates and forward of all.
        """
        domain, common = self.problem.fleet.domains[index], replace(common, holds_outer=False)
        key = self.problem.kinds[domain.name], common
        if key not in self._figures:
            table = np.full((len(self._ways), 7), np.nan)
            for row, shape in enumerate(self._ways.values()):
                layers = self.problem.layers(domain, _at(shape, common))
                if layers is None:
                    continue
                times = np.diff(layers.work)
                count, layer_s = equal_layers(times)
                alike = np.isclose(times, layer_s, rtol=1e-6, atol=0.0)
                longer = np.maximum(np.diff(layers.forward)[alike].min(), np.diff(layers.backward)[alike].min())
                again = self.problem.layers(domain, self.problem.longest_backwards(_at(shape, common)))
                assert again is not None, "speed does not depend on what is recomputed"
                ways_s = layers.work[-1], again.backward[-1], layers.update[-1], layers.forward[-1]
                table[row] = *ways_s[:2], count, layer_s, longer, *ways_s[2:]
            self._figures[key] = table
        return self._figures[key]

    @cached_property
    def _ways(self) -> dict[tuple[int, int], ParallelConfig]:
        """One setting of each tensor-parallel degree and number of pieces."""
        return {(c.tensor_parallel, c.context_parallel): c for c in reversed(self.problem.configs)}

    def _fitting(self, unit: Unit, common: CommonConfig) -> tuple[_Whole, Ints]:
        """Return the shapes that use all of a unit, and which of them might fit its memory."""
        key = (unit, replace(common, microbatch_size=1))
        if key not in self._whole:
            self._whole[key] = self._using(*key)
        shapes, domains = self._whole[key], [self.problem.fleet.domains[i] for i in unit]
        fits = shapes.data_parallel * common.microbatch_size <= self.problem.job.global_batch
        fits &= self._may_fit(shapes, common, max(self.problem.model.memory_limit_bytes(d) for d in domains))
        for index in unit:
            fits &= np.isfinite(self._figures_of(index, common)[shapes.way, 0])
        return shapes, np.flatnonzero(fits)

    def _may_fit(self, shapes: _Whole, common: CommonConfig, limit_bytes: float) -> Bools:
        """Whether memory could hold the model's large layers: `ChainSpace.may_fit` of all shapes at once."""
        most = self._most_layers(shapes, common, limit_bytes)
        if self.problem.recomputes_some(common):
            full = replace(common, recompute=Recompute.FULL)
            most = np.maximum(most, self._most_layers(shapes, full, limit_bytes))
        depth = np.arange(1, most.shape[1] + 1)
        return np.asarray(
            np.where(depth <= shapes.total[:, None], most, 0).sum(axis=1) >= len(self.problem.large_layers)
        )

    def _most_layers(self, shapes: _Whole, common: CommonConfig, limit_bytes: float) -> Floats:
        """Return how many large layers the last stage, the one before it, … of each shape could hold."""
        job, large = self.problem.job, self.problem.large_layers
        kept = float(kept_bytes(job.layers, common.recompute)[large].min()) * common.microbatch_size / shapes.ranks
        count = -(-job.global_batch // (common.microbatch_size * shapes.data_parallel))
        in_flight = np.minimum(np.arange(1, int(shapes.total.max(initial=0)) + 1), count[:, None])
        room = limit_bytes - FIXED_BYTES - self._again_bytes(common)[shapes.way]
        most = np.floor(room[:, None] / (shapes.state_bytes[:, None] + in_flight * kept[:, None]) * (1 + 1e-9))
        return np.asarray(np.maximum(0.0, most))

    def _again_bytes(self, common: CommonConfig) -> Floats:
        """Return what is there only while a stage works on a large layer, in each way to split it [ways]."""
        key = common.microbatch_size, common.recompute, common.expert_parallel
        if key not in self._transient:
            large = self.problem.large_layers
            each = [
                StageShape(
                    tensor_parallel, 1, common.microbatch_size, common.recompute, zero_stage=0, in_flight=1,
                    context_parallel=context_parallel, expert_parallel=common.expert_parallel,
                )
                for tensor_parallel, context_parallel in self._ways
            ]  # fmt: skip
            self._transient[key] = np.array(
                [transient_bytes(self.problem.job, shape)[large].min() for shape in each]
            )
        return self._transient[key]

    def _state_bytes(self, config: ParallelConfig) -> float:
        """Return what a large layer's weights, gradients and optimizer take a device at least."""
        job, shards = self.problem.job, config.data_parallel * config.context_parallel
        key = (config.tensor_parallel, shards, config.expert_parallel, config.holds_outer)
        if key not in self._states:
            shape = StageShape(
                config.tensor_parallel, shards, 1, config.recompute, max(job.zero_stages), in_flight=1,
                holds_outer=config.holds_outer, expert_parallel=config.expert_parallel,
            )  # fmt: skip
            self._states[key] = float(layer_state_bytes(job, shape)[self.problem.large_layers].min())
        return self._states[key]

    @cached_property
    def _configs(self) -> dict[CommonConfig, list[ParallelConfig]]:
        """Every shape for microbatches of one sample, by what pipelines of a plan have in common."""
        configs: dict[CommonConfig, list[ParallelConfig]] = {}
        shapes = self.problem.shapes
        for holds_outer in (False, True) if self.problem.job.local_steps else (False,):
            for config in (replace(shape, holds_outer=holds_outer) for shape in shapes):
                configs.setdefault(config.common, []).append(config)
        return configs

    @property
    def commons(self) -> tuple[CommonConfig, ...]:
        """What the pipelines of a plan may have in common."""
        sizes = self.problem.microbatch_sizes
        return tuple(replace(common, microbatch_size=size) for size in sizes for common in self._configs)

    def _using(self, unit: Unit, common: CommonConfig) -> _Whole:
        problem, depth, layers = self.problem, self.problem.job.pins.pipeline, len(self.problem.job.layers)
        configs = self._configs.get(common, [])
        ways = [(config.tensor_parallel, config.context_parallel) for config in configs]
        domains = [problem.fleet.domains[i] for i in unit]
        slots = {way: [problem.slots(domain, *way) for domain in domains] for way in dict.fromkeys(ways)}
        each = np.array([(c.data_parallel, c.cap) for c in configs], dtype=np.int64).reshape(-1, 2, 1)
        room = np.array([slots[way] for way in ways], dtype=np.int64).reshape(len(ways), len(unit))
        stages, pins = np.minimum(room // each[:, 0], each[:, 1]), problem.job.pins
        if pins.stages is not None:
            fixed = np.array([pins.stages_in(domain.name) for domain in domains])
            stages = np.where(fixed <= room // each[:, 0], fixed, 0)
        total = stages.sum(axis=1)
        # No room for one more stage a copy, or for one more copy.
        is_full = (stages == room // each[:, 0]) | (each[:, 0] == room // np.maximum(stages, 1))
        wanted = is_full.all(axis=1) if depth is None else total == depth
        if pins.stages is not None and depth is None:
            wanted = np.ones_like(wanted)
        wanted &= (stages > 0).all(axis=1) & (total <= layers)
        # Settings that differ in a cap that does not bind are one shape.
        first: dict[tuple[int, ...], int] = {}
        for row in np.flatnonzero(wanted).tolist():
            first.setdefault((*ways[row], configs[row].data_parallel, *stages[row].tolist()), row)
        rows = list(first.values())
        picked, number = tuple(configs[row] for row in rows), {way: at for at, way in enumerate(self._ways)}
        held = [self._state_bytes(config) for config in picked]
        return _Whole(
            picked, stages[rows], np.array([number[ways[row]] for row in rows], dtype=np.int64), np.array(held)
        )

    def _pace(self, unit: Unit, config: ParallelConfig) -> float:
        """Return about how long a sample takes in steady state: whole layers, on average speed."""
        throughput, total = [], 0
        for domain in (self.problem.fleet.domains[i] for i in unit):
            layers, count = self.problem.layers(domain, config), self.problem.stages(domain, config)
            assert layers is not None, "shapes of unknown speed are left out"
            throughput.append(count / float(layers.work[-1]))
            total += count
        whole = len(self.problem.job.layers)
        uneven = -(-whole // total) * total / whole
        return uneven / sum(throughput) / config.data_parallel


def equal_layers(layer_s: Floats) -> tuple[int, float]:
    """Return the largest group of layers that take the same time: how many, and how long each at least."""
    scale = max(float(layer_s.max()), 1e-300)
    values, group, counts = np.unique((layer_s / scale).round(9), return_inverse=True, return_counts=True)
    pick = int(np.argmax(values * counts))
    return int(counts[pick]), float(layer_s[group == pick].min())
