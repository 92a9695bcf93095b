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

from strata.arrays import Bools, Floats
from strata.clock import Check, unlimited
from strata.simulate.collective import eta
from strata.training.plan.exact.problem import POOL, Problem
from strata.training.plan.exact.routes import best_path
from strata.training.plan.exact.unit import Inner, Unit, Units
from strata.workload.job import Recompute
from strata.workload.plan import TrainingPlan

Way = tuple[int, Recompute, float, int]

EVERY: Final = 1 << 16
"""More shapes than a unit has."""

GRID: Final = 400
"""Time limits at which the units' samples are tabulated: 2 % apart over a range of 2,500."""


@dataclass(frozen=True, slots=True)
class DataParallelPlan:
    """One way to share the batch: which units, at which microbatch, summing gradients how."""

    units: tuple[Unit, ...]
    microbatch_size: int
    recompute: Recompute
    gradient_compression: float
    local_steps: int


@dataclass(frozen=True, slots=True)
class _Capacity:
    """How much each unit can do at most within each time limit [unit, limit], in its best shape."""

    batch: int
    limits_s: Floats
    samples: Floats
    hidden_s: Floats
    holds: Bools

    def least_s(self, samples: Floats) -> Floats:
        """Return the time before which the batch cannot be done, for rows of summed `samples`."""
        enough = samples >= self.batch
        first = np.where(enough.any(axis=-1), enough.argmax(axis=-1), GRID)
        # The batch is done between two limits of the grid: the earlier one is the bound.
        return np.asarray(np.concatenate([[self.limits_s[0] / 1.02], self.limits_s])[first])


class ShardSpace:
    """All ways to share a batch between two or more disjoint units of some domains."""

    def __init__(self, problem: Problem, members: tuple[int, ...]) -> None:
        """Share between units of `members`; more than POOL of them in the groups of `_likely_groups` only."""
        self.problem, self.members = problem, members
        # Copies that are fixed add up from shapes of any speed.
        self._units = Units(problem) if problem.job.pins.data is None else Units(problem, fastest=EVERY)
        self._compute: dict[tuple[int, Recompute], tuple[Floats, Floats]] = {}

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
        """Return the first 2, 3, … domains by size, by egress, and by closeness to each domain."""
        domains, bandwidth = self.problem.fleet.domains, self._bandwidth
        size = np.array([domains[i].num_devices for i in self.members], dtype=float)
        near = bandwidth[np.ix_(self.members, self.members)]
        near = np.minimum(near, near.T)
        orders = [np.argsort(-size, kind="stable"), np.argsort(-near.sum(axis=1) * size, kind="stable")]
        for hub in range(len(self.members)):
            linked = np.argsort(-near[hub], kind="stable")
            orders.append(np.array([hub, *(k for k in linked if k != hub and near[hub, k] > 0)]))
        picked = {frozenset(order[:count].tolist()) for order in orders for count in range(2, len(order) + 1)}
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

    def bounds(self, *, check: Check = unlimited) -> Floats:
        """Return a bound on the step time of each (way, group), inf where a unit cannot hold the model.

        Within a time limit the units do no more than their best shapes. A unit sends 2 (D-1)/D of the gradients
        over its own links in a ring or directly (Patarasuk & Yuan 2009, §3), or, around a star, all of them once
        and then receives their sum; less what a backward can hide. What `check` raises ends it.
        """
        job = self.problem.job
        if not self.groups:
            return np.empty((0, 0))
        position = {unit: k for k, unit in enumerate(self.units)}
        member = np.zeros((len(self.groups), len(self.units)), dtype=bool)
        for row, group in enumerate(self.groups):
            member[row, [position[unit] for unit in group]] = True
        between = self.between
        # [group, unit]: seconds per byte out of a unit into its group, and in.
        with np.errstate(divide="ignore"):
            out, into = (1 / (member @ wires) for wires in (between.T, between))
        sizes = member.sum(axis=1)
        each = np.minimum(2 * (1 - 1 / sizes[:, None]) * out, out + into)
        size = float(job.layers.params_before[-1]) * job.element_bytes
        wire_s = size * np.where(member, each, 0.0).max(axis=1)
        rows = []
        for microbatch_size, recompute, factor, steps in self.ways:
            check()
            compute_s, hidden_s = self._compute_bound(member, microbatch_size, recompute)
            rows.append(compute_s * eta(steps) + np.maximum(0.0, wire_s / factor - hidden_s) / steps)
        return np.stack(rows)

    def _compute_bound(self, member: Bools, microbatch_size: int, recompute: Recompute) -> tuple[Floats, Floats]:
        """Return per group the time its units need at least for the batch, and the longest backward."""
        key = (microbatch_size, recompute)
        if key not in self._compute:
            table = self._capacity(microbatch_size, recompute)
            bound = np.where(member @ ~table.holds > 0, np.inf, table.least_s(member @ table.samples))
            self._compute[key] = (bound, np.where(member, table.hidden_s, np.inf).min(axis=1))
        return self._compute[key]

    def _capacity(self, microbatch_size: int, recompute: Recompute) -> _Capacity:
        inners = [self._units.inners(unit, microbatch_size, recompute) for unit in self.units]
        batch = self.problem.job.global_batch
        rate = sum(max((way.samples / way.period_s for way in ways), default=0.0) for ways in inners)
        limits: Floats = batch / (rate or 1.0) * 1.02 ** np.arange(GRID, dtype=np.float64)
        samples, hidden = np.zeros((len(inners), GRID)), np.zeros(len(inners))
        like: dict[object, tuple[Floats, float]] = {}
        for row, (unit, ways) in enumerate(zip(self.units, inners, strict=True)):
            kind = self._units.kind(unit)
            if kind not in like:
                most = [way.most_samples(limits) for way in ways]
                like[kind] = np.max([np.zeros(GRID), *most], axis=0), max([0.0, *(way.hidden_s for way in ways)])
            samples[row], hidden[row] = like[kind]
        return _Capacity(batch, limits, samples, hidden, np.array([bool(ways) for ways in inners]))

    def free_bound(self) -> float:
        """Return a bound on the step time of any sharing of any of the units, whatever their number.

        The D best units take part; each sends and receives (see `bounds`) over at most the best links to D - 1
        others that any unit has.
        """
        job, count = self.problem.job, len(self.units)
        joined = np.arange(2, count + 1)
        # Seconds per byte over the best links of any unit to 1, 2, … others, out and in.
        with np.errstate(divide="ignore"):
            out, into = (
                1 / np.sort(wires, axis=1)[:, ::-1].cumsum(axis=1).max(axis=0)[: count - 1]
                for wires in (self.between, self.between.T)
            )
        each = np.minimum(2 * (joined - 1) / joined * out, out + into)
        size = float(job.layers.params_before[-1]) * job.element_bytes / max(job.gradient_compression)
        best = np.inf
        for microbatch_size, recompute in product(self.problem.microbatch_sizes, job.recompute):
            table = self._capacity(microbatch_size, recompute)
            if not table.holds.any():
                continue
            together = np.sort(table.samples, axis=0)[::-1].cumsum(axis=0)  # [D - 1, limit]
            compute_s = table.least_s(together)[1:]
            for steps in (1, *job.local_steps):
                exposed = np.maximum(0.0, size * each - table.hidden_s.max()) / steps
                best = min(best, float((compute_s * eta(steps) + exposed).min(initial=np.inf)))
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
            plan = self._plan(sharing, _share(slow, batch)[0])
        return plan

    def _plan(self, sharing: DataParallelPlan, picked: list[tuple[Inner, int]]) -> TrainingPlan:
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


def _least_s(ways: list[list[Inner]], batch: int, levels: Floats) -> Floats:
    """Return for each level the time within which shapes that hide so much [s] work through the batch."""
    fill, period, samples = _figures(ways)
    hidden = np.zeros_like(fill)
    for row, unit in enumerate(ways):
        hidden[row, : len(unit)] = [inner.hidden_s for inner in unit]
    able = hidden >= levels[:, None, None]
    low: Floats = np.zeros(len(levels))
    once = np.where(able & (samples > 0), fill + period * batch / np.maximum(samples, 1e-300), np.inf)
    high = once.min(axis=(1, 2), initial=np.inf)
    while (high - low > 1e-4 * high).any():
        middle = (low + high) / 2
        counts = np.floor((middle[:, None, None] - fill) / period + 1 + 1e-9)
        taken = np.where(able & (counts > 0), counts * samples, 0.0)
        enough = taken.max(axis=2).sum(axis=1) >= batch
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
