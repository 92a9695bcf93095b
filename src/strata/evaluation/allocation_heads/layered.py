"""One pipeline over domains that hold given numbers of layers each: its shape, order, stages and warm-ups.

Letters: N settings of the problem, K domains of it, S stages. Inside a domain the layers are cut into stages of
equal time, moved where memory asks for it; between domains the given numbers stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.evaluation.allocation_heads.split import split
from strata.fleet.fleet import Domain
from strata.simulate.memory import FIXED_BYTES, LayerRuns, StageShape, state_bytes
from strata.simulate.pipeline import classic_warmup, latency_aware_warmup
from strata.simulate.pipeline_times import stack
from strata.training.plan.exact.config import ParallelConfig
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.routes import best_path, best_route
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, Stage, TrainingPlan

Counts = tuple[int, ...]
"""[K] layers of each domain, 0 where it takes no part."""

ATTEMPTS: Final = 24
"""Settings built at most for those wanted: some do not fit memory."""

_SCHEDULES: Final = (Schedule.LATENCY_AWARE, Schedule.ONE_F_ONE_B, Schedule.GPIPE)


@dataclass(frozen=True, slots=True)
class _Shape:
    """A setting, the domains in pipeline order, and how many layers and stages each of them has."""

    config: ParallelConfig
    order: tuple[int, ...]
    layers: tuple[int, ...]
    stages: tuple[int, ...]


class Layered:
    """Pipelines of one problem, by the layers its domains hold."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem.undivided
        self._sketches: dict[tuple[int, ...], tuple[float, float]] = {}
        self._splits: dict[object, tuple[int, ...] | None] = {}

    def plans(self, layers: Counts, *, most: int) -> list[TrainingPlan]:
        """Return at most so many plans that fit memory, of the settings that look fastest."""
        plans: list[TrainingPlan] = []
        for number in self._fastest(layers):
            plan = self._build(self.problem.configs[number], layers)
            if plan is not None:
                plans.append(plan)
            if len(plans) == most:
                break
        return plans

    def _fastest(self, layers: Counts) -> list[int]:
        """Return settings by a closed form of the step: path, slowest stage or link, gradients between copies.

        A setting needs a stage in every domain that holds layers, and room for the state of its weights.
        """
        job, members = self.problem.job, tuple(i for i, count in enumerate(layers) if count)
        data_parallel, microbatches, message, state_bytes_each, stages, layer_s, ranks = self._table
        held = np.array(layers, dtype=float)[list(members)]
        stages = np.minimum(stages[:, members], held)
        layer_s, ranks = layer_s[:, members], ranks[:, members]
        with np.errstate(divide="ignore", invalid="ignore"):
            slowest = np.ceil(held / stages) * layer_s
            slow, latency = self._sketch(members)
            load = data_parallel * message
            period = np.maximum(slowest.max(axis=1), load * slow / max(1, len(members) - 1))
            path = (held * layer_s).sum(axis=1) + load * slow + latency
            share = held / len(job.layers) * float(job.layers.params_before[-1]) / stages / ranks
            domains = [self.problem.fleet.domains[i] for i in members]
            network = np.array([d.network_bandwidth_bytes_per_s for d in domains])
            wire = network / np.clip(stages * ranks, 1, [d.devices_per_node for d in domains])
            ring = 2 * (1 - 1 / data_parallel)[:, None] * share * job.element_bytes / wire
            sync = np.maximum(0.0, ring - slowest * 2 / 3).max(axis=1)
            step_s = path + (microbatches - 1) * period + sync
        need = share * state_bytes_each[:, None]
        room = np.array([self.problem.model.memory_limit_bytes(domain) for domain in domains])
        step_s = np.where((stages >= 1).all(axis=1) & (need <= room - FIXED_BYTES).all(axis=1), step_s, np.inf)
        order = np.argsort(step_s, kind="stable")[:ATTEMPTS]
        return [int(k) for k in order if np.isfinite(step_s[k])]

    @cached_property
    def _table(self) -> tuple[Floats, ...]:
        """Copies, microbatches, bytes of a message, state of a parameter [N]; stages, layer time, ranks [N, K]."""
        problem, domains, zero = self.problem, self.problem.fleet.domains, max(self.problem.job.zero_stages)
        configs = problem.configs
        sizes = {s.microbatch_size for s in configs}
        message = {size: problem.message_bytes(size) for size in sizes}
        return (
            np.array([s.data_parallel for s in configs], dtype=float),
            np.array([problem.microbatches(s) for s in configs], dtype=float),
            np.array([message[s.microbatch_size] for s in configs]),
            np.array([state_bytes(problem.job, 1.0, shards=s.data_parallel, zero_stage=zero) for s in configs]),
            np.array([[problem.stages(d, s) for d in domains] for s in configs], dtype=float),
            np.array([problem.compute_cost(s).work_s for s in configs]) / len(problem.job.layers),
            np.array([[problem.ranks(d, s) for d in domains] for s in configs], dtype=float),
        )

    def _sketch(self, members: tuple[int, ...]) -> tuple[float, float]:
        """Return seconds a byte and latency, both ways, over the shortest route; inf where links are missing."""
        if members not in self._sketches:
            costs = self.problem.pair_costs(1)
            order, _ = best_path(self.problem.message_bytes(1) * costs.slowness_sum + costs.latency_sum, members)
            here, there = list(order[:-1]), list(order[1:])
            self._sketches[members] = (
                float(costs.slowness_sum[here, there].sum()), float(costs.latency_sum[here, there].sum())
            )  # fmt: skip
        return self._sketches[members]

    def _build(self, config: ParallelConfig, layers: Counts) -> TrainingPlan | None:
        """Return the plan of a setting under the first schedule that fits memory, or None."""
        problem, shape = self.problem, self._shape(config, layers)
        count, total = problem.microbatches(config), sum(shape.stages)
        cut = self._cut(shape)
        assert cut is not None, "every stage has a layer, and memory is not asked"
        zeros = problem.job.zero_stages if config.data_parallel > 1 else problem.job.zero_stages[:1]
        for schedule in _SCHEDULES:
            crosses = len(shape.order) > 1
            if schedule not in problem.job.schedules or (schedule is Schedule.LATENCY_AWARE and not crosses):
                continue
            warmup = [min(w, count - 1) for w in classic_warmup(total)]
            if schedule is Schedule.GPIPE:
                warmup = [count - 1] * total
            plan = self._plan(shape, cut, warmup, schedule)
            if schedule is Schedule.LATENCY_AWARE:
                times = stack([problem.model.times(plan, plan.pipelines[0])])
                warmup = [int(w) for w in np.minimum(latency_aware_warmup(times, count)[0], count - 1)]
                plan = self._plan(shape, cut, warmup, schedule)
            for zero in zeros:
                plan = replace(plan, zero_stage=zero)
                if problem.model.fits(plan):
                    return plan
            moved = self._cut(shape, [min(w + 1, count) for w in warmup], max(zeros))
            if moved is not None:
                return replace(self._plan(shape, moved, warmup, schedule), zero_stage=max(zeros))
        return None

    def _shape(self, config: ParallelConfig, layers: Counts) -> _Shape:
        problem, work_s = self.problem, self.problem.compute_cost(config).work_s / len(self.problem.job.layers)
        members = tuple(i for i, count in enumerate(layers) if count)
        stages = {i: min(problem.stages(problem.fleet.domains[i], config), layers[i]) for i in members}
        order, _ = best_route(
            problem.pair_costs(config.microbatch_size), members,
            message_bytes=problem.message_bytes(config.microbatch_size), data_parallel=config.data_parallel,
            period_s=max(-(-layers[i] // stages[i]) * float(work_s[i]) for i in members),
            microbatches=problem.microbatches(config),
        )  # fmt: skip
        return _Shape(config, order, tuple(layers[i] for i in order), tuple(stages[i] for i in order))

    def _cut(self, shape: _Shape, in_flight: Sequence[int] | None = None, zero: int = 0) -> list[int] | None:
        """Return layers a stage [S]; with `in_flight` microbatches [S] such as fit memory, or None."""
        order: list[int] = []
        first, stage = 0, 0
        for i, layers, count in zip(shape.order, shape.layers, shape.stages, strict=True):
            domain = self.problem.fleet.domains[i]
            depths = None if in_flight is None else tuple(in_flight[stage : stage + count])
            key = (self.problem.kinds[domain.name], shape.config, first, layers, count, depths, zero)
            if key not in self._splits:
                span = slice(first, first + layers + 1)
                self._splits[key] = self._split(shape.config, domain, span, count, depths, zero)
            part = self._splits[key]
            if part is None:
                return None
            order += part
            first, stage = first + layers, stage + count
        return order

    def _split(
        self, config: ParallelConfig, domain: Domain, span: slice, stages: int,
        in_flight: tuple[int, ...] | None, zero: int,
    ) -> tuple[int, ...] | None:  # fmt: skip
        ranks = self.problem.ranks(domain, config)
        times = self.problem.model.layers(domain, ranks, config.microbatch_size, config.recompute)
        assert times is not None, "a domain whose speed is not known takes for ever, and is never chosen"
        work = times.work[span] - times.work[span.start]
        if in_flight is None:
            return split([work] * stages)
        shape = StageShape(
            ranks, config.data_parallel, config.microbatch_size, config.recompute, zero_stage=zero, in_flight=1
        )
        runs, limit_bytes = LayerRuns(self.problem.job, shape), self.problem.model.memory_limit_bytes(domain)
        # The most layers from each one on: bytes grow with every layer of a run.
        rooms = [np.triu(runs.fit(depth, limit_bytes), 1).sum(axis=1).tolist() for depth in in_flight]
        return split([work] * stages, lambda stage, begin: rooms[stage][span.start + begin])

    def _plan(self, shape: _Shape, cut: list[int], warmup: list[int], schedule: Schedule) -> TrainingPlan:
        domains = [self.problem.fleet.domains[i] for i in shape.order]
        where = [d for d, count in zip(domains, shape.stages, strict=True) for _ in range(count)]
        stages, first = [], 0
        for domain, layers, depth in zip(where, cut, warmup, strict=True):
            stages.append(Stage(domain.name, first, layers, self.problem.ranks(domain, shape.config), depth))
            first += layers
        config = shape.config
        pipeline = Pipeline(tuple(stages), config.data_parallel, self.problem.microbatches(config))
        return TrainingPlan((pipeline,), config.microbatch_size, schedule, config.recompute)
