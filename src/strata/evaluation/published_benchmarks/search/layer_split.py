"""Layers onto stages: the best contiguous split of many stage sequences at once.

Letters: B candidates, S stages (one number for the whole batch), L layers. `first` [B, S + 1] holds each
stage's first layer, and L at the end.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache
from math import comb
from typing import Final

import numpy as np

from strata.arrays import Bools, Ints
from strata.evaluation.published_benchmarks.case_file import Array
from strata.evaluation.published_benchmarks.search.stage_kinds import KindTable, Rings

EVERY_CUT: Final = 100
"""Up to so many splits of a candidate are all tried."""

BISECTIONS: Final = 12
MAX_ROUNDS: Final = 40
REFINE_WITHIN: Final = 1.08
POLISH_WITHIN: Final = 1.02
"""A split is refined, then polished, where it is at most this much slower than what would be an improvement."""


@dataclass(frozen=True, slots=True)
class SplitBatch:
    """B candidates of S stages: the kind of each stage [B, S], replicas [B], microbatches [B]."""

    kinds: Ints
    replicas: Ints
    num_microbatches: Ints

    def take(self, rows: Ints | Bools) -> SplitBatch:
        """Return some of the candidates."""
        return SplitBatch(self.kinds[rows], self.replicas[rows], self.num_microbatches[rows])

    def __len__(self) -> int:
        return len(self.replicas)


class Splitter:
    """Splits for one kind table."""

    def __init__(self, table: KindTable, rings: Rings) -> None:
        self._table, self._rings = table, rings
        self._total_s = table.time_s[:, 0, -1]
        # A stage that begins where gradients are far larger than usual is left to the descent to find.
        usual = table.scorer.model.act_out_elems[table.num_layers // 2]
        self._latest = int(np.flatnonzero(table.scorer.model.act_out_elems <= 4 * usual).max())

    def iteration_s(self, batch: SplitBatch, first: Ints) -> Array:
        """Return the iteration time of each split [B]; infinite where it does not fit memory."""
        table, S, L = self._table, batch.kinds.shape[1], self._table.num_layers
        kinds, a, b = batch.kinds, first[:, :-1], first[:, 1:] - 1
        legal = (b >= a).all(axis=1)
        a, b = np.minimum(np.maximum(a, 0), L - 1), np.minimum(np.maximum(b, 0), L - 1)
        legal &= (b <= table.last_fitting[kinds, np.arange(S, 0, -1), a]).all(axis=1)
        busy = table.time_s[kinds, a, b] + self._sends(kinds, table.size_of[a], table.size_of[b])
        time = (batch.num_microbatches - 1) * busy.max(axis=1) + busy.sum(axis=1)
        time += table.update_s[kinds, a].max(axis=1) + self._sync_s(batch, a, b)
        return np.where(legal, time, np.inf)

    def best(self, batch: SplitBatch, *, keep_within_s: Array) -> tuple[Array, Ints]:
        """Return each candidate's best split found: its time [B] and first layers [B, S + 1].

        Where splits are few, all are tried. Else starts from the least bottleneck, packed from either end, then
        moves runs of boundaries by one layer while the whole objective falls. Candidates that cannot stay below
        `keep_within_s` [B] come back infinite.
        """
        B, S = batch.kinds.shape
        time, first = np.full(B, np.inf), np.zeros((B, S + 1), dtype=np.int64)
        usual = np.full(batch.kinds.shape, self._table.size_of[self._table.num_layers // 2])
        send_s = self._sends(batch.kinds, usual, usual)
        longest_s = self._longest_busy_s(batch, send_s, keep_within_s)
        rows = np.flatnonzero(self._fill_left(batch.kinds, longest_s[:, None] - send_s)[1])
        if not len(rows):
            return time, first
        part = batch.take(rows)
        if comb(self._table.num_layers - 1, S - 1) <= EVERY_CUT:
            time[rows], first[rows] = self._every_cut(part)
            return time, first
        starts = self._least_bottleneck(part, longest_s[rows], send_s[rows])
        times = np.stack([self.iteration_s(part, start) for start in starts])
        start = np.where((times[0] <= times[1])[:, None], starts[0], starts[1])
        time[rows], first[rows] = times.min(axis=0), start
        for within, moves in ((REFINE_WITHIN, _runs(S)), (POLISH_WITHIN, _every_way(S))):
            rows = rows[time[rows] < keep_within_s[rows] * within]
            if len(rows) and len(moves):
                time[rows], first[rows] = self._descend(batch.take(rows), first[rows], time[rows], moves)
        return time, first

    def _every_cut(self, batch: SplitBatch) -> tuple[Array, Ints]:
        """Return the best of all splits, where there are few: of two stages, or of few layers."""
        B, S = batch.kinds.shape
        num_layers = self._table.num_layers
        cuts = np.array([(0, *cut, num_layers) for cut in itertools.combinations(range(1, num_layers), S - 1)])
        every = batch.take(np.repeat(np.arange(B), len(cuts)))
        times = self.iteration_s(every, np.tile(cuts, (B, 1))).reshape(B, len(cuts))
        least = times.argmin(axis=1)
        return times[np.arange(B), least], cuts[least]

    def _longest_busy_s(self, batch: SplitBatch, send_s: Array, longest_s: Array) -> Array:
        """Return the largest max(c_i + m_i) with which an iteration can stay within `longest_s` [B]."""
        least_s = send_s.sum(axis=1) + self._total_s[batch.kinds].min(axis=1)
        shards = self._table.ring_tp[batch.kinds].sum(axis=1)
        degrees, which = np.unique(batch.replicas, return_inverse=True)
        least_s += np.stack([self._rings.shared_s(int(D)) for D in degrees])[which, shards]
        others = (longest_s - least_s) / np.maximum(batch.num_microbatches - 1, 1)
        whole = self._total_s[batch.kinds].max(axis=1) * 2 + least_s
        return np.asarray(np.where(batch.num_microbatches > 1, np.minimum(others, whole), whole))

    def _descend(self, batch: SplitBatch, first: Ints, time: Array, moves: Ints) -> tuple[Array, Ints]:
        active = np.arange(len(batch))
        for _ in range(MAX_ROUNDS):
            part = batch.take(np.repeat(active, len(moves)))
            trial = (first[active][:, None, :] + moves[None]).reshape(-1, moves.shape[1])
            times = self.iteration_s(part, trial).reshape(len(active), len(moves))
            best = times.argmin(axis=1)
            least = times[np.arange(len(active)), best]
            better = least < time[active] * (1 - 1e-12)
            active, best, least = active[better], best[better], least[better]
            if not len(active):
                break
            first[active] += moves[best]
            time[active] = least
        return time, first

    def _sends(self, kinds: Ints, size_first: Ints, size_last: Ints) -> Array:
        S = kinds.shape[1]
        sends = np.zeros(kinds.shape)
        if S == 1:
            return sends
        forward = self._table.send_s[kinds[:, :-1], kinds[:, 1:], size_last[:, :-1]]  # (B, S - 1), leaves stage i
        back = self._table.send_s[kinds[:, 1:], kinds[:, :-1], size_first[:, 1:]]  # leaves stage i + 1
        sends[:, :-1] += forward
        sends[:, 1:] += back
        sends[:, -1] *= 2
        if S > 3:
            sends[:, 0] *= 2
        return sends

    def _sync_s(self, batch: SplitBatch, a: Ints, b: Ints) -> Array:
        degrees, which = np.unique(batch.replicas, return_inverse=True)
        tables = np.stack([self._rings.sync_s(int(D)) for D in degrees])
        return np.asarray(tables[which[:, None], batch.kinds, a, b].max(axis=1))

    def _least_bottleneck(self, batch: SplitBatch, high: Array, send_s: Array) -> tuple[Ints, Ints]:
        """Return splits with (nearly) the least max(c_i + m_i), packed from the left and from the right."""
        low = 0.9 / (1.0 / self._total_s[batch.kinds]).sum(axis=1)
        left, _ = self._fill_left(batch.kinds, high[:, None] - send_s)
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            first, enough = self._fill_left(batch.kinds, middle[:, None] - send_s)
            left[enough] = first[enough]
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        right, enough = self._fill_right(batch.kinds, high[:, None] - send_s)
        right[~enough] = left[~enough]
        return left, right

    def _fill_left(self, kinds: Ints, limit_s: Array) -> tuple[Ints, Bools]:
        """Give each stage from the first on as many layers as its limit and memory allow."""
        table, (B, S), L = self._table, kinds.shape, self._table.num_layers
        first = np.zeros((B, S + 1), dtype=np.int64)
        for i in range(S):
            a = np.minimum(first[:, i], L - 1)
            rows = table.time_s[kinds[:, i], a]  # (B, L), 0 before a, then rising
            last = (rows <= limit_s[:, i, None]).sum(axis=1) - 1
            last = np.minimum(last, table.last_fitting[kinds[:, i], S - i, a])
            most = L if i == S - 1 else min(L - (S - 1 - i), max(self._latest - (S - 2 - i), 1))
            first[:, i + 1] = np.minimum(np.maximum(last + 1, first[:, i]), most)
        stages_hold = (np.diff(first, axis=1) > 0).all(axis=1)
        return first, stages_hold & (first[:, -1] == L)

    def _fill_right(self, kinds: Ints, limit_s: Array) -> tuple[Ints, Bools]:
        """Give each stage from the last back as many layers as its limit and memory allow."""
        table, (B, S), L = self._table, kinds.shape, self._table.num_layers
        first = np.full((B, S + 1), L, dtype=np.int64)
        for i in range(S - 1, -1, -1):
            b = np.maximum(first[:, i + 1] - 1, 0)
            times = table.time_s[kinds[:, i], :, b]  # (B, L), falling with the first layer
            fits = table.last_fitting[kinds[:, i], S - i] >= b[:, None]
            ok = (times <= limit_s[:, i, None]) & fits & (np.arange(L) <= b[:, None])
            a = np.where(ok.any(axis=1), ok.argmax(axis=1), first[:, i + 1])
            first[:, i] = np.maximum(a, i)
            if i == S - 1 > 0:
                first[:, i] = np.where(first[:, i] > self._latest, L, first[:, i])
        stages_hold = (np.diff(first, axis=1) > 0).all(axis=1)
        return first, stages_hold & (first[:, 0] == 0)


@cache
def _runs(S: int) -> Ints:
    """Return shifts of neighbouring boundaries together, by one layer or in short pipelines two [n, S + 1]."""
    moves = [
        (0,) * i + (step,) * (j - i) + (0,) * (S + 1 - j)
        for i, j in itertools.combinations(range(1, S + 1), 2)
        for step in ((-2, -1, 1, 2) if S <= 8 else (-1, 1))
    ]
    return np.array(moves, dtype=np.int64).reshape(-1, S + 1)


@cache
def _every_way(S: int) -> Ints:
    """Return all shifts of each boundary by up to two layers, for short pipelines; none for others [n, S + 1]."""
    steps = itertools.product(range(-2, 3), repeat=S - 1) if 1 < S <= 5 else ()
    return np.array([(0, *step, 0) for step in steps if any(step)], dtype=np.int64).reshape(-1, S + 1)
