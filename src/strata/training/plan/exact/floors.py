"""What no pipeline in a setting can beat, for all settings at once: looser than `ChainSpace.bounds`, and cheap.

m domains are never better than the m that have most stages at their speed, joined by the m - 1 best links there
are. With W the least work of a microbatch, M microbatches, x the slowest link and C the round trips of the route:
T >= W + C + (M - 1) x; T >= M / Σ(stages / work), where no more than one stage a layer counts; T >= M times
the longest layer; and T >= c W, where c depends on stages and microbatches alone (`_factors`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from strata.arrays import Floats, Ints
from strata.clock import Check, unlimited
from strata.fleet.fleet import Domain
from strata.simulate.screening import any_split_bound_s
from strata.training.plan.exact.config import ParallelConfig
from strata.training.plan.exact.orders import chunk_counts
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.routes import PairCosts
from strata.workload.job import Schedule

ROUNDING: Final = 1 - 1e-12
"""A floor must not exceed by rounding what it is exactly equal to."""

UNCHECKED: Final = 16
"""Settings between two looks at the clock: half a millisecond each, and a look is not free everywhere."""

CELLS: Final = 2**21
"""Settings and domains looked at together: 16 MB an array."""


@dataclass(frozen=True, slots=True)
class Works:
    """Settings [N] as arrays, and what a microbatch takes in each, by domain [N, K]; inf where none can be."""

    microbatch_size: Ints
    data_parallel: Ints
    microbatches: Ints
    stages: Ints
    work_s: Floats
    path_share: Floats
    weight_share: Floats
    longest_s: Floats
    update_s: Floats
    usd_per_s: Floats


class ChainFloors:
    """Floors of pipelines over some domains (positions in the fleet)."""

    def __init__(self, problem: Problem, members: Sequence[int]) -> None:
        self.problem, self.members = problem, members

    @cached_property
    def _columns(self) -> Ints:
        """The domains that count: of those alike no more than a pipeline of one stage each has."""
        count: dict[Domain, int] = {}
        kept = []
        for index in self.members:
            like = replace(self.problem.fleet.domains[index], name="", region="")
            count[like] = count.get(like, 0) + 1
            if count[like] <= len(self.problem.job.layers):
                kept.append(index)
        return np.array(kept, dtype=np.int64)

    def step_s(self, settings: Sequence[ParallelConfig], *, check: Check = unlimited) -> Floats:
        """Return the floors [settings, m - 1] of pipelines over m domains, inf where there are none."""
        return self.step_s_and_usd(settings, check=check)[0]

    def step_s_and_usd(
        self, settings: Sequence[ParallelConfig], *, check: Check = unlimited
    ) -> tuple[Floats, Floats]:
        """Return `step_s`, and what the batch costs at least [settings]: on devices that do it for the least and
        never wait, 0 where a price is not known."""
        rows = max(1, CELLS // max(1, len(self._columns)))
        steps_s, usd = list[Floats](), [np.empty(0)]
        for at in range(0, len(settings), rows):
            works = self.works(settings[at : at + rows], check=check)
            steps_s.append(self._step_s(works))
            usd.append(self._usd(works))
        width = max((part.shape[1] for part in steps_s), default=0)
        return np.concatenate([np.empty((0, width)), *steps_s]), np.concatenate(usd)

    def _usd(self, works: Works) -> Floats:
        if any(self.problem.fleet.domains[i].price_usd_per_device_hour is None for i in self.members):
            return np.zeros(len(works.microbatch_size))
        with np.errstate(invalid="ignore"):
            each = np.where(np.isfinite(works.work_s), works.usd_per_s * works.work_s, np.inf)
        least = each.min(axis=1, initial=np.inf)
        return np.asarray(
            np.where(np.isfinite(least), least, 0.0) * self.problem.job.global_batch / works.microbatch_size
        )

    def works(
        self, settings: Sequence[ParallelConfig], *, columns: Ints | None = None, check: Check = unlimited
    ) -> Works:
        """Return settings as arrays, for the domains that count or these positions in the fleet."""
        problem, columns = self.problem, self._columns if columns is None else columns
        domains = [problem.fleet.domains[i] for i in columns]
        rows: dict[object, int] = {}
        costs = []
        row = np.empty(len(settings), dtype=np.int64)
        for at, setting in enumerate(settings):
            if setting.work not in rows:
                if not len(rows) % UNCHECKED:
                    check()
                rows[setting.work] = len(rows)
                costs.append(problem.compute_cost(setting))
            row[at] = rows[setting.work]
        ways = [(s.tensor_parallel, s.context_parallel) for s in settings]
        slots = {way: np.array([problem.slots(domain, *way) for domain in domains]) for way in set(ways)}
        devices = {
            ranks: np.array([problem.ranks(domain, setting) for domain in domains])
            for ranks, setting in {s.tensor_parallel: s for s in settings}.items()
        }
        usd = np.array([domain.price_usd_per_device_hour or 0.0 for domain in domains]) / 3600
        each = np.array(
            [
                (s.microbatch_size, s.data_parallel, s.cap, problem.microbatches(s), s.context_parallel)
                for s in settings
            ],
            dtype=np.int64,
        ).reshape(-1, 5)
        size, copies, cap, count, pieces = each.T
        stages = np.minimum(np.array([slots[way] for way in ways]) // copies[:, None], cap[:, None])
        used = np.array([devices[s.tensor_parallel] for s in settings]) * pieces[:, None]
        share = np.array([cost.weight_share for cost in costs])[row]
        is_sharded = max(problem.job.zero_stages) > 0 or problem.splitting.is_any
        shards = copies * pieces if is_sharded else np.ones_like(copies)
        apart = Schedule.ZERO_BUBBLE in problem.job.schedules
        return Works(
            microbatch_size=size, data_parallel=copies, microbatches=count, stages=stages,
            work_s=np.array([cost.work_s[columns] for cost in costs])[row],
            path_share=1.0 - share if apart else np.ones(len(share)), weight_share=share,
            longest_s=np.array([cost.longest_s[columns] for cost in costs])[row],
            update_s=np.array([cost.update_s[columns] for cost in costs])[row] / shards[:, None],
            usd_per_s=used * usd,
        )  # fmt: skip

    def _step_s(self, works: Works) -> Floats:
        layers = len(self.problem.job.layers)
        usable = (works.stages > 0) & (works.stages <= layers) & np.isfinite(works.work_s)
        stages = np.where(usable, works.stages, 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            rate = np.where(usable, stages / works.work_s, 0.0)
        work_s = np.where(usable, works.work_s, np.inf).min(axis=1, initial=np.inf)[:, None]
        most = min(len(self.members), layers)
        rate = np.cumsum(-np.sort(-rate, axis=1), axis=1)[:, :most]
        total = np.minimum(np.cumsum(-np.sort(-stages, axis=1), axis=1), layers)[:, :most]
        is_there = np.arange(1, rate.shape[1] + 1) <= usable.sum(axis=1)[:, None]
        count = works.microbatches[:, None]
        slow_sum, latency, slowest = (wire[:, : rate.shape[1]] for wire in self._wires(works.microbatch_size))
        load = (self.problem.message_bytes(1) * works.data_parallel * works.microbatch_size)[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            whole, chunked, row = self._factors(works)
            step_s = np.maximum(count / np.minimum(rate, layers / work_s), work_s * whole[row, total])
            longest_s = np.where(usable, works.longest_s, np.inf).min(axis=1, initial=np.inf)[:, None]
            step_s = np.maximum(step_s, count * longest_s)
            route = load * slow_sum + latency + np.where(count > 1, (count - 1) * load * slowest, 0.0)
            step_s = np.maximum(step_s, work_s * works.path_share[:, None] + route)
            # One domain is none but itself.
            alone = works.work_s * np.maximum(chunked[row, stages], count / stages)
            alone = np.maximum(alone, count * works.longest_s) + works.update_s / stages
            if Schedule.DUAL_PIPE_V in self.problem.job.schedules:
                paced = np.maximum(works.work_s * count / stages, count * works.longest_s)
                alone = np.minimum(alone, np.where((stages > 1) & (2 * stages <= count), paced, np.inf))
            step_s[:, :1] = np.where(usable, alone, np.inf).min(axis=1, initial=np.inf)[:, None]
        return np.asarray(np.where(is_there, step_s * ROUNDING, np.inf))

    def _factors(self, works: Works) -> tuple[Floats, Floats, Ints]:
        """Return c with T >= c W of pipelines over several domains and inside one, and the settings' rows [N, 1].

        By microbatches and stages at most [rows, layers + 1]: 1 / (1 - (1 - 1/M)^S), and what weight gradients
        apart, and in one domain interleaved chunks, make of it.
        """
        job = self.problem.job
        counts, row = np.unique(works.microbatches, return_inverse=True)
        batches, depth = counts[:, None], np.maximum(1, np.arange(len(job.layers) + 1))
        batches, depth = np.broadcast_arrays(batches, depth)
        whole = any_split_bound_s(np.ones(1), depth, batches, pieces=1)
        if Schedule.ZERO_BUBBLE in job.schedules:
            share = float(works.weight_share.max(initial=0.0))
            whole = np.minimum(whole, zero_bubble_shares(depth, batches, share))
        chunked = whole
        if Schedule.INTERLEAVED in job.schedules or (job.pins.virtual_stages or 1) > 1:
            # Fewer stages may have more chunks: the bound of the most holds for all.
            pieces = max(chunk_counts(job, 2), default=1)
            chunked = np.minimum(whole, any_split_bound_s(np.ones(1), depth, batches, pieces=pieces))
        return whole, chunked, row[:, None]

    def _wires(self, microbatch_size: Ints) -> tuple[Floats, Floats, Floats]:
        """Return for each setting and m = 1.. the least Σ 1/B, Σ latency and slowest link that join m domains."""
        if len(self.members) == 1:  # no link: those of a thousand domains take a second to look at
            none = np.zeros((len(microbatch_size), 1))
            return none, none, none
        curved = any(link.curve is not None for link in self.problem.fleet.links.values())
        sizes, row = np.unique(microbatch_size if curved else np.ones_like(microbatch_size), return_inverse=True)
        each = [self._least_wires(int(size)) for size in sizes]
        columns = [np.stack(column)[row] for column in zip(*each, strict=True)]
        return columns[0], columns[1], columns[2]

    def _least_wires(self, microbatch_size: int) -> tuple[Floats, Floats, Floats]:
        if microbatch_size not in self._wires_of:
            self._wires_of[microbatch_size] = least_wires(
                self.problem.pair_costs(microbatch_size), self.members, most=len(self.problem.job.layers)
            )
        return self._wires_of[microbatch_size]

    @cached_property
    def _wires_of(self) -> dict[int, tuple[Floats, Floats, Floats]]:
        return {}


def zero_bubble_shares(stages: Ints, microbatches: Ints, weight_share: float) -> Floats:
    """Return `screening.zero_bubble_share` of many pipelines at once."""
    later, each = np.zeros(np.broadcast(stages, microbatches).shape), 1 - weight_share
    for stage in range(int(stages.max(initial=1)) - 1, -1, -1):
        most = microbatches - weight_share * np.minimum(stage + 1, microbatches) if stage else microbatches
        later += np.where(stage < stages, np.maximum(0.0, 1.0 - each * later) / most, 0.0)
    return np.asarray(1 / later)


def least_wires(costs: PairCosts, members: Sequence[int], *, most: int) -> tuple[Floats, Floats, Floats]:
    """Return for m = 1.. up to `most` the least Σ 1/B, Σ latency and slowest link that could connect m of some."""
    pick, most = np.ix_(members, members), min(most, len(members))
    upper = np.triu_indices(len(members), 1)
    sums = []
    for matrix in (costs.slowness_sum, costs.latency_sum):
        values = matrix[pick][upper]
        if len(values) > most:
            values = np.partition(values, most)[:most]
        sums.append(np.concatenate([[0.0], np.cumsum(np.sort(values))])[:most])
    return sums[0], sums[1], least_slowest(costs.slowness[pick], most=most)


def least_slowest(slowness: Floats, *, most: int) -> Floats:
    """Return for m = 1.. up to `most` the least possible slowest link that connects some m domains (Kruskal)."""
    count = len(slowness)
    parent, size = list(range(count)), [1] * count

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    least = np.full(count, np.inf)
    least[0] = 0.0
    rows, columns = np.tril_indices(count, -1)
    values = slowness[rows, columns]
    joined = 1
    for at in np.argsort(values, kind="stable"):
        if joined >= most or not np.isfinite(values[at]):
            break
        a, b = root(int(rows[at])), root(int(columns[at]))
        if a == b:
            continue
        parent[a] = b
        size[b] += size[a]
        if size[b] > joined:
            least[joined : size[b]] = values[at]
            joined = size[b]
    return least[:most]
