"""What can hold one copy of the model: a domain, or the chain of a region's domains; and how fast it works."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.simulate.pipeline_times import stack
from strata.simulate.screening import one_f_one_b_s, path_s, stage_bounds_s
from strata.training.plan.exact.chain import build_chain
from strata.training.plan.exact.chain_space import ChainSpace
from strata.training.plan.exact.problem import ParallelConfig, Problem
from strata.workload.job import Recompute, Schedule
from strata.workload.plan import TrainingPlan

Unit = tuple[int, ...]
"""Positions of the domains in the fleet, in pipeline order."""

FASTEST: Final = 24
"""Inner shapes of a unit that are considered: those that could work through most samples per second."""


@dataclass(frozen=True, slots=True)
class Inner:
    """One way to run a unit. A step of M microbatches per copy takes at least after + max(before_i + M × work_i
    for its stages, path + (M - 1) × pace), pace the slowest single operation or message
    (see `screening.lower_bound_s`)."""

    plan: TrainingPlan
    period_s: float
    path_s: float
    pace_s: float
    after_s: float
    every_s: float
    """Time between microbatches in steady state, waits for the links of a chain included: at least the period."""
    hidden_s: float
    """How much of a gradient sum between units the last backward can hide: that of the shortest stage."""
    stages_s: tuple[tuple[float, float], ...]
    """What is upstream of a stage, and its own work on a microbatch; without stages that others always exceed."""

    @property
    def samples(self) -> int:
        """Samples one microbatch of every copy makes together."""
        return self.plan.microbatch_size * self.plan.pipelines[0].replicas

    @property
    def fill_s(self) -> float:
        """Time of the first microbatch, and of what follows the last."""
        return self.path_s + self.after_s

    def least_s(self, microbatches: int) -> float:
        """Return a bound on the time of so many microbatches per copy."""
        busy = max((before + microbatches * work for before, work in self.stages_s), default=0.0)
        return self.after_s + max(busy, self.path_s + (microbatches - 1) * self.pace_s)

    def most_samples(self, limits_s: Floats) -> Floats:
        """Return a bound on the samples within each time limit."""
        left = limits_s - self.after_s
        most = np.floor((left - self.path_s) / max(self.pace_s, 1e-300) + 1 + 1e-9)
        for before, work in self.stages_s:
            most = np.minimum(most, np.floor((left - before) / work + 1e-9))
        return np.asarray(np.maximum(0.0, most) * self.samples)


class Units:
    """The inner shapes of every unit, built once per (unit, microbatch, recompute)."""

    def __init__(self, problem: Problem, *, fastest: int = FASTEST) -> None:
        """Consider the `fastest` shapes of a unit that fit."""
        self.problem, self.fastest = problem, fastest
        self._inners: dict[tuple[Unit, int, Recompute], list[Inner]] = {}
        self._like: dict[tuple[object, int, Recompute], list[Inner]] = {}

    def inners(self, unit: Unit, microbatch_size: int, recompute: Recompute) -> list[Inner]:
        """Return the fastest ways to run a unit that fit memory, none where it cannot hold the model."""
        key = (unit, microbatch_size, recompute)
        if key not in self._inners:
            like = self.inners_of_kind(unit, microbatch_size, recompute)
            name = self.problem.fleet.domains[unit[0]].name
            self._inners[key] = like if len(unit) > 1 else [_moved(inner, name) for inner in like]
        return self._inners[key]

    def inners_of_kind(self, unit: Unit, microbatch_size: int, recompute: Recompute) -> list[Inner]:
        """Return `inners` with the name of another unit of its kind, perhaps: their times are the same."""
        kind = (self.kind(unit), microbatch_size, recompute)
        if kind not in self._like:
            self._like[kind] = list(self._ways(unit, microbatch_size, recompute))
        return self._like[kind]

    def kind(self, unit: Unit) -> object:
        """Return what makes units interchangeable: everything of a single domain but its name and price."""
        if len(unit) > 1:
            return unit
        domain = self.problem.fleet.domains[unit[0]]
        return replace(domain, name="", region="", price_usd_per_device_hour=None)

    def _ways(self, unit: Unit, microbatch_size: int, recompute: Recompute) -> Iterator[Inner]:
        num_fitting, batch = 0, self.problem.job.global_batch
        for config in self._shapes(unit, microbatch_size, recompute):
            plans = [
                p
                for p in build_chain(self.problem, config, unit, microbatches=batch)
                # All units follow one schedule, whose bounds are those of whole stages.
                if isinstance(p, TrainingPlan) and p.schedule not in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE)
            ]
            yield from (self._timed(plan) for plan in plans)
            num_fitting += bool(plans)
            if num_fitting == self.fastest:
                return

    @cached_property
    def _configs(self) -> dict[tuple[int, Recompute], list[ParallelConfig]]:
        """Every shape at every microbatch that a copy of it could have."""
        shapes = dict.fromkeys(replace(config, microbatch_size=1) for config in self.problem.configs)
        return {
            (size, recompute): [
                replace(shape, microbatch_size=size)
                for shape in shapes
                if shape.recompute is recompute and size * shape.data_parallel <= self.problem.job.global_batch
            ]
            for size in self.problem.microbatch_sizes
            for recompute in self.problem.job.recompute
        }

    def _shapes(self, unit: Unit, microbatch_size: int, recompute: Recompute) -> Iterator[ParallelConfig]:
        """Yield the settings that use all of a unit and might fit its memory, the fastest first."""
        problem, space, depth = self.problem, ChainSpace(self.problem, unit), self.problem.job.pins.pipeline
        candidates: dict[tuple[int, int], tuple[float, int, ParallelConfig]] = {}
        for config in self._configs.get((microbatch_size, recompute), ()):
            shape = (config.tensor_parallel, config.data_parallel)
            if shape in candidates:
                continue
            stages = [problem.stages(domain, config) for domain in space.domains]
            whole = all(
                count == problem.slots(domain, config.tensor_parallel) // config.data_parallel
                for count, domain in zip(stages, space.domains, strict=True)
            )
            total = sum(stages)
            wanted = whole if depth is None else total == depth
            if not wanted or 0 in stages or total > len(problem.job.layers):
                continue
            candidates[shape] = (self._pace(space, config, stages) / config.data_parallel, total, config)
        for _, total, config in sorted(candidates.values(), key=lambda item: item[0]):
            if space.may_fit(config, np.array([total]))[0]:
                yield config

    def _pace(self, space: ChainSpace, config: ParallelConfig, stages: list[int]) -> float:
        """Return about how long a microbatch takes in steady state: whole layers, on average speed."""
        throughput = []
        for domain, count in zip(space.domains, stages, strict=True):
            ranks = self.problem.ranks(domain, config)
            layers = self.problem.model.layers(domain, ranks, config.microbatch_size, config.recompute)
            if layers is None:
                return np.inf
            throughput.append(count / float(layers.work[-1]))
        whole = len(self.problem.job.layers)
        uneven = -(-whole // sum(stages)) * sum(stages) / whole
        return uneven / sum(throughput)

    def _timed(self, plan: TrainingPlan) -> Inner:
        model, pipeline = self.problem.model, plan.pipelines[0]
        times = model.times(plan, pipeline)
        messages = [hop.serial_s for hop in (*times.there, *times.back)]
        stacked = stack([times])
        before, work = (each[0] for each in stage_bounds_s(stacked))
        period_s, way_s = max(float(work.max()), *messages, 0.0), float(path_s(stacked)[0])
        every_s = period_s
        if len(plan.domains) > 1 and plan.schedule is not Schedule.GPIPE:
            warmup = np.array([stage.warmup for stage in pipeline.stages], dtype=float)
            whole_s = float(one_f_one_b_s(stacked, pipeline.microbatches, warmup)[0])
            every_s = max(period_s, (whole_s - way_s) / max(1, pipeline.microbatches - 1))
        return Inner(
            plan,
            period_s=period_s,
            path_s=way_s,
            every_s=every_s,
            pace_s=max(*times.forward_s, *times.backward_s, *messages),
            after_s=times.closing_s + times.sync_s,
            hidden_s=min(times.backward_s),
            stages_s=_unexceeded(before, work),
        )


def _unexceeded(before: Floats, work: Floats) -> tuple[tuple[float, float], ...]:
    """Return the stages (before, work) that no other, with no less of both, stands for; those without work go."""
    kept: list[tuple[float, float]] = []
    for a, t in sorted(zip(before.tolist(), work.tolist(), strict=True), reverse=True):
        if t > 0 and all(t > other for _, other in kept):
            kept.append((a, t))
    return tuple(kept)


def _moved(inner: Inner, domain: str) -> Inner:
    """Return the same shape in another domain of the same kind."""
    pipeline = inner.plan.pipelines[0]
    stages = tuple(replace(stage, domain=domain) for stage in pipeline.stages)
    return replace(inner, plan=replace(inner.plan, pipelines=(replace(pipeline, stages=stages),)))
