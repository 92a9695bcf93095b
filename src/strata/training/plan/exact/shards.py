"""Data parallelism across domains: one pipeline per domain or per region, gradients summed between them.

A unit holds one copy of the model: a domain, or the chain of all domains of a region (pipeline inside the
region, data parallel across regions). The batch is shared so that all units finish together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.clock import Check, unlimited
from strata.training.plan.exact.capacity import UnitCapacity
from strata.training.plan.exact.gradient_sums import least_of_any_s, least_of_groups_s
from strata.training.plan.exact.problem import POOL, Problem
from strata.training.plan.exact.routes import best_path
from strata.training.plan.exact.speed import speeds
from strata.training.plan.exact.unit import Inner, Unit, Units
from strata.workload.job import Recompute
from strata.workload.plan import TrainingPlan

Way = tuple[int, Recompute, float, int]

SPEEDS: Final = 4
"""Speeds down to which domains are looked at without the slower ones."""

EVERY: Final = 1 << 16
"""More shapes than a unit has."""


@dataclass(frozen=True, slots=True)
class DataParallelPlan:
    """One way to share the batch: which units, at which microbatch, summing gradients how."""

    units: tuple[Unit, ...]
    microbatch_size: int
    recompute: Recompute
    gradient_compression: float
    local_steps: int


class ShardSpace:
    """All ways to share a batch between two or more disjoint units of some domains."""

    def __init__(self, problem: Problem, members: tuple[int, ...]) -> None:
        """Share between units of `members`; more than POOL of them in the groups of `_likely_groups` only."""
        self.problem, self.members = problem, members
        # Copies that are fixed add up from shapes of any speed.
        self._units = Units(problem) if problem.job.pins.data is None else Units(problem, fastest=EVERY)
        self._capacities: dict[tuple[int, Recompute], UnitCapacity] = {}

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Every domain alone, and every region of two or more connected domains as a chain, both ways round."""
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
                chains += [order, order[::-1]]
        return (*((i,) for i in self.members), *chains)

    @cached_property
    def groups(self) -> tuple[tuple[Unit, ...], ...]:
        """All sets of two or more disjoint units that links could connect."""
        if len(self.members) > POOL:
            return self._likely_groups()
        units, bandwidth = self.units, self._bandwidth
        inside = [sum(1 << i for i in unit) for unit in units]
        linked = [sum(1 << int(i) for i in np.flatnonzero(bandwidth[list(unit)].any(axis=0))) for unit in units]
        groups: list[tuple[Unit, ...]] = []
        disjoint: list[tuple[tuple[int, ...], int]] = [((k,), inside[k]) for k in range(len(units))]
        while disjoint:
            disjoint = [
                ((*at, k), whole | inside[k])
                for at, whole in disjoint
                for k in range(at[-1] + 1, len(units))
                if not whole & inside[k]
            ]
            groups += [tuple(units[k] for k in at) for at, whole in disjoint if all(linked[k] & whole for k in at)]
        return tuple(groups)

    def _likely_groups(self) -> tuple[tuple[Unit, ...], ...]:
        """Return groups by speed, by egress, as cliques of fast links, and near each domain.

        A direct sum is as fast as the slowest links of its members, and a batch shared among unlike domains in
        whole microbatches is as slow as the slow ones' rounding: so there are cliques of all domains and of those
        alone that are as fast as the fastest, the next, … Of those near a domain, sizes grow by half.
        """
        bandwidth, speed = self._bandwidth, speeds(self.problem)[list(self.members)]
        near = bandwidth[np.ix_(self.members, self.members)]
        near = np.minimum(near, near.T)
        orders = [np.argsort(-speed, kind="stable"), np.argsort(-near.sum(axis=1) * speed, kind="stable")]
        orders += [_cliques(near, np.flatnonzero(speed >= least)) for least in np.unique(speed)[::-1][:SPEEDS]]
        orders.append(_cliques(near, np.arange(len(near))))
        picked = {frozenset(order[:count].tolist()) for order in orders for count in range(2, len(order) + 1)}
        for hub in range(len(self.members)):
            linked = np.argsort(-near[hub], kind="stable")
            order = [hub, *(int(k) for k in linked if k != hub and near[hub, k] > 0)]
            count = 2
            while count <= len(order):
                picked.add(frozenset(order[:count]))
                count += max(1, count // 2)
        return tuple(tuple((self.members[k],) for k in sorted(group)) for group in sorted(picked, key=sorted))

    @cached_property
    def _bandwidth(self) -> Floats:
        bandwidth = self.problem.fleet.bandwidth_bytes_per_s()
        np.fill_diagonal(bandwidth, 0.0)
        return bandwidth

    @cached_property
    def between(self) -> Floats:
        """Bandwidth [unit, unit] from all domains of one to all of the other."""
        domains = np.zeros((len(self.units), len(self.problem.fleet.domains)))
        for k, unit in enumerate(self.units):
            domains[k, list(unit)] = 1.0
        return np.asarray(domains @ self._bandwidth @ domains.T)

    @cached_property
    def ways(self) -> tuple[Way, ...]:
        """Every (microbatch, recompute, compression, local steps) a sharing may use."""
        job = self.problem.job
        sizes, steps = self.problem.microbatch_sizes, (1, *job.local_steps)
        return tuple(product(sizes, job.recompute, job.gradient_compression, steps))

    @cached_property
    def _least_latency(self) -> Floats:
        """One-way latency [unit, unit] over the shortest link from any domain of one to any of the other."""
        latency = self.problem.fleet.latency_s()
        starts = np.cumsum([0, *map(len, self.units[:-1])])
        inside = [i for unit in self.units for i in unit]
        rows = np.minimum.reduceat(latency[np.ix_(inside, inside)], starts, axis=0)
        return np.asarray(np.minimum.reduceat(rows, starts, axis=1))

    @cached_property
    def _gradient_bytes(self) -> float:
        return float(self.problem.job.layers.params_before[-1]) * self.problem.job.element_bytes

    @cached_property
    def member(self) -> Bools:
        """Which units each group holds [group, unit]."""
        position = {unit: k for k, unit in enumerate(self.units)}
        member = np.zeros((len(self.groups), len(self.units)), dtype=bool)
        for row, group in enumerate(self.groups):
            member[row, [position[unit] for unit in group]] = True
        return member

    def bounds(self, *, check: Check = unlimited) -> Floats:
        """Return a bound on the step time of each (way, group), inf where a unit cannot hold the model.

        Within a time limit the units do no more than their best shapes; the sum of gradients between units takes
        no less than over all their links, less what shapes of such a speed can hide. What `check` raises ends it.
        """
        if not self.groups:
            return np.empty((0, 0))
        sums: dict[float, Floats] = {}
        work: dict[tuple[int, Recompute], Floats] = {}
        rows = []
        for microbatch_size, recompute, factor, steps in self.ways:
            check()
            table = self._capacity(microbatch_size, recompute)
            if factor not in sums:
                sums[factor] = least_of_groups_s(
                    self._gradient_bytes / factor, self.member, self._seconds_per_byte, self._least_latency
                )
            if (microbatch_size, recompute) not in work:
                work[microbatch_size, recompute] = table.least_s(self.member)
            rows.append(table.step_s(work[microbatch_size, recompute], sums[factor], local_steps=steps))
        return np.stack(rows)

    @cached_property
    def _seconds_per_byte(self) -> Floats:
        with np.errstate(divide="ignore"):
            return np.asarray(1 / self.between)

    def _capacity(self, microbatch_size: int, recompute: Recompute) -> UnitCapacity:
        key = (microbatch_size, recompute)
        if key not in self._capacities:
            shapes = [self._units.inners_of_kind(unit, microbatch_size, recompute) for unit in self.units]
            kinds = [self._units.kind(unit) for unit in self.units]
            self._capacities[key] = UnitCapacity.of(shapes, kinds, batch=self.problem.job.global_batch)
        return self._capacities[key]

    @cached_property
    def free_bound_s(self) -> float:
        """Return a bound on the step time of any sharing of any of the units, whatever their number.

        The D units that work fastest take part, over the links of the D that are best joined (see `bounds`).
        """
        job = self.problem.job
        size = self._gradient_bytes / max(job.gradient_compression)
        sum_s = least_of_any_s(size, self._seconds_per_byte, self._least_latency)
        best = np.inf
        for microbatch_size, recompute in product(self.problem.microbatch_sizes, job.recompute):
            table = self._capacity(microbatch_size, recompute)
            work_s = table.least_of_any_s()
            for steps in (1, *job.local_steps):
                best = min(best, float(table.step_s(work_s, sum_s, local_steps=steps).min(initial=np.inf)))
        return best

    def sharing(self, way: int, group: int) -> DataParallelPlan:
        """Return the sharing of one entry of `bounds`."""
        return DataParallelPlan(self.groups[group], *self.ways[way])

    def least_usd(self, group: int) -> float:
        """Return a bound on the money per second of a sharing: one device in every domain of its units [USD/s]."""
        domains = self.problem.fleet.domains
        prices = [domains[i].price_usd_per_device_hour for unit in self.groups[group] for i in unit]
        return 0.0 if None in prices else sum(price or 0.0 for price in prices) / 3600

    def build(self, sharing: DataParallelPlan) -> TrainingPlan | None:
        """Return the plan whose units finish together, or None where one cannot hold the model or be reached."""
        plan = self._shared(sharing)
        if plan is None or plan.local_steps == 1:
            return plan
        # The shapes of units were chosen without the outer state.
        stages = [zero for zero in self.problem.job.zero_stages if zero >= plan.zero_stage]
        return self.problem.model.fastest_zero(plan, stages)

    def _shared(self, sharing: DataParallelPlan) -> TrainingPlan | None:
        """Return the plan as if DiLoCo's outer state took no memory.

        A unit's shape is chosen for speed and for how much of the gradient sum its last backward hides: the
        least total is found by asking for every amount hidden that could pay.
        """
        size, recompute = sharing.microbatch_size, sharing.recompute
        ways = [self._units.inners(unit, size, recompute) for unit in sharing.units]
        if not all(ways):
            return None
        batch, copies = self.problem.job.global_batch, self.problem.job.pins.data
        if copies is not None:
            fixed = _sharing_copies(ways, batch, copies)
            if fixed is None:
                return None
            ways = fixed
        picked, fastest_s = _share(ways, batch)
        plan = self._plan(sharing, picked)
        if plan.num_samples != batch:  # a copy would be without a sample
            most = batch // len(ways)
            ways = [[inner for inner in unit if inner.plan.pipelines[0].replicas <= most] for unit in ways]
            if not all(ways):
                return None
            picked, fastest_s = _share(ways, batch)
            plan = self._plan(sharing, picked)
        across = self.problem.model.all_reduce(plan)
        wire_s = across.time_s if across is not None else 0.0
        if not np.isfinite(wire_s):
            return None
        hidden = min(inner.hidden_s for inner, _ in picked)
        exposed_s = max(0.0, wire_s - hidden)
        levels = np.unique([inner.hidden_s for unit in ways for inner in unit if inner.hidden_s > hidden])
        if not exposed_s or not len(levels):
            return plan
        # No level is worth asking for that all units cannot reach.
        levels = levels[levels <= min(max(inner.hidden_s for inner in unit) for unit in ways)]
        total_s = _least_s(ways, batch, levels) + np.maximum(0.0, wire_s - levels) / sharing.local_steps
        if len(levels) and total_s.min() < fastest_s + exposed_s / sharing.local_steps:
            level = levels[int(np.argmin(total_s))]
            slow = [[inner for inner in unit if inner.hidden_s >= level] for unit in ways]
            slower = self._plan(sharing, _share(slow, batch)[0])
            plan = slower if slower.num_samples == batch else plan
        return plan

    def _plan(self, sharing: DataParallelPlan, picked: list[tuple[Inner, int]]) -> TrainingPlan:
        pipelines = []
        for inner, count in picked:
            pipeline = inner.plan.pipelines[0]
            stages = tuple(replace(stage, warmup=min(stage.warmup, count - 1)) for stage in pipeline.stages)
            pipelines.append(replace(pipeline, microbatches=count, stages=stages))
        longest = max(picked, key=lambda item: len(item[0].plan.domains))[0].plan
        plan = TrainingPlan(
            pipelines=tuple(pipelines),
            microbatch_size=sharing.microbatch_size,
            schedule=longest.schedule,
            recompute=sharing.recompute,
            zero_stage=max(inner.plan.zero_stage for inner, _ in picked),
            gradient_compression=sharing.gradient_compression,
            local_steps=sharing.local_steps,
        )
        return plan.with_samples(self.problem.job.global_batch)


def _cliques(near: Floats, members: Ints) -> Ints:
    """Return members of bandwidths [K, K], ordered so that without the last ones those left have faster links.

    The one whose slowest link to the others is slowest is dropped first.
    """
    left, dropped = list(members.tolist()), []
    apart = near + np.diag(np.full(len(near), np.inf))
    while left:
        inside = np.sort(apart[np.ix_(left, left)], axis=1)
        # Both ends of a slow link have the same slowest one: the next slowest decides.
        dropped.append(left.pop(int(np.lexsort(inside.T[::-1])[0])))
    return np.array(dropped[::-1], dtype=np.int64)


def _least_s(ways: list[list[Inner]], batch: int, levels: Floats) -> Floats:
    """Return for each level the time within which shapes that hide so much [s] work through the batch."""
    fill, period, samples = _figures(ways)
    hidden = np.zeros_like(fill)
    for row, unit in enumerate(ways):
        hidden[row, : len(unit)] = [inner.hidden_s for inner in unit]
    # Units of a kind have like shapes and are worked out once.
    rows, counts = np.unique(np.stack([fill, period, samples, hidden]), axis=1, return_counts=True)
    fill, period, samples, hidden = rows
    able = hidden >= levels[:, None, None]
    low: Floats = np.zeros(len(levels))
    once = np.where(able & (samples > 0), fill + period * batch / np.maximum(samples, 1e-300), np.inf)
    high = once.min(axis=(1, 2), initial=np.inf)
    while (high - low > 1e-4 * high).any():
        middle = (low + high) / 2
        most = np.floor((middle[:, None, None] - fill) / period + 1 + 1e-9)
        taken = np.where(able & (most > 0), most * samples, 0.0)
        enough = taken.max(axis=2) @ counts >= batch
        high, low = np.where(enough, middle, high), np.where(enough, low, middle)
    return np.asarray(high)


def _figures(ways: list[list[Inner]]) -> tuple[Floats, Floats, Floats]:
    """Return fill, period and samples of each unit's shapes [unit, shape]; what fills the rows does no work."""
    fill, period, samples = (np.full((len(ways), max(map(len, ways))), value) for value in (1e300, 1.0, 0.0))
    for row, unit in enumerate(ways):
        for column, inner in enumerate(unit):
            fill[row, column], period[row, column] = inner.fill_s, inner.every_s
            samples[row, column] = inner.samples
    return fill, period, samples


def _sharing_copies(ways: list[list[Inner]], batch: int, copies: int) -> list[list[Inner]] | None:
    """Return one shape a unit, `copies` of the model together, that work the batch off soonest; None: no such."""
    fill, period, samples = _figures(ways)
    replicas = [[inner.plan.pipelines[0].replicas for inner in unit] for unit in ways]

    def most(limit_s: float) -> tuple[float, tuple[int, ...]] | None:
        counts = np.floor((limit_s - fill) / period + 1 + 1e-9)
        taken = np.where(counts > 0, counts * samples, 0.0)
        best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
        for row, unit in enumerate(replicas):
            grown: dict[int, tuple[float, tuple[int, ...]]] = {}
            for (used, (done, at)), (shape, more) in product(best.items(), enumerate(unit)):
                item = (done + float(taken[row, shape]), (*at, shape))
                if used + more <= copies and item[0] > grown.get(used + more, (-1.0, ()))[0]:
                    grown[used + more] = item
            best = grown
        return best.get(copies)

    low, high = 0.0, float(np.max(np.where(samples > 0, fill + period * batch, 0.0)))
    picked = most(high)
    if picked is None:
        return None
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        reached = most(middle)
        assert reached is not None, "shapes of so many copies together do not depend on the time"
        if reached[0] >= batch:
            high, picked = middle, reached
        else:
            low = middle
    return [[unit[shape]] for unit, shape in zip(ways, picked[1], strict=True)]


def _share(ways: list[list[Inner]], batch: int) -> tuple[list[tuple[Inner, int]], float]:
    """Return per unit the shape and microbatches per copy that make the slowest unit fastest, and its time."""
    fill, period, samples = _figures(ways)

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
        # A unit too slow for one microbatch within the limit does one all the same.
        best = np.argmax(row[: len(unit)]) if row.any() else np.argmin([inner.fill_s for inner in unit])
        inner = unit[int(best)]
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
