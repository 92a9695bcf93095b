"""Data parallelism across domains: one pipeline per domain or per region, gradients summed between them.

A *unit* is what holds one copy of the model: a domain, or the chain of all domains of a region (pipeline
inside the region, data parallel across regions). The batch is shared so that all units finish together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from strata.simulate.analytic import stack
from strata.simulate.collective import eta
from strata.simulate.screening import path_s
from strata.training.chain import build_chain
from strata.training.chain_space import ChainSpace
from strata.training.problem import MICROBATCHES, Problem, Setting
from strata.training.routes import best_path
from strata.workload.job import Recompute
from strata.workload.plan import TrainingPlan

Floats = NDArray[np.float64]
Unit = tuple[int, ...]
Way = tuple[int, Recompute, float, int]


@dataclass(frozen=True, slots=True)
class Sharing:
    """One way to share the batch: which units, at which microbatch, summing gradients how."""

    units: tuple[Unit, ...]
    microbatch_size: int
    recompute: Recompute
    gradient_compression: float
    local_steps: int


@dataclass(frozen=True, slots=True)
class _Inner:
    """One way to run a unit: time(M) is about fill + (M - 1) × period."""

    plan: TrainingPlan
    fill_s: float
    period_s: float

    @property
    def samples(self) -> int:
        return self.plan.microbatch_size * self.plan.pipelines[0].replicas


class ShardSpace:
    """All ways to share a batch between two or more disjoint units of some domains."""

    def __init__(self, problem: Problem, members: tuple[int, ...]) -> None:
        self.problem, self.members = problem, members
        self._inner: dict[tuple[Unit, int, Recompute], list[_Inner]] = {}
        self._rates: dict[tuple[Unit, int, Recompute], tuple[float, float]] = {}

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Every domain alone, and every region of two or more connected domains as a chain."""
        domains = self.problem.fleet.domains
        regions: dict[str, list[int]] = {}
        for i in self.members:
            if domains[i].region:
                regions.setdefault(domains[i].region, []).append(i)
        latency = self.problem.pair_costs(1).latency_sum
        chains = []
        for inside in regions.values():
            order, cost = best_path(latency, tuple(inside))
            if len(order) > 1 and np.isfinite(cost):
                chains.append(order)
        return (*((i,) for i in self.members), *chains)

    @cached_property
    def groups(self) -> tuple[tuple[Unit, ...], ...]:
        """All sets of two or more disjoint units that links could connect."""
        bandwidth = self._bandwidth
        return tuple(
            group
            for count in range(2, len(self.members) + 1)
            for group in combinations(self.units, count)
            if len({i for unit in group for i in unit}) == sum(map(len, group))
            and all(bandwidth[list(unit)][:, [i for u in group for i in u]].any() for unit in group)
        )

    @cached_property
    def _bandwidth(self) -> Floats:
        bandwidth = self.problem.fleet.bandwidth_bytes_per_s()
        np.fill_diagonal(bandwidth, 0.0)
        return bandwidth

    @cached_property
    def ways(self) -> tuple[Way, ...]:
        """Every (microbatch, recompute, compression, local steps) a sharing may use."""
        job = self.problem.job
        return tuple(product(MICROBATCHES, job.recompute, job.gradient_compression, (1, *job.local_steps)))

    def bounds(self) -> Floats:
        """Return a bound on the step time of each (way, group), inf where a unit's speed is not known.

        The units' best rates bound the compute; a unit has to send 2 (D-1)/D of the gradients over its own
        links whatever the algorithm (Patarasuk & Yuan 2009, §3), less what a backward can hide.
        """
        job = self.problem.job
        if not self.groups:
            return np.empty((0, 0))
        position = {unit: k for k, unit in enumerate(self.units)}
        member = np.zeros((len(self.groups), len(self.units)), dtype=bool)
        for row, group in enumerate(self.groups):
            member[row, [position[unit] for unit in group]] = True
        domains = np.zeros((len(self.units), len(self.problem.fleet.domains)))
        for unit, k in position.items():
            domains[k, list(unit)] = 1.0
        # between[u, v]: bandwidth from all domains of unit u to all of unit v.
        between = domains @ self._bandwidth @ domains.T
        egress = member @ between.T  # [group, unit]: what unit can send into the group
        least = np.where(member, egress, np.inf).min(axis=1)
        sizes = member.sum(axis=1)
        size = float(job.layers.params_before[-1]) * job.element_bytes
        wire_s = 2 * (sizes - 1) / sizes * size / np.maximum(least, 1e-300)
        rows = []
        for microbatch_size, recompute, factor, steps in self.ways:
            rates = np.array([self._rate(unit, microbatch_size, recompute) for unit in self.units])
            slowest = np.where(member, rates[:, 0], np.inf).min(axis=1)
            hidden = np.where(member, rates[:, 1], np.inf).min(axis=1)
            compute_s = job.global_batch / np.maximum(member @ rates[:, 0], 1e-300) * eta(steps)
            bound = compute_s + np.maximum(0.0, wire_s / factor - hidden) / steps
            rows.append(np.where(slowest > 0, bound, np.inf))
        return np.stack(rows)

    def sharing(self, way: int, group: int) -> Sharing:
        """Return the sharing of one entry of `bounds`."""
        return Sharing(self.groups[group], *self.ways[way])

    def _rate(self, unit: Unit, microbatch_size: int, recompute: Recompute) -> tuple[float, float]:
        """Return the most samples per second of a unit, and the longest backward that could hide a sum."""
        key = (unit, microbatch_size, recompute)
        if key not in self._rates:
            self._rates[key] = self._best_rate(unit, microbatch_size, recompute)
        return self._rates[key]

    def _best_rate(self, unit: Unit, microbatch_size: int, recompute: Recompute) -> tuple[float, float]:
        shapes = self._shapes(unit, microbatch_size, recompute)
        rate, hidden = 0.0, 0.0
        for i in unit:
            domain, best = self.problem.fleet.domains[i], 0.0
            for ranks in {self.problem.ranks(domain, setting) for setting in shapes}:
                layers = self.problem.model.layers(domain, ranks, microbatch_size, recompute)
                if layers is not None:
                    slots = self.problem.slots(domain, ranks)
                    best = max(best, slots * microbatch_size / float(layers.work[-1]))
                    hidden = max(hidden, float(layers.backward[-1]))
            rate += best
        return rate, hidden

    def _shapes(self, unit: Unit, microbatch_size: int, recompute: Recompute) -> list[Setting]:
        """Return the settings that use all of a unit and might fit its memory."""
        problem, space = self.problem, ChainSpace(self.problem, unit)
        domains, found, seen = space.domains, [], set()
        for setting in problem.settings:
            if (setting.microbatch_size, setting.recompute) != (microbatch_size, recompute):
                continue
            stages = [problem.stages(domain, setting) for domain in domains]
            all_used = all(
                count == problem.slots(domain, setting.tensor_parallel) // setting.copies
                for count, domain in zip(stages, domains, strict=True)
            )
            shape = (setting.tensor_parallel, setting.copies)
            if not all_used or 0 in stages or sum(stages) > len(problem.job.layers) or shape in seen:
                continue
            seen.add(shape)
            if space.may_fit(setting, np.array([sum(stages)]))[0]:
                found.append(setting)
        return found

    def least_usd(self, group: int) -> float:
        """Return a bound on the money per second of a sharing: one device in every domain of its units [USD/s]."""
        domains = self.problem.fleet.domains
        return sum(
            (domains[i].price_usd_per_device_hour or 0.0) / 3600 for unit in self.groups[group] for i in unit
        )

    def build(self, sharing: Sharing) -> TrainingPlan | None:
        """Return the plan whose units finish together, or None where one of them cannot hold the model."""
        choices = [self._inners(unit, sharing.microbatch_size, sharing.recompute) for unit in sharing.units]
        if not all(choices):
            return None
        picked = _share(choices, self.problem.job.global_batch)
        pipelines = tuple(
            replace(
                inner.plan.pipelines[0],
                microbatches=count,
                stages=tuple(
                    replace(stage, warmup=min(stage.warmup, count - 1)) for stage in inner.plan.pipelines[0].stages
                ),
            )
            for inner, count in picked
        )
        return TrainingPlan(
            pipelines=pipelines,
            microbatch_size=sharing.microbatch_size,
            schedule=next(
                (i.plan.schedule for i, _ in picked if len(i.plan.domains) > 1), picked[0][0].plan.schedule
            ),
            recompute=sharing.recompute,
            zero_stage=max(inner.plan.zero_stage for inner, _ in picked),
            gradient_compression=sharing.gradient_compression,
            local_steps=sharing.local_steps,
        )

    def _inners(self, unit: Unit, microbatch_size: int, recompute: Recompute) -> list[_Inner]:
        key = (unit, microbatch_size, recompute)
        if key not in self._inner:
            self._inner[key] = list(self._ways(unit, microbatch_size, recompute))
        return self._inner[key]

    def _ways(self, unit: Unit, microbatch_size: int, recompute: Recompute) -> Iterator[_Inner]:
        for setting in self._shapes(unit, microbatch_size, recompute):
            for plan in build_chain(self.problem, setting, unit, microbatches=self.problem.job.global_batch):
                if isinstance(plan, TrainingPlan):
                    yield self._timed(plan)

    def _timed(self, plan: TrainingPlan) -> _Inner:
        model, pipeline = self.problem.model, plan.pipelines[0]
        times = model.times(plan, pipeline)
        period = max(
            *np.add(times.forward_s, times.backward_s), 0.0, *(hop.serial_s for hop in (*times.there, *times.back))
        )
        fill = float(path_s(stack([times]))[0]) + times.update_s + model.replica_sync_s(plan, pipeline, times)
        return _Inner(plan, fill, float(period))


def _share(choices: list[list[_Inner]], batch: int) -> list[tuple[_Inner, int]]:
    """Return per unit its best inner shape and microbatches per copy, so that the slowest unit is fastest."""
    fill = [np.array([way.fill_s for way in ways]) for ways in choices]
    period = [np.array([way.period_s for way in ways]) for ways in choices]
    samples = [np.array([way.samples for way in ways]) for ways in choices]

    def taken(limit_s: float) -> list[Floats]:
        return [
            np.maximum(np.floor((limit_s - f) / p + 1 + 1e-9), 0.0) * s
            for f, p, s in zip(fill, period, samples, strict=True)
        ]

    low, high = 0.0, min(float((f + p * batch / s).min()) for f, p, s in zip(fill, period, samples, strict=True))
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        if sum(work.max() for work in taken(middle)) >= batch:
            high = middle
        else:
            low = middle
    picked, excess = [], -batch
    for ways, work in zip(choices, taken(high), strict=True):
        way = ways[int(np.argmax(work))]
        count = max(1, round(float(work.max()) / way.samples))
        picked.append((way, count))
        excess += count * way.samples
    # Rounding gave the units more than the batch: take whole microbatches back, largest first.
    for index in sorted(range(len(picked)), key=lambda i: -picked[i][0].samples):
        way, count = picked[index]
        back = min(count - 1, excess // way.samples)
        if back > 0:
            picked[index], excess = (way, count - back), excess - back * way.samples
    return picked
