"""One pipeline over domains that hold given numbers of layers each: its shape, order, stages and warm-ups.

Letters: N settings of the problem, K domains of it, S stages. Inside a domain the layers are cut into stages of
equal time, moved where memory asks for it; between domains the given numbers stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.fleet.fleet import Domain
from strata.simulate.analytic import stack
from strata.simulate.memory import FIXED_BYTES, StageRoom, state_bytes
from strata.simulate.pipeline import classic_warmup, latency_aware_warmup
from strata.training.exact.problem import Problem, Setting
from strata.training.exact.routes import best_path, best_route
from strata.training.exact.split import split
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, Stage, TrainingPlan

Floats = NDArray[np.float64]
Counts = tuple[int, ...]
"""[K] layers of each domain, 0 where it takes no part."""

ATTEMPTS: Final = 24
"""Settings built at most for those wanted: some do not fit memory."""

_SCHEDULES: Final = (Schedule.LATENCY_AWARE, Schedule.ONE_F_ONE_B, Schedule.GPIPE)


class Layered:
    """Pipelines of one problem, by the layers its domains hold."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._sketches: dict[tuple[int, ...], tuple[float, float]] = {}
        self._splits: dict[object, tuple[int, ...] | None] = {}

    def plans(self, layers: Counts, *, most: int) -> list[TrainingPlan]:
        """Return at most so many plans that fit memory, of the settings that look fastest."""
        found: list[TrainingPlan] = []
        for number in self._fastest(layers):
            plan = self._build(self.problem.settings[number], layers)
            if plan is not None:
                found.append(plan)
            if len(found) == most:
                break
        return found

    def _fastest(self, layers: Counts) -> list[int]:
        """Return settings by a closed form of the step: path, slowest stage or link, gradients between copies.

        A setting needs a stage in every domain that holds layers, and room for the state of its weights.
        """
        job, members = self.problem.job, tuple(i for i, count in enumerate(layers) if count)
        copies, microbatches, message, state_bytes_each, stages, layer_s, ranks = self._table
        held = np.array(layers, dtype=float)[list(members)]
        stages = np.minimum(stages[:, members], held)
        layer_s, ranks = layer_s[:, members], ranks[:, members]
        with np.errstate(divide="ignore", invalid="ignore"):
            slowest = np.ceil(held / stages) * layer_s
            slow, latency = self._sketch(members)
            load = copies * message
            period = np.maximum(slowest.max(axis=1), load * slow / max(1, len(members) - 1))
            path = (held * layer_s).sum(axis=1) + load * slow + latency
            share = held / len(job.layers) * float(job.layers.params_before[-1]) / stages / ranks
            ring = (
                2 * (1 - 1 / copies)[:, None] * share * job.element_bytes / self._wire_bytes_per_s[list(members)]
            )
            sync = np.maximum(0.0, ring - slowest * 2 / 3).max(axis=1)
            step_s = path + (microbatches - 1) * period + sync
        need = share * state_bytes_each[:, None]
        room = np.array([self.problem.model.memory_limit_bytes(self.problem.fleet.domains[i]) for i in members])
        step_s = np.where((stages >= 1).all(axis=1) & (need <= room - FIXED_BYTES).all(axis=1), step_s, np.inf)
        order = np.argsort(step_s, kind="stable")[:ATTEMPTS]
        return [int(k) for k in order if np.isfinite(step_s[k])]

    @cached_property
    def _table(self) -> tuple[Floats, ...]:
        """Copies, microbatches, bytes of a message, state of a parameter [N]; stages, layer time, ranks [N, K]."""
        problem, domains, zero = self.problem, self.problem.fleet.domains, max(self.problem.job.zero_stages)
        settings = problem.settings
        sizes = {s.microbatch_size for s in settings}
        message = {size: problem.message_bytes(size) for size in sizes}
        return (
            np.array([s.copies for s in settings], dtype=float),
            np.array([problem.microbatches(s) for s in settings], dtype=float),
            np.array([message[s.microbatch_size] for s in settings]),
            np.array([state_bytes(problem.job, 1.0, replicas=s.copies, zero_stage=zero) for s in settings]),
            np.array([[problem.stages(d, s) for d in domains] for s in settings], dtype=float),
            np.array([problem.effort(s).work_s for s in settings]) / len(problem.job.layers),
            np.array([[problem.ranks(d, s) for d in domains] for s in settings], dtype=float),
        )

    @cached_property
    def _wire_bytes_per_s(self) -> Floats:
        return np.array([d.network_bandwidth_bytes_per_s / d.devices_per_node for d in self.problem.fleet.domains])

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

    def _build(self, setting: Setting, layers: Counts) -> TrainingPlan | None:
        """Return the plan of a setting under the first schedule that fits memory, or None."""
        problem = self.problem
        order = self._order(setting, layers)
        stages = [min(problem.stages(problem.fleet.domains[i], setting), layers[i]) for i in order]
        count, total = problem.microbatches(setting), sum(stages)
        for schedule in _SCHEDULES:
            crosses = len(order) > 1
            if schedule not in problem.job.schedules or (schedule is Schedule.LATENCY_AWARE and not crosses):
                continue
            warmup = [min(w, count - 1) for w in classic_warmup(total)]
            if schedule is Schedule.GPIPE:
                warmup = [count - 1] * total
            zeros = problem.job.zero_stages if setting.copies > 1 else problem.job.zero_stages[:1]
            cut = self._cut(setting, order, layers, stages, None, 0)
            assert cut is not None, "every stage has a layer, and memory is not asked"
            plan = self._plan(setting, order, stages, cut, warmup, schedule)
            if schedule is Schedule.LATENCY_AWARE:
                times = stack([problem.model.times(plan, plan.pipelines[0])])
                warmup = [int(w) for w in np.minimum(latency_aware_warmup(times, count)[0], count - 1)]
                plan = self._plan(setting, order, stages, cut, warmup, schedule)
            for zero in zeros:
                plan = replace(plan, zero_stage=zero)
                if problem.model.fits(plan):
                    return plan
            in_flight = [min(w + 1, count) for w in warmup]
            moved = self._cut(setting, order, layers, stages, in_flight, max(zeros))
            if moved is not None:
                plan = self._plan(setting, order, stages, moved, warmup, schedule)
                return replace(plan, zero_stage=max(zeros))
        return None

    def _order(self, setting: Setting, layers: Counts) -> tuple[int, ...]:
        members = tuple(i for i, count in enumerate(layers) if count)
        work_s = self.problem.effort(setting).work_s / len(self.problem.job.layers)
        period = max(
            -(-layers[i] // self.problem.stages(self.problem.fleet.domains[i], setting)) * float(work_s[i])
            for i in members
        )
        order, _ = best_route(
            self.problem.pair_costs(setting.microbatch_size), members,
            message_bytes=self.problem.message_bytes(setting.microbatch_size), copies=setting.copies,
            period_s=period, microbatches=self.problem.microbatches(setting),
        )  # fmt: skip
        return order

    def _cut(
        self, setting: Setting, order: Counts, layers: Counts, stages: list[int],
        in_flight: list[int] | None, zero: int,
    ) -> list[int] | None:  # fmt: skip
        """Return layers a stage [S]; with `in_flight` microbatches [S] such as fit memory, or None."""
        found: list[int] = []
        first, stage = 0, 0
        for i, count in zip(order, stages, strict=True):
            domain = self.problem.fleet.domains[i]
            depths = None if in_flight is None else tuple(in_flight[stage : stage + count])
            key = (self.problem.kinds[domain.name], setting, first, layers[i], count, depths, zero)
            if key not in self._splits:
                self._splits[key] = self._cut_one(setting, domain, first, layers[i], count, depths, zero)
            part = self._splits[key]
            if part is None:
                return None
            found += part
            first, stage = first + layers[i], stage + count
        return found

    def _cut_one(
        self, setting: Setting, domain: Domain, first: int, layers: int, stages: int,
        in_flight: tuple[int, ...] | None, zero: int,
    ) -> tuple[int, ...] | None:  # fmt: skip
        ranks = self.problem.ranks(domain, setting)
        times = self.problem.model.layers(domain, ranks, setting.microbatch_size, setting.recompute)
        assert times is not None, "domains of unknown speed are excluded before"
        prefix = times.work[first : first + layers + 1] - times.work[first]
        if in_flight is None:
            return split([prefix] * stages)
        rooms = [
            StageRoom(
                self.problem.job, tensor_parallel=ranks, replicas=setting.copies,
                microbatch_size=setting.microbatch_size, recompute=setting.recompute, zero_stage=zero,
                in_flight=depth, limit_bytes=self.problem.model.memory_limit_bytes(domain),
            )
            for depth in in_flight
        ]  # fmt: skip
        return split([prefix] * stages, lambda stage, begin: rooms[stage].layers(first + begin))

    def _plan(
        self, setting: Setting, order: Counts, stages: list[int], cut: list[int], warmup: list[int],
        schedule: Schedule,
    ) -> TrainingPlan:  # fmt: skip
        return TrainingPlan(
            pipelines=(
                Pipeline(
                    tuple(self._stages(setting, order, stages, cut, warmup)),
                    setting.copies,
                    self.problem.microbatches(setting),
                ),
            ),
            microbatch_size=setting.microbatch_size,
            schedule=schedule,
            recompute=setting.recompute,
        )

    def _stages(
        self, setting: Setting, order: Counts, stages: list[int], cut: list[int], warmup: list[int]
    ) -> Iterator[Stage]:
        first = 0
        where = [
            self.problem.fleet.domains[i] for i, count in zip(order, stages, strict=True) for _ in range(count)
        ]
        for domain, layers, depth in zip(where, cut, warmup, strict=True):
            yield Stage(domain.name, first, layers, self.problem.ranks(domain, setting), depth)
            first += layers
