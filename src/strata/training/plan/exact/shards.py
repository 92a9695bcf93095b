"""Data parallelism across domains: the batch shared so that all units finish together, gradients summed after.

Every way has a bound before anything is built, closer where units are looked into; and in the end its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import cached_property
from itertools import product
from typing import Final

import numpy as np

from strata.arrays import Floats, Ints
from strata.clock import Check, unlimited
from strata.errors import OutOfTime
from strata.simulate.collective import eta
from strata.training.plan.exact.candidates import Candidates
from strata.training.plan.exact.config import CommonConfig, ParallelConfig
from strata.training.plan.exact.groups import UnitGroups
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.shapes import Rates
from strata.training.plan.exact.sharing_plans import EVERY, DataParallelPlan, SharingPlans, Way
from strata.training.plan.exact.sharing_use import SharingUse
from strata.training.plan.exact.tables import ShapeTables
from strata.training.plan.exact.unit import FASTEST, Inner, Units
from strata.workload.job import Objective
from strata.workload.plan import TrainingPlan

LEVELS: Final = 24
"""Levels of hidden time that a sharing's own bound is looked for in."""

ROUNDING: Final = 1 - 1e-12

CLOSE: Final = 2e-5
"""How close, as a share."""


class ShardSpace(UnitGroups):
    """All ways to share a batch between two or more disjoint units of some domains."""

    def __init__(self, problem: Problem, members: tuple[int, ...], *, is_thorough: bool = True) -> None:
        """Share between units of `members`: see `UnitGroups`, `Units`."""
        super().__init__(problem, members)
        # Copies that are fixed add up from shapes of any speed.
        fastest = FASTEST if problem.job.pins.data is None else EVERY
        self._units = Units(problem, fastest=fastest, is_thorough=is_thorough)
        self._known_rates: dict[CommonConfig, Rates] = {}
        self._known_devices: dict[tuple[int, int], Floats | None] = {}

    @cached_property
    def ways(self) -> tuple[Way, ...]:
        """Every way a sharing may use."""
        job = self.problem.job
        choices = product(self._units.shapes.commons, job.gradient_compression, (1, *job.local_steps))
        return tuple(Way(*choice) for choice in choices if choice[0].holds_outer == (choice[2] > 1))

    def bounds(self, *, check: Check = unlimited) -> Floats:
        """Return a bound on the step time of each (way, group), inf where a unit cannot hold the model.

        Within a time limit the units do no more than their best shapes; the sum of gradients between units takes
        no less than over all their links, less what shapes of such a speed can hide. What `check` raises ends it.
        Shapes are those that might fit, no layers split, as far as `closer` did not ask for others.
        """
        if not self.groups:
            return np.empty((0, 0))
        rows = np.empty((len(self.ways), len(self.groups)))
        for common, ways in self._ways_of.items():
            check()
            rows[ways] = self._bounds(common, check)
        return rows

    def floors(self, *, check: Check = unlimited) -> dict[CommonConfig, tuple[float, float]]:
        """Return for each common setting the time and the money that no sharing in it can beat: looser than
        `bounds` and `least_usd`, and cheap.

        n domains work at the rates of the n fastest at best, and D units are joined by the links of the D that are
        best joined. What hides of their sum is part of the work: T >= R eta + max(0, sum - R) / local steps, where
        R is what the batch takes at those rates, and no less than a microbatch takes in the slowest of the D units
        that are fastest with one.
        """
        if not self.groups:
            return {}
        job, rates = self.problem.job, self._rates(check)
        sums_s = self.least_sum_s(max(job.gradient_compression))
        if len(self.units) > len(self.members):
            sums_s = np.minimum.accumulate(sums_s)  # a unit may have several domains
        sums_s, floors = sums_s[: len(self.members) - 1], {}
        sum_usd = float(self.use.sum_usd.min()) / max(job.gradient_compression)
        for common, (rate, sample_usd, first_s, _) in rates.items():
            together = np.cumsum(np.sort(rate)[::-1])[1:]
            is_able = together > 0
            work_s = np.maximum(job.global_batch / together[is_able], np.sort(first_s)[1:][is_able] * ROUNDING)
            sum_s = sums_s[is_able]
            every = job.local_steps if common.holds_outer else (1,)
            least_s = min(
                float((work_s * eta(steps) + np.maximum(0.0, sum_s - work_s) / steps).min(initial=np.inf))
                for steps in every
            )
            batch_usd = job.global_batch * float(sample_usd.min()) if self.use.is_priced else 0.0
            floors[common] = least_s, batch_usd + sum_usd / max(every)
        return floors

    def _rates(self, check: Check = unlimited) -> dict[CommonConfig, Rates]:
        if not self._known_rates:
            self._known_rates = self._units.shapes.rates(self.members, check=check)
        return self._known_rates

    @property
    def commons(self) -> tuple[CommonConfig, ...]:
        """What pipelines of a sharing may have in common."""
        return self._units.shapes.commons

    def bounds_of(self, common: CommonConfig, *, check: Check = unlimited) -> tuple[list[int], Floats]:
        """Return the ways with this common setting and their bounds [ways, groups] (see `bounds`)."""
        return self._ways_of[common], self._bounds(common, check)

    def _bounds(self, common: CommonConfig, check: Check = unlimited) -> Floats:
        """Return the bounds [ways, groups] of the ways with this common setting."""
        table = self.tables.of(common, check)
        work_s, rows = table.least_s(self.member), []
        for way in (self.ways[number] for number in self._ways_of[common]):
            sums_s = self.sums_s(way.gradient_compression)
            rows.append(table.step_s(work_s, sums_s, local_steps=way.local_steps))
        return np.stack(rows)

    @cached_property
    def _ways_of(self) -> dict[CommonConfig, list[int]]:
        """The numbers of ways by their common setting."""
        numbers: dict[CommonConfig, list[int]] = {}
        for number, (common, _, _) in enumerate(self.ways):
            numbers.setdefault(common, []).append(number)
        return numbers

    def closer(self, way: int, group: int, *, check: Check = unlimited) -> tuple[list[int], Floats] | None:
        """Look into the shapes that the bound of a sharing is for.

        Returns the ways that it concerns and their new bounds [ways, groups]; None where it was done before.
        """
        common = self.ways[way].common
        return (self._ways_of[common], self._bounds(common)) if self._build_best(way, group, check) else None

    @property
    def is_time(self) -> bool:
        """Whether the goal is time alone, which few shapes could serve."""
        return self.problem.job.objective is Objective.TIME and self.problem.job.pins.data is None

    def _build_best(self, way: int, group: int, check: Check = unlimited) -> bool:
        common, factor, steps = self.ways[way]
        member, sum_s = self.member[group : group + 1], self.sums_s(factor)[group : group + 1]
        limit_s, hides_s = self.tables.of(common, check).best_of_groups(member, sum_s, local_steps=steps)
        rows = dict.fromkeys(self._rows(group))
        return np.isfinite(limit_s) and self.tables.build_best(
            common, rows, limit_s=limit_s, hides_s=hides_s, check=check
        )

    def _rows(self, group: int) -> list[int]:
        """Return the kind of each unit of a group."""
        return [int(self.tables.kind[self.position[unit]]) for unit in self.groups[group]]

    @cached_property
    def tables(self) -> ShapeTables:
        """What units of each kind can do."""
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

    def build_in(self, way: int, group: int, settings: Sequence[Sequence[ParallelConfig]]) -> TrainingPlan | None:
        """Return the plan of a sharing whose units are each in one of some settings; None where they have none."""
        sharing = self.sharing(way, group)
        each = [
            [inner for config in own for inner in self._units.of_setting(unit, config)]
            for unit, own in zip(sharing.units, settings, strict=True)
        ]
        return self.plans.build(sharing, each)

    def build_fast(self, way: int, group: int) -> TrainingPlan | None:
        """Return the plan of a sharing of the shapes that could do most in the time that its bound leaves them."""
        sharing, rows = self.sharing(way, group), self._rows(group)
        if self.problem.job.pins.data is not None:
            return self.build(sharing)
        work_s = self._work_limit_s(way, group, self.bound_s(way, group))
        self.tables.add_fast(sharing.way.common, rows, limit_s=work_s)
        return self.build(sharing, all_shapes=False)

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
        if not is_thorough and plan is not None:
            work_s = self._work_limit_s(way, group, self.bound_s(way, group))
            self.tables.add_fast(sharing.way.common, rows, limit_s=work_s)
            plan = self.build(sharing, all_shapes=False)
        if plan is None and not is_thorough:  # the batch is too small for what those work through at once
            return self.build(sharing)
        if is_thorough:
            taken_s = self.problem.model.reports([plan])[0].step_time_s if plan is not None else np.inf
            if not np.isfinite(min(limit_s, taken_s)):
                return self.build(sharing)
            work_s = self._work_limit_s(way, group, min(limit_s, taken_s))
            self.tables.look_near(sharing.way.common, rows, limit_s=work_s)
            plan = self.build(sharing, all_shapes=False)
        return plan

    def could(self, way: int, group: int, *, limit_s: float, check: Check = unlimited) -> bool:
        """Whether a sharing could take no longer than a limit in some shapes, split in any way.

        A plan that hides h of its sum W has T >= W eta + max(0, sum - min(h, W)) / local steps; so levels of h are
        asked, from one value of a shape to the next, for the work that they leave time for.
        """
        common, factor, steps = self.ways[way]
        rows, counts = np.unique(self._rows(group), return_counts=True)
        kinds, sum_s = [self.tables.candidates(common, int(row)) for row in rows], self.sums_s(factor)[group]
        if not all(len(kind.configs) for kind in kinds):
            return False
        while True:
            level = self._level_within(kinds, counts, sum_s=float(sum_s), steps=steps, limit_s=limit_s)
            if level is None:
                return False
            (work_s, hides_s), is_closer = level, False
            for kind in kinds:
                best = kind.best_open(work_s, hides_s, is_step=steps == 1)
                if best is not None:
                    check()
                    kind.look(*best)
                    is_closer = True
            if not is_closer:
                return True

    def _level_within(
        self, kinds: Sequence[Candidates], counts: Ints, *, sum_s: float, steps: int, limit_s: float
    ) -> tuple[float, float] | None:
        """Return what time the work has, and what is hidden, where that is enough for so many units of some kinds
        within a limit; None: nowhere is it."""
        every = np.unique(np.minimum(np.concatenate([kind.hidden_s for kind in kinds]), sum_s))
        first, last = np.array([0]), np.array([len(every) - 1])
        while True:
            first, last = _parts(first, last)
            hides_s, work_s = every[first], self._work_s(limit_s, every[last], sum_s, steps)
            done = np.zeros(len(work_s))
            for kind, count in zip(kinds, counts.tolist(), strict=True):
                done += count * kind.most_hiding(work_s, hides_s, is_step=steps == 1).max(axis=0)
            enough = np.flatnonzero((done >= self.problem.job.global_batch * (1 - 1e-9)) & (work_s > 0))
            if not len(enough):
                return None
            single = enough[first[enough] == last[enough]]
            if len(single):
                return float(work_s[single[0]]), float(hides_s[single[0]])
            first, last = first[enough], last[enough]

    def own_bound_s(self, way: int, group: int, *, limit_s: float, check: Check = unlimited) -> float:
        """Return what no plan of a sharing beats, its layers split in any way; no more than a limit."""
        low = min(limit_s, self.bound_s(way, group))
        high = limit_s
        while high - low > CLOSE * high:
            middle = (low + high) / 2
            if self.could(way, group, limit_s=middle, check=check):
                high = middle
            else:
                low = middle
        return low

    @staticmethod
    def _work_s(limit_s: float, hidden_s: Floats, sum_s: float, steps: int) -> Floats:
        """Return how long the work may take where so much is hidden of a sum after `steps` of them."""
        hidden_s = np.minimum(hidden_s, sum_s)
        work_s = (limit_s - (sum_s - hidden_s) / steps) / eta(steps)
        if steps == 1:  # what hides is work: the sum alone takes no longer
            return np.where(sum_s <= limit_s, work_s, 0.0)
        shorter_s = (limit_s - sum_s / steps) / (eta(steps) - 1 / steps)
        return np.asarray(np.where(work_s >= hidden_s, work_s, np.minimum(shorter_s, hidden_s)))

    def _work_limit_s(self, way: int, group: int, limit_s: float) -> float:
        """Return within which time units must do the batch for a step within a limit: what no shape can hide of
        their gradient sum comes after it."""
        common, factor, steps = self.ways[way]
        exposed_s = self.sums_s(factor)[group] - self.tables.most_hidden_s(common, self._rows(group))
        return float(limit_s - max(0.0, exposed_s) / steps) / eta(steps)

    def bound_s(self, way: int, group: int) -> float:
        """Return the bound on the step time of one sharing, as close as what was built makes it."""
        common, factor, steps = self.ways[way]
        table, sum_s = self.tables.of(common), self.sums_s(factor)[group : group + 1]
        work_s = table.least_s(self.member[group : group + 1])
        return float(table.step_s(work_s, sum_s, local_steps=steps)[0])

    def free_bound_s(self, *, enough_s: float | None = None, check: Check = unlimited) -> float:
        """Return a bound on the step time of any sharing of any of the units, whatever their number.

        Per common setting: the D units that work fastest take part, over the best joining D links (see `bounds`).
        They are looked into by their floors; of those that `check` leaves no time for, the floors count. With
        `enough_s` shapes are built for closer bounds, until that is reached.
        """
        sum_s = self.least_sum_s(max(self.problem.job.gradient_compression))
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

    def least_s(self, common: CommonConfig, *, check: Check = unlimited) -> float:
        """Return a bound on the step time of any sharing with this common setting, closer than `floors`."""
        sum_s = self.least_sum_s(max(self.problem.job.gradient_compression))
        return self._least_of_any(common, sum_s, check)[0]

    def _least_of_any(self, common: CommonConfig, sum_s: Floats, check: Check) -> tuple[float, int]:
        """Return the least step time of any units, and the local steps that it is for."""
        table, ways = self.tables.of(common, check), self.problem.job.local_steps if common.holds_outer else (1,)
        work_s = table.least_of_any_s()
        return min((float(table.step_s(work_s, sum_s, local_steps=n).min(initial=np.inf)), n) for n in ways)

    def _build_best_of_any(self, common: CommonConfig, sum_s: Floats, check: Check) -> bool:
        _, steps = self._least_of_any(common, sum_s, check)
        limit_s, hides_s, rows = self.tables.of(common).best_of_any(sum_s, local_steps=steps)
        return np.isfinite(limit_s) and self.tables.build_best(
            common, rows.tolist(), limit_s=limit_s, hides_s=hides_s, check=check
        )

    def sharing(self, way: int, group: int) -> DataParallelPlan:
        """Return the sharing of one entry of `bounds`."""
        return DataParallelPlan(self.groups[group], self.ways[way])

    def least_usd(self, ways: Sequence[int], step_s: Floats) -> Floats:
        """Return what sharings that take so long [ways, groups] cost at least [USD]."""
        rows = zip((self.ways[number] for number in ways), step_s, strict=True)
        return np.array([self.use.least_usd(way, each_s) for way, each_s in rows]).reshape(step_s.shape)

    def most_utilization(self, ways: Sequence[int], step_s: Floats) -> Floats:
        """Return the utilisation that sharings which take so long [ways, groups] have at most."""
        rows = zip((self.ways[number] for number in ways), step_s, strict=True)
        return np.array([self.use.most_utilization(way, each_s) for way, each_s in rows]).reshape(step_s.shape)

    def bounds_of_plan(
        self, way: int, group: int, step_s: float, *, check: Check = unlimited
    ) -> tuple[float, float] | None:
        """Return what the plan of a sharing (`build`, of all shapes) uses of its devices at most and what it costs
        at least [USD], if it takes so long; None where no more than of any plan is known."""
        if (way, group) not in self._known_devices:
            sharing = self.sharing(way, group)
            inners = self._inners(sharing, check)
            self._known_devices[way, group] = self.plans.fewest_devices(sharing, inners)
        devices = self._known_devices[way, group]
        return None if devices is None else self.use.of_devices(self.ways[way], group, devices, step_s)

    def _inners(self, sharing: DataParallelPlan, check: Check) -> list[list[Inner]]:
        """Return all shapes of the units of a sharing."""
        for unit in sharing.units:
            check()
            self._units.inners_of_kind(unit, sharing.way.common)  # dozens of shapes, where they are new
        return [self._units.inners_of_kind(unit, sharing.way.common) for unit in sharing.units]

    @cached_property
    def use(self) -> SharingUse:
        """What sharings use."""
        return SharingUse(self, self.tables, self._rates())

    def build(
        self, sharing: DataParallelPlan, *, all_shapes: bool = True, check: Check = unlimited
    ) -> TrainingPlan | None:
        """Return the plan whose units finish together, or None where one cannot hold the model or be reached.

        Not of `all_shapes`: of those that were looked into.
        """
        common = sharing.way.common
        if all_shapes:
            return self.plans.build(sharing, self._inners(sharing, check))
        kinds = [int(self.tables.kind[self.position[unit]]) for unit in sharing.units]
        return self.plans.build(sharing, [self.tables.built(kind, common) for kind in kinds])

    @cached_property
    def plans(self) -> SharingPlans:
        """What builds them."""
        return SharingPlans(self.problem, self._units)


def _parts(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Return ranges from a first to a last position, each cut into some LEVELS parts where there are as many."""
    begins = [
        np.unique(np.linspace(low, high, max(2, LEVELS // len(first))).round().astype(int))
        for low, high in zip(first.tolist(), last.tolist(), strict=True)
    ]
    ends = [np.append(begin[1:] - 1, high) for begin, high in zip(begins, last.tolist(), strict=True)]
    return np.concatenate(begins), np.concatenate(ends)
