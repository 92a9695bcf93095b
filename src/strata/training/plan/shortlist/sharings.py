"""What sharings of the batch between units would take, before any is built: all ways and groups at once.

The bounds of `ShardSpace` build the shapes of every unit and add up all its links; here shapes are estimated,
and the gradient sum is the fastest of direct, star and (at best) ring. Estimates only.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.simulate.collective import eta
from strata.training.plan.exact.chain_space import ChainSpace
from strata.training.plan.exact.config import CommonConfig, ParallelConfig
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.shapes import Unit
from strata.training.plan.exact.shards import ShardSpace
from strata.training.plan.shortlist.pipelines import HALVINGS, ChainEstimates, PipelineThroughput

Key = CommonConfig

SHAPES: Final = 48
"""Shapes of a unit that are tabulated for each microbatch and recomputation: the fastest."""

FEW: Final = 4
"""Settings of a unit that are built."""

GRID: Final = 160
STEP: Final = 1.05
"""Time limits at which the units' samples are tabulated: over a range of 2,000, read between linearly."""


class DataParallelEstimates:
    """Estimates of (time, -utilisation, money) of the sharings of a ShardSpace."""

    def __init__(self, problem: Problem, shards: ShardSpace, chains: ChainSpace) -> None:
        self.problem, self.shards = problem, shards
        # Units are used whole: the largest cap, the last one, stands for all.
        uncapped = {shape.uncapped: shape for shape in problem.shapes}
        self.configs = [
            shape.of_size(size)
            for shape in uncapped.values()
            for size in problem.microbatch_sizes
            if size * shape.data_parallel <= problem.job.global_batch
        ]
        self.chains = ChainEstimates(problem, chains, self.configs)
        position = {unit: k for k, unit in enumerate(shards.units)}
        self.member = np.zeros((len(shards.groups), len(shards.units)), dtype=bool)
        for row, group in enumerate(shards.groups):
            self.member[row, [position[unit] for unit in group]] = True

    def values(self) -> tuple[Floats, Ints, Ints]:
        """Return [3, N], and the way and the group of each; sharings that cannot be are left out."""
        if not len(self.member) or not self.shards.ways:
            return np.empty((3, 0)), *np.empty((2, 0), dtype=np.int64)
        wire_s, sent_usd = self._wires
        step_s, usd = [], []
        for common, factor, steps in self.shards.ways:
            work_s, hidden_s = self._work[_bare(common)]
            step_s.append(work_s * eta(steps) + np.maximum(0.0, wire_s / factor - hidden_s) / steps)
            usd.append(sent_usd / (factor * steps))
        times, sent = np.stack(step_s), np.stack(usd)
        ways, groups = np.nonzero(np.isfinite(times))
        feasible_s = times[ways, groups]
        rate, usd_per_s = self._rates
        used = np.minimum(1.0, self.problem.job.global_batch / np.maximum(rate[groups] * feasible_s, 1e-300))
        return np.stack([feasible_s, -used, feasible_s * usd_per_s[groups] + sent[ways, groups]]), ways, groups

    def settings(self, way: int, group: int) -> list[list[ParallelConfig]]:
        """Return for each unit of a sharing the settings, at most FEW, that do most in the time of the batch."""
        key, units = _bare(self.shards.ways[way].common), self.shards.tables.kind[self.member[group]]
        samples, fill, period, _ = self._shapes[key][:, units]
        # Copies without a sample would be idle: none beyond a unit's share of the batch.
        rate, copies = (samples / period).max(axis=1), samples / key.microbatch_size
        least = np.where(samples > 0, copies, np.inf).min(axis=1)
        most = np.maximum(np.ceil(self.problem.job.global_batch * rate / rate.sum()), least)
        samples = np.where(copies <= most[:, None], samples, 0.0)

        def done(limit_s: float) -> Floats:
            return np.asarray(np.maximum(0.0, np.floor((limit_s - fill) / period + 1)) * samples)

        low = high = float(self._work[key][0][group])
        while done(high).max(axis=1).sum() < self.problem.job.global_batch:
            low, high = high, high * STEP
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            is_enough = done(middle).max(axis=1).sum() >= self.problem.job.global_batch
            low, high = (low, middle) if is_enough else (middle, high)
        picked = []
        for own, early, rows in zip(done(high), fill, self._rows[key][units], strict=True):
            order = np.lexsort((early, -own))
            able = dict.fromkeys(rows[at] for at in order.tolist() if own[at] > 0)
            picked.append([self.configs[row] for row in islice(able, FEW)])
        return picked

    @cached_property
    def _alike(self) -> tuple[Floats, Ints]:
        """How many units of each kind are in a group, of all groups that differ in that [alike, kind], and which
        of those each group is like. As floats: BLAS, which is far faster, multiplies nothing else."""
        kind = self.shards.tables.kind
        counted = self.member @ (kind[:, None] == np.arange(kind.max() + 1)).astype(float)
        counted, number = np.unique(counted, axis=0, return_inverse=True)
        return counted, number.reshape(-1)

    @cached_property
    def _work(self) -> dict[Key, tuple[Floats, Floats]]:
        number = self._alike[1]
        each = {key: self._work_s(key) for key in self._shapes}
        return {key: (work_s[number], hidden_s[number]) for key, (work_s, hidden_s) in each.items()}

    @cached_property
    def _rates(self) -> tuple[Floats, Floats]:
        """Samples a second of each group if all its devices did useful work only, and their price a second."""
        domains, problem = self.problem.fleet.domains, self.problem
        config = problem.configs[0]
        useful = problem.compute_cost(config).useful_s / config.microbatch_size
        devices = np.array([d.num_devices for d in domains], dtype=float)
        known = np.isfinite(useful) & (useful > 0)
        rate = np.divide(devices, useful, out=np.zeros_like(devices), where=known)
        inside = np.zeros((len(self.shards.units), len(domains)))
        for k, unit in enumerate(self.shards.units):
            inside[k, list(unit)] = 1.0
        inside = self.member @ inside
        return inside @ rate, inside @ (devices * self.chains.usd_per_s)

    @cached_property
    def _wires(self) -> tuple[Floats, Floats]:
        """Time and money of one gradient sum of each group (see `simulate.collective`)."""
        fleet, job, member = self.problem.fleet, self.problem.job, self.member
        first = [unit[0] for unit in self.shards.units]
        size = float(job.layers.params_before[-1]) * job.element_bytes
        with np.errstate(divide="ignore"):
            slow = 1 / self.shards.between
        worst = np.maximum(slow, slow.T)
        pair = np.where(member[:, :, None] & member[:, None, :], worst, np.nan)
        pair[:, range(len(first)), range(len(first))] = np.nan
        count, outside = member.sum(axis=1), ~member
        late = fleet.latency_s()[np.ix_(first, first)]
        late = np.where(np.isfinite(late), late, 0.0)
        late_s = 2 * np.where(member[:, :, None] & member[:, None, :], late, 0.0).max(axis=(1, 2))
        slowest = np.where(outside, 0.0, np.nan_to_num(pair, nan=0.0, posinf=np.inf).max(axis=2))
        rate = np.where(outside, 0.0, 1 / np.maximum(slowest, 1e-30))
        direct_s = np.where(
            np.isfinite(slowest).all(axis=1), 2 * size / np.maximum(rate.sum(axis=1), 1e-300), np.inf
        )
        star_s = 2 * size * np.where(outside, np.inf, slowest).min(axis=1)
        # A ring gives each member two neighbours: it is no faster than the second best link of any.
        near = np.sort(np.where(np.isnan(pair), np.inf, pair), axis=2)
        second = near[:, :, 1] if near.shape[2] > 1 else near[:, :, 0]
        second = np.where(count[:, None] == 2, near[:, :, 0], second)
        ring_s = 2 * (count - 1) / count * size * np.where(outside, 0.0, second).max(axis=1)
        all_s = np.stack([direct_s + late_s, star_s + late_s, ring_s + (count - 1) * late_s])
        price = fleet.price_usd_per_byte()[np.ix_(first, first)]
        price = np.where(np.isfinite(price), price, 0.0)
        np.fill_diagonal(price, 0.0)
        both = member @ (price + price.T)  # [group, unit]: USD a byte sent to all others and back
        chunk = size * rate / np.maximum(rate.sum(axis=1, keepdims=True), 1e-300)
        hub = np.where(outside, np.inf, slowest).argmin(axis=1)
        usd = np.stack(
            [
                (chunk * both).sum(axis=1),
                size * both[np.arange(len(member)), hub],
                size / count * np.where(member, both, 0.0).sum(axis=1),
            ]
        )
        best = all_s.argmin(axis=0)
        rows = np.arange(len(member))
        return all_s[best, rows], usd[best, rows]

    def _work_s(self, key: Key) -> tuple[Floats, Floats]:
        """Return how long like groups compute, their units sharing the batch, and what their backwards hide."""
        samples, fill, period, hidden = self._shapes[key]
        batch, (counted, _) = self.problem.job.global_batch, self._alike
        fastest = (samples / period).argmax(axis=1)[:, None]
        rate, begins = (np.take_along_axis(each, fastest, axis=1)[:, 0] for each in (samples / period, fill))
        is_able = counted @ (rate == 0) == 0
        # By then the fastest shapes alone do the batch, in whatever group.
        each_s = (batch + counted @ (rate * begins)) / np.maximum(counted @ rate, 1e-300)
        limits = batch / max(float(rate[self.shards.tables.kind].sum()), 1e-300) * STEP ** np.arange(GRID)
        limits = limits[: np.searchsorted(limits, each_s[is_able].max(initial=0.0)) + 2]
        done = np.maximum(0.0, np.floor((limits[:, None, None] - fill) / period + 1)) * samples
        together = counted @ done.max(axis=2).T  # [alike, limit]
        # A unit hides what the shape hides that it uses: near a unit's least time seldom its fastest one.
        hides = hidden[np.arange(len(hidden)), done.argmax(axis=2)]  # [limit, kind]
        enough = together >= batch
        at = np.maximum(enough.argmax(axis=1), 1)
        rows = np.arange(len(counted))
        low, high = together[rows, at - 1], together[rows, at]
        part = np.clip((batch - low) / np.maximum(high - low, 1e-300), 0.0, 1.0)
        work_s = limits[at - 1] + part * (limits[at] - limits[at - 1])
        # No unit may be idle: each does a microbatch at least.
        once = np.where(samples > 0, fill, np.inf).min(axis=1)
        work_s = np.maximum(work_s, np.where(counted > 0, once, 0.0).max(axis=1))
        hidden_s = np.where(counted > 0, hides[at], np.inf).min(axis=1)
        return np.where(enough[:, -1] & is_able, work_s, np.inf), hidden_s

    @cached_property
    def _shapes(self) -> dict[Key, Floats]:
        """Samples, fill, period and what is hidden [4, kind, SHAPES] of the fastest shapes."""
        units, configs = self.shards.tables.kinds, self.configs
        tables = {
            key: np.zeros((4, len(units), SHAPES)) for key in {_bare(way.common) for way in self.shards.ways}
        }
        self._rows = {key: np.zeros((len(units), SHAPES), dtype=np.int64) for key in tables}
        for table in tables.values():
            table[2] = 1.0
        number: dict[Key, int] = {}
        common = np.array([number.setdefault(config.common, len(number)) for config in configs])
        for row, unit in enumerate(units):
            rows_of_unit = np.flatnonzero(self._whole(unit))
            if not len(rows_of_unit):
                continue
            figures = self._figures(rows_of_unit, unit)
            rate = figures[0] / figures[2]
            of_common = np.where(rate > 0, np.tile(common[rows_of_unit], len(rate) // len(rows_of_unit)), -1)
            # Of few microbatches those that are done with the first soonest do most.
            orders = np.stack([np.lexsort((score, of_common)) for score in (-rate, figures[1])], axis=1)
            of_common = of_common[orders[:, 0]]
            for key in tables:
                inside = slice(*np.searchsorted(of_common, number.get(key, len(number)) + np.arange(2)))
                best = np.array(list(dict.fromkeys(orders[inside].ravel().tolist()))[:SHAPES], np.int64)
                tables[key][:, row, : len(best)] = figures[:, best]
                self._rows[key][row, : len(best)] = rows_of_unit[best % len(rows_of_unit)]
        return tables

    def _figures(self, rows_of_unit: Ints, unit: Unit) -> Floats:
        """Return samples, fill, period and what is hidden [4, N] of settings on a unit.

        A chain of domains has them twice. Of classic 1F1B two microbatches are under way between neighbours, one
        more for every stage between, so each waits for its share of the round trips; or more are under way, and
        need memory.
        """
        costs, here, there = self.problem.pair_costs(1), list(unit[:-1]), list(unit[1:])
        at = np.tile(np.array(unit), (len(rows_of_unit), 1))
        load = self.chains.load[rows_of_unit][:, None]
        slow, rounds, late, price = (
            each[here, there] for each in (costs.slowness, costs.slowness_sum, costs.latency_sum, costs.price_sum)
        )
        route = np.array([slow.max(initial=0.0), rounds.sum(), late.sum(), price.sum()])
        route = np.tile(route[:, None], (1, len(rows_of_unit)))
        made = self.chains.size[rows_of_unit] * self.chains.data_parallel[rows_of_unit]
        classic = self.chains.throughput(rows_of_unit, at, route)
        if len(unit) == 1:
            return _table(made, classic, 0.0)
        trips = load * rounds + late  # [N, link]
        between = np.cumsum(self.chains.stages[rows_of_unit][:, unit], axis=1)[:, :-1]  # stages before each link
        wait = trips.max(axis=1) / 2
        for first in range(len(here)):
            for last in range(first + 1, len(here)):
                under_way = between[:, last] - between[:, first] + 2
                wait = np.maximum(wait, trips[:, first : last + 1].sum(axis=1) / under_way)
        deep = self.chains.throughput(rows_of_unit, at, route, ahead=trips.sum(axis=1) / classic.period_s)
        return np.concatenate([_table(made, classic, wait), _table(made, deep, 0.0)], axis=1)

    def _whole(self, unit: Unit) -> Bools:
        """Whether each configuration uses all that a unit has."""
        at = list(unit)
        most = self.chains.slots[:, at] // self.chains.data_parallel[:, None]
        stages = self.chains.stages[:, at]
        total = stages.sum(axis=1)
        return np.asarray(((stages == most) & (stages > 0)).all(axis=1) & (total <= len(self.problem.job.layers)))


def _bare(common: CommonConfig) -> CommonConfig:
    """Return it without the state of an outer optimizer: room for that is seen when a sharing is built."""
    return replace(common, holds_outer=False)


def _table(made: Floats, throughput: PipelineThroughput, more_s: Floats | float) -> Floats:
    """Return samples (0: no room), fill, period and what is hidden [4, N], periods longer by `more_s`."""
    possible = np.isfinite(throughput.period_s)
    period_s = np.where(possible, throughput.period_s + more_s, 1.0)
    return np.stack(
        [np.where(possible, made, 0.0), throughput.path_s + throughput.after_s, period_s, throughput.hidden_s]
    )
