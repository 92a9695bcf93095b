"""Data parallelism across domains: one pipeline per domain or per region, gradients summed between them.

A unit holds one copy of the model: a domain, or the chain of all domains of a region (pipeline inside the
region, data parallel across regions). The batch is shared so that all units finish together.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.clock import Check, unlimited
from strata.errors import OutOfTime
from strata.simulate.collective import eta
from strata.training.plan.exact.batch import best_shapes, share, sharing_copies
from strata.training.plan.exact.config import CommonConfig
from strata.training.plan.exact.gradient_sums import least_of_any_s, least_of_groups_s
from strata.training.plan.exact.memory_fit import fitting, without_recomputation
from strata.training.plan.exact.problem import POOL, Problem
from strata.training.plan.exact.routes import best_path
from strata.training.plan.exact.shapes import Unit
from strata.training.plan.exact.speed import speeds
from strata.training.plan.exact.tables import ShapeTables
from strata.training.plan.exact.unit import Inner, Units, moved, with_microbatches
from strata.workload.job import Objective
from strata.workload.plan import TrainingPlan


class Way(NamedTuple):
    """How a batch is shared, whatever the units."""

    common: CommonConfig
    gradient_compression: float
    local_steps: int


SPEEDS: Final = 4
"""Speeds down to which domains are looked at without the slower ones."""

EVERY: Final = 1 << 16
"""More shapes than a unit has."""


@dataclass(frozen=True, slots=True)
class DataParallelPlan:
    """One way to share the batch: which units, at which microbatch, summing gradients how."""

    units: tuple[Unit, ...]
    way: Way


class ShardSpace:
    """All ways to share a batch between two or more disjoint units of some domains."""

    def __init__(self, problem: Problem, members: tuple[int, ...]) -> None:
        """Share between units of `members`; more than POOL of them in the groups of `_likely_groups` only."""
        self.problem, self.members = problem, members
        # Copies that are fixed add up from shapes of any speed.
        self._units = Units(problem) if problem.job.pins.data is None else Units(problem, fastest=EVERY)
        self._sums: dict[float, Floats] = {}
        self._known_rates: dict[CommonConfig, tuple[Floats, Floats]] = {}

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
        """All sets of two or more disjoint units that links could connect; their stages do not interleave."""
        if (self.problem.job.pins.virtual_stages or 1) > 1:
            return ()
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
        """Every way a sharing may use."""
        job = self.problem.job
        choices = product(self._units.shapes.commons, job.gradient_compression, (1, *job.local_steps))
        return tuple(Way(*choice) for choice in choices if choice[0].holds_outer == (choice[2] > 1))

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
    def _position(self) -> dict[Unit, int]:
        return {unit: k for k, unit in enumerate(self.units)}

    @cached_property
    def member(self) -> Bools:
        """Which units each group holds [group, unit]."""
        member = np.zeros((len(self.groups), len(self.units)), dtype=bool)
        for row, group in enumerate(self.groups):
            member[row, [self._position[unit] for unit in group]] = True
        return member

    def bounds(self, *, split: bool = False, check: Check = unlimited) -> Floats:
        """Return a bound on the step time of each (way, group), inf where a unit cannot hold the model.

        Within a time limit the units do no more than their best shapes; the sum of gradients between units takes
        no less than over all their links, less what shapes of such a speed can hide. What `check` raises ends it.
        Shapes are those that might fit, no layers split, as far as neither `closer` nor `split` asked for others.
        """
        if not self.groups:
            return np.empty((0, 0))
        rows = np.empty((len(self.ways), len(self.groups)))
        for common, ways in self._ways_of.items():
            check()
            if split:
                self._tables.build_fastest(common, range(len(self._tables.kinds)), check=check)
            rows[ways] = self._bounds(common, check)
        return rows

    def floors(self, *, check: Check = unlimited) -> dict[CommonConfig, tuple[float, float]]:
        """Return for each common setting the time and the money that no sharing in it can beat: looser than
        `bounds` and `least_usd`, and cheap.

        n domains work at the rates of the n fastest at best, and D units are joined by the links of the D that are
        best joined. What hides of their sum is part of the work: T >= R eta + max(0, sum - R) / local steps, where
        R is what the batch takes at those rates.
        """
        if not self.groups:
            return {}
        job, rates = self.problem.job, self._rates(check)
        sums_s = self._least_sum_s(max(job.gradient_compression))
        if len(self.units) > len(self.members):
            sums_s = np.minimum.accumulate(sums_s)  # a unit may have several domains
        sums_s, floors = sums_s[: len(self.members) - 1], {}
        sum_usd = float(self._sum_usd.min()) / max(job.gradient_compression)
        for common, (rate, sample_usd) in rates.items():
            together = np.cumsum(np.sort(rate)[::-1])[1:]
            is_able = together > 0
            work_s, sum_s = job.global_batch / together[is_able], sums_s[is_able]
            every = job.local_steps if common.holds_outer else (1,)
            least_s = min(
                float((work_s * eta(steps) + np.maximum(0.0, sum_s - work_s) / steps).min(initial=np.inf))
                for steps in every
            )
            batch_usd = job.global_batch * float(sample_usd.min()) if self._is_priced else 0.0
            floors[common] = least_s, batch_usd + sum_usd / max(every)
        return floors

    def _rates(self, check: Check = unlimited) -> dict[CommonConfig, tuple[Floats, Floats]]:
        if not self._known_rates:
            self._known_rates = self._units.shapes.rates(self.members, check=check)
        return self._known_rates

    def _least_sum_s(self, factor: float) -> Floats:
        """Return what a sum of gradients between D = 2.. units takes at least."""
        return least_of_any_s(self._gradient_bytes / factor, self._seconds_per_byte, self._least_latency)

    @property
    def commons(self) -> tuple[CommonConfig, ...]:
        """What pipelines of a sharing may have in common."""
        return self._units.shapes.commons

    def bounds_of(self, common: CommonConfig, *, check: Check = unlimited) -> tuple[list[int], Floats]:
        """Return the ways with this common setting and their bounds [ways, groups] (see `bounds`)."""
        return self._ways_of[common], self._bounds(common, check)

    def _bounds(self, common: CommonConfig, check: Check = unlimited) -> Floats:
        """Return the bounds [ways, groups] of the ways with this common setting."""
        table = self._tables.of(common, check)
        work_s, rows = table.least_s(self.member), []
        for way in (self.ways[number] for number in self._ways_of[common]):
            sums_s = self._sums_s(way.gradient_compression)
            rows.append(table.step_s(work_s, sums_s, local_steps=way.local_steps))
        return np.stack(rows)

    @cached_property
    def _ways_of(self) -> dict[CommonConfig, list[int]]:
        """The numbers of ways by their common setting."""
        numbers: dict[CommonConfig, list[int]] = {}
        for number, (common, _, _) in enumerate(self.ways):
            numbers.setdefault(common, []).append(number)
        return numbers

    def _sums_s(self, factor: float) -> Floats:
        """Return what the sum of gradients between the units of each group takes at least [groups]."""
        if factor not in self._sums:
            self._sums[factor] = least_of_groups_s(
                self._gradient_bytes / factor, self.member, self._seconds_per_byte, self._least_latency
            )
        return self._sums[factor]

    def closer(self, way: int, group: int, *, check: Check = unlimited) -> tuple[list[int], Floats] | None:
        """Build the shapes that the bound of a sharing is for, or all where the goal is not time alone.

        Returns the ways that it concerns and their new bounds [ways, groups]; None where it was done before.
        """
        common = self.ways[way].common
        if self.is_time:
            is_new = self._build_best(way, group, check)
        else:
            is_new = self._tables.build_fastest(common, self._rows(group), check=check)
        return (self._ways_of[common], self._bounds(common)) if is_new else None

    @property
    def is_time(self) -> bool:
        """Whether the goal is time alone, which few shapes could serve."""
        return self.problem.job.objective is Objective.TIME and self.problem.job.pins.data is None

    def _build_best(self, way: int, group: int, check: Check = unlimited) -> bool:
        common, factor, steps = self.ways[way]
        member, sum_s = self.member[group : group + 1], self._sums_s(factor)[group : group + 1]
        limit_s, hides_s = self._tables.of(common, check).best_of_groups(member, sum_s, local_steps=steps)
        rows = dict.fromkeys(self._rows(group))
        return np.isfinite(limit_s) and self._tables.build_best(
            common, rows, limit_s=limit_s, hides_s=hides_s, check=check
        )

    def _rows(self, group: int) -> list[int]:
        """Return the kind of each unit of a group."""
        return [int(self._tables.kind[self._position[unit]]) for unit in self.groups[group]]

    @cached_property
    def _tables(self) -> ShapeTables:
        return ShapeTables(self.problem, self._units, self.units)

    def build_first(
        self, way: int, group: int, *, limit_s: float, check: Check = unlimited
    ) -> TrainingPlan | None:
        """Return the plan of a sharing, of the shapes that its bound is for; of all where the goal is not time.

        None where that is no better than a limit, or those are too large for the batch. Raises OutOfTime.
        """
        if not self.is_time:
            return self.build(self.sharing(way, group))
        while self._build_best(way, group, check):
            if self.bound_s(way, group) >= limit_s:
                return None
        return self.build(self.sharing(way, group), all_shapes=False)

    def build_within(
        self, way: int, group: int, *, limit_s: float, is_thorough: bool = True, check: Check = unlimited
    ) -> TrainingPlan | None:
        """Return the plan of a sharing; None where it is no better than a limit.

        If it `is_thorough` of all shapes, too, that a faster plan than this could use. Raises OutOfTime.
        """
        sharing, rows = self.sharing(way, group), self._rows(group)
        plan = self.build_first(way, group, limit_s=limit_s, check=check)
        if not self.is_time or self.bound_s(way, group) >= limit_s:
            return plan
        if plan is None and not is_thorough:  # the batch is too small for what those work through at once
            return self.build(sharing)
        while is_thorough:
            taken_s = self.problem.model.reports([plan])[0].step_time_s if plan is not None else np.inf
            if not np.isfinite(min(limit_s, taken_s)):
                return self.build(sharing)
            work_s = self._work_limit_s(way, group, min(limit_s, taken_s))
            if not self._tables.build_near(sharing.way.common, rows, limit_s=work_s):
                break
            plan = self.build(sharing, all_shapes=False)
        return plan

    def _work_limit_s(self, way: int, group: int, limit_s: float) -> float:
        """Return within which time units must do the batch for a step within a limit: what no shape can hide of
        their gradient sum comes after it."""
        common, factor, steps = self.ways[way]
        exposed_s = self._sums_s(factor)[group] - self._tables.most_hidden_s(common, self._rows(group))
        return float(limit_s - max(0.0, exposed_s) / steps) / eta(steps)

    def bound_s(self, way: int, group: int) -> float:
        """Return the bound on the step time of one sharing, as close as what was built makes it."""
        common, factor, steps = self.ways[way]
        table, sum_s = self._tables.of(common), self._sums_s(factor)[group : group + 1]
        work_s = table.least_s(self.member[group : group + 1])
        return float(table.step_s(work_s, sum_s, local_steps=steps)[0])

    def _inners(self, unit: Unit, common: CommonConfig, *, all_shapes: bool) -> list[Inner]:
        """Return shapes of a unit, perhaps with the name of another one of its kind."""
        if all_shapes:
            return self._units.inners_of_kind(unit, common)
        return self._tables.built(int(self._tables.kind[self._position[unit]]), common)

    @cached_property
    def _seconds_per_byte(self) -> Floats:
        with np.errstate(divide="ignore"):
            return np.asarray(1 / self.between)

    def free_bound_s(self, *, enough_s: float | None = None, check: Check = unlimited) -> float:
        """Return a bound on the step time of any sharing of any of the units, whatever their number.

        Per common setting: the D units that work fastest take part, over the best joining D links (see `bounds`).
        They are looked into by their floors; of those that `check` leaves no time for, the floors count. With
        `enough_s` shapes are built for closer bounds, until that is reached.
        """
        sum_s = self._least_sum_s(max(self.problem.job.gradient_compression))
        commons = self.floors(check=check).items()
        left = [(floor_s, number, common, False) for number, (common, (floor_s, _)) in enumerate(commons)]
        heapq.heapify(left)
        while left:
            least_s, number, common, is_close = left[0]
            if enough_s is not None and least_s >= enough_s:
                return least_s
            try:
                if is_close and (enough_s is None or not self._build_best_of_any(common, sum_s, check)):
                    return least_s
                closer_s, _ = self._least_of_any(common, sum_s, check)
            except OutOfTime:
                return least_s
            heapq.heapreplace(left, (max(least_s, closer_s), number, common, True))
        return np.inf

    def _least_of_any(self, common: CommonConfig, sum_s: Floats, check: Check) -> tuple[float, int]:
        """Return the least step time of any units, and the local steps that it is for."""
        table, ways = self._tables.of(common, check), self.problem.job.local_steps if common.holds_outer else (1,)
        work_s = table.least_of_any_s()
        return min((float(table.step_s(work_s, sum_s, local_steps=n).min(initial=np.inf)), n) for n in ways)

    def _build_best_of_any(self, common: CommonConfig, sum_s: Floats, check: Check) -> bool:
        _, steps = self._least_of_any(common, sum_s, check)
        limit_s, hides_s, rows = self._tables.of(common).best_of_any(sum_s, local_steps=steps)
        return np.isfinite(limit_s) and self._tables.build_best(
            common, rows.tolist(), limit_s=limit_s, hides_s=hides_s, check=check
        )

    def sharing(self, way: int, group: int) -> DataParallelPlan:
        """Return the sharing of one entry of `bounds`."""
        return DataParallelPlan(self.groups[group], self.ways[way])

    def least_usd(self, ways: Sequence[int], step_s: Floats) -> Floats:
        """Return what sharings that take so long [ways, groups] cost at least [USD]: devices and gradient sums.

        One device in every domain for the time of a step, or the work of the batch where it costs least.
        """
        least = np.empty(step_s.shape)
        with np.errstate(invalid="ignore"):  # of none that is possible the time is inf, and the money NaN
            for row, (common, factor, steps) in enumerate(self.ways[number] for number in ways):
                devices_usd = np.maximum(self._work_usd(common), self._usd_per_s * step_s[row])
                least[row] = devices_usd + self._sum_usd / (factor * steps)
        return least

    def _work_usd(self, common: CommonConfig) -> Floats:
        """Return what the batch costs at least in the domains of each group [groups], 0 without prices."""
        if not self._is_priced:
            return np.zeros(len(self.groups))
        sample_usd = np.full(len(self.problem.fleet.domains), np.inf)
        sample_usd[list(self.members)] = self._rates()[common][1]
        return np.asarray(self.problem.job.global_batch * np.where(self._domains, sample_usd, np.inf).min(axis=1))

    @property
    def _is_priced(self) -> bool:
        return all(self.problem.fleet.domains[i].price_usd_per_device_hour is not None for i in self.members)

    @cached_property
    def _domains(self) -> Bools:
        """Which domains of the fleet each group has [groups, domains]."""
        domains = np.zeros((len(self.groups), len(self.problem.fleet.domains)), dtype=bool)
        for row, group in enumerate(self.groups):
            domains[row, [i for unit in group for i in unit]] = True
        return domains

    @cached_property
    def _usd_per_s(self) -> Floats:
        """What one device in every domain of each group costs [groups]."""
        prices = [domain.price_usd_per_device_hour or 0.0 for domain in self.problem.fleet.domains]
        return np.asarray(self._domains @ np.array(prices) / 3600 * self._is_priced)

    @cached_property
    def _sum_usd(self) -> Floats:
        """What a whole gradient sum between the units of each group costs at least [groups].

        By every algorithm of `simulate.collective` D units send 2 (D - 1) times what is summed, between the first
        domains of their pipelines.
        """
        least = np.zeros(len(self.groups))
        price = np.where(self._bandwidth > 0, self.problem.fleet.price_usd_per_byte(), np.inf)
        for row, group in enumerate(self.groups):
            first = [unit[0] for unit in group]
            least[row] = 2 * (len(group) - 1) * price[np.ix_(first, first)].min()
        return least * self._gradient_bytes * (1 - 1e-12)

    def build(self, sharing: DataParallelPlan, *, all_shapes: bool = True) -> TrainingPlan | None:
        """Return the plan whose units finish together, or None where one cannot hold the model or be reached.

        Not of `all_shapes`: of those that `closer` has built.

        A unit's shape is chosen for speed and for how much of the gradient sum its last backward hides: the
        least total is found by asking for every amount hidden that could pay.
        """
        ways = [self._inners(unit, sharing.way.common, all_shapes=all_shapes) for unit in sharing.units]
        batch, copies = self.problem.job.global_batch, self.problem.job.pins.data
        if not all(ways) or sum(max(each.room * each.samples for each in unit) for unit in ways) < batch:
            return None
        if copies is not None:
            fixed = sharing_copies(ways, batch, copies)
            if fixed is None:
                return None
            ways = fixed
        plan = self._plan(sharing, share(ways, batch))
        if plan.num_samples != batch:  # a copy would be without a sample
            most = batch // len(ways)
            ways = [[inner for inner in unit if inner.plan.pipelines[0].replicas <= most] for unit in ways]
            if not all(ways):
                return None
            plan = self._plan(sharing, share(ways, batch))
        across = self.problem.model.all_reduce(plan)
        wire_s = across.time_s if across is not None else 0.0
        if not np.isfinite(wire_s):
            return None
        best = self._plan(
            sharing, share(best_shapes(ways, batch, wire_s=wire_s, local_steps=sharing.way.local_steps), batch)
        )
        return best if best.num_samples == batch else plan

    def _plan(self, sharing: DataParallelPlan, picked: list[tuple[Inner, int]]) -> TrainingPlan:
        common = sharing.way.common
        longest = max(picked, key=lambda item: len(item[0].plan.domains))[0].plan
        pipelines = []
        for (inner, count), unit in zip(picked, sharing.units, strict=True):
            pipeline, name = (
                with_microbatches(inner.plan.pipelines[0], count),
                self.problem.fleet.domains[unit[0]].name,
            )
            pipelines.append(pipeline if len(unit) > 1 else moved(pipeline, name))
        plan = TrainingPlan(
            pipelines=tuple(pipelines),
            microbatch_size=common.microbatch_size,
            schedule=longest.schedule,
            recompute=common.recompute,
            zero_stage=max(inner.plan.zero_stage for inner, _ in picked),
            gradient_compression=sharing.way.gradient_compression,
            local_steps=sharing.way.local_steps,
            context_exchange=common.context_exchange,
            expert_parallel=common.expert_parallel,
        )
        plan = plan.with_samples(self.problem.job.global_batch)
        # Of fewer microbatches fewer may be in flight than the shapes were chosen for: less is recomputed.
        bare = without_recomputation(self.problem, plan)
        least = fitting(self.problem, bare, (plan.zero_stage,)) if bare is not None else []
        return least[0] if least else bare or plan


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
