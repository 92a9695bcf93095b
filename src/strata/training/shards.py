"""Data parallelism across domains: one pipeline per domain or per region, gradients summed between them.

A unit holds one copy of the model: a domain, or the chain of all domains of a region (pipeline inside the
region, data parallel across regions). The batch is shared so that all units finish together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.simulate.collective import eta
from strata.training.problem import MICROBATCHES, Problem
from strata.training.routes import best_path
from strata.training.unit import Inner, Unit, Units
from strata.workload.job import Recompute
from strata.workload.plan import TrainingPlan

Floats = NDArray[np.float64]
Way = tuple[int, Recompute, float, int]

GRID: Final = 400
"""Time limits at which the units' samples are tabulated: 2 % apart over a range of 2,500."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """One way to share the batch: which units, at which microbatch, summing gradients how."""

    units: tuple[Unit, ...]
    microbatch_size: int
    recompute: Recompute
    gradient_compression: float
    local_steps: int


class ShardSpace:
    """All ways to share a batch between two or more disjoint units of some domains."""

    def __init__(self, problem: Problem, members: tuple[int, ...]) -> None:
        self.problem, self.members = problem, members
        self._units = Units(problem)
        self._compute: dict[tuple[int, Recompute], tuple[Floats, Floats]] = {}

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
        """Return a bound on the step time of each (way, group), inf where a unit cannot hold the model.

        Within a time limit the units do no more than their best shapes; a unit has to send 2 (D-1)/D of the
        gradients over its own links whatever the algorithm (Patarasuk & Yuan
        2009, §3), less what a backward can hide.
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
            compute_s, hidden_s = self._compute_bound(member, microbatch_size, recompute)
            rows.append(compute_s * eta(steps) + np.maximum(0.0, wire_s / factor - hidden_s) / steps)
        return np.stack(rows)

    def _compute_bound(
        self, member: NDArray[np.bool_], microbatch_size: int, recompute: Recompute
    ) -> tuple[Floats, Floats]:
        """Return per group the time its units need at least for the batch, and the longest backward."""
        key = (microbatch_size, recompute)
        if key in self._compute:
            return self._compute[key]
        batch = self.problem.job.global_batch
        inners = [self._units.inners(unit, microbatch_size, recompute) for unit in self.units]
        known = [inner for ways in inners for inner in ways]
        if not known:
            nothing = np.full(len(member), np.inf)
            self._compute[key] = (nothing, np.zeros(len(member)))
            return self._compute[key]
        rate = sum(max((w.samples / w.period_s for w in ways), default=0.0) for ways in inners)
        limits = batch / rate * 1.02 ** np.arange(GRID)
        samples = np.zeros((len(self.units), GRID))
        hidden = np.zeros(len(self.units))
        for row, ways in enumerate(inners):
            for inner in ways:
                samples[row] = np.maximum(samples[row], inner.most_samples(limits))
                hidden[row] = max(hidden[row], inner.hidden_s)
        enough = member @ samples >= batch
        first = np.where(enough.any(axis=1), enough.argmax(axis=1), GRID)
        # The batch is done between two limits of the grid: the earlier one is the bound.
        bound = np.concatenate([[limits[0] / 1.02], limits])[first]
        holds = np.array([bool(ways) for ways in inners])
        bound = np.where((member & ~holds).any(axis=1), np.inf, bound)
        self._compute[key] = (bound, np.where(member, hidden, np.inf).min(axis=1))
        return self._compute[key]

    def sharing(self, way: int, group: int) -> Sharing:
        """Return the sharing of one entry of `bounds`."""
        return Sharing(self.groups[group], *self.ways[way])

    def least_usd(self, group: int) -> float:
        """Return a bound on the money per second of a sharing: one device in every domain of its units [USD/s]."""
        domains = self.problem.fleet.domains
        return sum(
            (domains[i].price_usd_per_device_hour or 0.0) / 3600 for unit in self.groups[group] for i in unit
        )

    def build(self, sharing: Sharing) -> TrainingPlan | None:
        """Return the plan whose units finish together, or None where one of them cannot hold the model.

        A unit's shape is chosen for speed and for how much of the gradient sum its last backward hides: the
        least total is found by asking for every amount hidden that could pay.
        """
        size, recompute = sharing.microbatch_size, sharing.recompute
        ways = [self._units.inners(unit, size, recompute) for unit in sharing.units]
        if not all(ways):
            return None
        batch = self.problem.job.global_batch
        picked, fastest_s = _share(ways, batch)
        plan = self._plan(sharing, picked)
        across = self.problem.model.all_reduce(plan)
        wire_s = across.time_s if across is not None else 0.0
        hidden = min(inner.hidden_s for inner, _ in picked)
        best_s = fastest_s + max(0.0, wire_s - hidden) / sharing.local_steps
        levels = {inner.hidden_s for unit in ways for inner in unit if inner.hidden_s > hidden}
        for level in sorted(levels):
            if fastest_s + max(0.0, wire_s - level) / sharing.local_steps >= best_s:
                continue
            slow = [[inner for inner in unit if inner.hidden_s >= level] for unit in ways]
            if not all(slow):
                break
            other, time_s = _share(slow, batch)
            total_s = time_s + max(0.0, wire_s - level) / sharing.local_steps
            if total_s < best_s:
                best_s, plan = total_s, self._plan(sharing, other)
        return plan

    def _plan(self, sharing: Sharing, picked: list[tuple[Inner, int]]) -> TrainingPlan:
        pipelines = []
        for inner, count in picked:
            pipeline = inner.plan.pipelines[0]
            stages = tuple(replace(stage, warmup=min(stage.warmup, count - 1)) for stage in pipeline.stages)
            pipelines.append(replace(pipeline, microbatches=count, stages=stages))
        longest = max(picked, key=lambda item: len(item[0].plan.domains))[0].plan
        return TrainingPlan(
            pipelines=tuple(pipelines),
            microbatch_size=sharing.microbatch_size,
            schedule=longest.schedule,
            recompute=sharing.recompute,
            zero_stage=max(inner.plan.zero_stage for inner, _ in picked),
            gradient_compression=sharing.gradient_compression,
            local_steps=sharing.local_steps,
        )


def _share(ways: list[list[Inner]], batch: int) -> tuple[list[tuple[Inner, int]], float]:
    """Return per unit the shape and microbatches per copy that make the slowest unit fastest, and its time."""
    fill, period, samples = (np.full((len(ways), max(map(len, ways))), value) for value in (1e300, 1.0, 0.0))
    for row, unit in enumerate(ways):
        for column, inner in enumerate(unit):
            fill[row, column], period[row, column] = inner.fill_s, inner.period_s
            samples[row, column] = inner.samples

    def taken(limit_s: float) -> Floats:
        counts = np.floor((limit_s - fill) / period + 1 + 1e-9)
        return np.where(counts > 0, counts * samples, 0.0)

    low = 0.0
    high = float(np.min(fill + period * batch / np.maximum(samples, 1e-300)))
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        if taken(middle).max(axis=1).sum() >= batch:
            high = middle
        else:
            low = middle
    work, picked, excess = taken(high), [], -batch
    for unit, row in zip(ways, work, strict=True):
        inner = unit[int(np.argmax(row[: len(unit)]))]
        count = max(1, round(float(row.max()) / inner.samples))
        picked.append((inner, count))
        excess += count * inner.samples
    # Rounding gave the units more than the batch: take whole microbatches back, largest first.
    for index in sorted(range(len(picked)), key=lambda i: -picked[i][0].samples):
        inner, count = picked[index]
        back = min(count - 1, excess // inner.samples)
        if back > 0:
            picked[index], excess = (inner, count - back), excess - back * inner.samples
    return picked, high
