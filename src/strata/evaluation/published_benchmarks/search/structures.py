"""Pipeline structures: how many stages of which kinds, a lower bound on each, and their orders.

A *structure* counts the stages of each kind; equal kinds stay together, at most one kind mixes
accelerator types (a basic solution of the capacity constraints needs no second one). The bound knows
neither order nor memory by position: M is the least time at which all layers find room in the stages.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from strata.arrays import Bools, Ints
from strata.evaluation.published_benchmarks.case_file import Array
from strata.evaluation.published_benchmarks.formulas import ELEMENT_BYTES
from strata.evaluation.published_benchmarks.search.stage_kinds import KindTable

MAX_ROWS: Final = 40_000
"""Most structures of one number of groups; long pipelines of many groups are left out first."""
MAX_GROUPS: Final = 4
BISECTIONS: Final = 8


@dataclass(frozen=True, slots=True)
class Structures:
    """n structures of G groups each: kind [G, n] and its number of stages [G, n].

    Groups come first: sums over them are then sums of long rows, ten times quicker.
    """

    kind: Ints
    count: Ints

    def take(self, rows: Ints | Bools) -> Structures:
        """Return some of the structures."""
        return Structures(self.kind[:, rows], self.count[:, rows])


def enumerate_structures(table: KindTable, num_groups: int) -> Structures:
    """Return all structures of so many kinds; the longest pipelines are left out where MAX_ROWS demands it."""
    G, mixed = num_groups, table.is_mixed.tolist()
    sets = [s for s in itertools.combinations(range(len(mixed)), G) if sum(mixed[k] for k in s) <= 1]
    longest = next((S for S in range(table.num_layers, 0, -1) if math.comb(S, G) * len(sets) <= MAX_ROWS), 0)
    counts = _compositions(G, longest)
    kinds = np.array(sets, dtype=np.int64).reshape(-1, G).T
    return Structures(np.repeat(kinds, counts.shape[1], axis=1), np.tile(counts, kinds.shape[1]))


@cache
def _compositions(groups: int, most: int) -> Ints:
    """Return all ways to write 1..most as a sum of `groups` positive numbers, in order [groups, n]."""
    bars = np.array(list(itertools.combinations(range(1, most + 1), groups)), dtype=np.int64).reshape(-1, groups)
    return np.ascontiguousarray(np.diff(bars, axis=1, prepend=0).T)


def most_replicas(table: KindTable, structures: Structures) -> Ints:
    """Return the largest data-parallel degree the capacity admits, mixed stages shared ideally [n]."""
    count, mixed = structures.count, table.is_mixed[structures.kind]  # (G, n)
    pure_count = np.where(mixed, 0, count)
    most = np.full(count.shape[1], table.pools.capacity.sum())
    wanted, offered = count.astype(float), np.zeros(count.shape)
    for pool, capacity in enumerate(table.pools.capacity.tolist()):
        tp = table.tp_of[structures.kind, pool]  # (G, n)
        used = (tp * pure_count).sum(axis=0)
        most = np.minimum(most, np.where(used > 0, capacity // np.maximum(used, 1), most))
        share = np.where(mixed & (tp > 0), 1.0 / np.maximum(tp, 1), 0.0)
        wanted += used * share
        offered += capacity * share
    ideal = np.where(mixed, np.floor(offered / wanted + 1e-9), most)
    return np.asarray(np.minimum(most, ideal.min(axis=0)).astype(np.int64))


class StructureBounds:
    """Lower bounds on structures of one table, from what no order and no split can avoid."""

    def __init__(self, table: KindTable) -> None:
        self._table = table
        layer_s = np.diagonal(table.time_s, axis1=1, axis2=2)  # (K, L)
        # Embedding and head cost some kinds next to nothing; only layers that count for every kind are counted.
        counted = (layer_s >= 0.5 * np.median(layer_s, axis=1, keepdims=True)).all(axis=0)
        counted |= not counted.any()
        self._num_counted = int(counted.sum())
        self._layer_s = np.maximum(layer_s[:, counted].min(axis=1), 1e-12)
        self._total_s = layer_s.sum(axis=1)
        self._send_s = np.minimum(table.send_s, table.send_s.transpose(1, 0, 2)).min(axis=2)
        self._update_s = table.update_s.min(axis=1)
        self._total_bytes = float(table.scorer.model.params[1].sum()) * ELEMENT_BYTES
        self._fitting = np.cumsum(table.layers_fitting[:, 1:], axis=1)  # of the last n stages
        self._region = np.unique([kind.region for kind in table.kinds], return_inverse=True)[1]

    def ideal_s(self, structures: Structures) -> Array:
        """Return a quick lower bound on max c_i [n]: layers divided at will, transfers free."""
        return np.asarray(self._num_counted / (structures.count / self._layer_s[structures.kind]).sum(axis=0))

    def smooth_s(self, structures: Structures) -> Array:
        """Return a lower bound on max(c_i + m_i) [n]: layers divided at will between stages that send."""
        count, layer_s = structures.count, self._layer_s[structures.kind]
        stages = count.sum(axis=0)
        near, _ = self._neighbours_s(structures)
        # The first stage of a short pipeline sends one message only; nothing is charged to short ones.
        send = np.where(np.isfinite(near) & (stages > 3), 2 * near, 0.0)
        return np.asarray(
            (self._num_counted + (count * send / layer_s).sum(axis=0)) / (count / layer_s).sum(axis=0)
        )

    def busiest_s(self, structures: Structures) -> Array:
        """Return a lower bound on max(c_i + m_i) [n]; infinite where layers fit no memory or kinds cannot talk."""
        count, layer_s = structures.count, self._layer_s[structures.kind]
        stages = count.sum(axis=0)
        near, far = self._neighbours_s(structures)
        connected = (stages == 1) | np.isfinite(near).all(axis=0)
        near = np.where(np.isfinite(near), near, 0.0)
        # A stage between two others sends two messages, the last one counts twice; only the first of a short
        # pipeline sends a single one. Next to another region one of them is a far one.
        send = np.where(stages > 1, 2 * near, 0.0)
        far_send = far + np.where(stages > 3, near, 0.0)
        is_short = (stages > 1) & (stages <= 3)
        fitting = self._fitting[structures.kind, count - 1]
        low = self.smooth_s(structures)
        high = low + layer_s.max(axis=0) + np.maximum(send, np.where(np.isfinite(far), far_send, 0.0)).max(axis=0)
        spans = np.isfinite(far).any(axis=0)
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            room = _whole(middle - send, layer_s)
            first = np.where(is_short, (_whole(middle - near, layer_s) - room).max(axis=0), 0.0)
            free = (count * room).sum(axis=0) + first
            if spans.any():
                free -= self._lost(structures, room - _whole(middle - far_send, layer_s))
            held = np.minimum(count * room, fitting).sum(axis=0) + first
            enough = np.minimum(free, held) >= self._num_counted
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        possible = connected & (fitting.sum(axis=0) >= self._num_counted)
        return np.where(possible, low, np.inf)

    def pipeline_s(self, structures: Structures) -> Array:
        """Return a lower bound on the sum of c_i + m_i and one optimizer step [n]."""
        stages = structures.count.sum(axis=0)
        near, far = self._neighbours_s(structures)
        near = np.where(np.isfinite(near), near, 0.0)
        sends = np.where(stages > 1, 2 * (structures.count * near).sum(axis=0), 0.0)
        sends -= np.where((stages > 1) & (stages <= 3), near.max(axis=0), 0.0)
        if self._region.any():
            sends += self._lost(structures, np.where(np.isfinite(far), far - near, 0.0))
        compute = self._total_s[structures.kind].min(axis=0)
        return np.asarray(compute + sends + self._update_s[structures.kind].min(axis=0))

    def usd_per_s(self, structures: Structures) -> Array:
        """Return the rate of one replica of every stage, mixed stages all of their cheapest part [n]."""
        return np.asarray((structures.count * self._table.usd_per_s[structures.kind]).sum(axis=0))

    def shards(self, structures: Structures) -> Ints:
        """Return into how many shards the parameters fall at best, for Rings.shared_s [n]."""
        return np.asarray((structures.count * self._table.ring_tp[structures.kind]).sum(axis=0))

    def egress_usd(self, structures: Structures, replicas: Ints, num_microbatches: Ints) -> Array:
        """Return the least money for traffic between zones [n].

        Over two regions every pipeline crosses once. Inside one, where no zone holds all stages, either each
        stage's ring leaves its zone and comes back, or some stage fills a zone and every pipeline with a
        replica elsewhere crosses.
        """
        pools, table = self._table.pools, self._table
        prices = table.scorer.file.egress_usd_per_byte
        region = self._region[structures.kind]
        pure = np.where(table.is_mixed[structures.kind], 0, structures.count)
        outside = np.zeros((int(self._region.max()) + 1, len(replicas)))
        zones: dict[int, set[str]] = {r: set() for r in range(len(outside))}
        for pool, (home, gpu) in enumerate(pools.names):
            here = [k for k, kind in enumerate(table.kinds) if kind.region == home]
            if here:
                need = (table.tp_of[structures.kind, pool] * pure).sum(axis=0) * replicas
                r = int(self._region[here[0]])
                tp = max(int(table.tp_of[:, pool].max()), 1)
                outside[r] = np.maximum(outside[r], np.ceil((need - pools.largest((home, gpu))) / tp))
                zones[r].update(pools.zones[home, gpu])
        crossing = 2 * table.act_bytes * num_microbatches  # of one pipeline, both ways
        ring = np.where(replicas > 1, 4 * self._total_bytes * (replicas - 1) / replicas, 0.0)
        columns = np.ceil(outside / structures.count.sum(axis=0))
        several = (region != region[0]).any(axis=0)
        inside = np.zeros(len(replicas))
        for r, names in zones.items():
            price = min((prices[a][b] for a, b in itertools.permutations(sorted(names), 2)), default=0.0)
            inside += np.where(outside[r] > 0, np.minimum(ring, columns[r] * crossing) * price, 0.0)
        abroad = [
            prices[a][b]
            for r, s in itertools.permutations(zones, 2)
            for a, b in itertools.product(sorted(zones[r]), sorted(zones[s]))
        ]
        return np.where(several, crossing * replicas * min(abroad, default=0.0), inside)

    def _neighbours_s(self, structures: Structures) -> tuple[Array, Array]:
        """Return each kind's quickest message to a possible neighbour, and to one in another region [G, n]."""
        kind = structures.kind
        region = self._region[kind]
        near, far = np.full(kind.shape, np.inf), np.full(kind.shape, np.inf)
        for g, h in itertools.product(range(len(kind)), repeat=2):
            send = self._send_s[kind[g], kind[h]]
            near[g] = np.minimum(near[g], send if g != h else np.where(structures.count[g] > 1, send, np.inf))
            if g != h:
                far[g] = np.minimum(far[g], np.where(region[g] != region[h], send, np.inf))
        return near, far

    def _lost(self, structures: Structures, loss: Array) -> Array:
        """Sum over the regions of a structure, where it has several, the loss of the stage that minds least."""
        region = self._region[structures.kind]
        total = np.zeros(region.shape[1])
        for r in range(int(self._region.max()) + 1):
            here = np.where(region == r, loss, np.inf).min(axis=0)
            total += np.where(np.isfinite(here), here, 0.0)
        return np.where((region != region[0]).any(axis=0), total, 0.0)


def _whole(seconds: Array, layer_s: Array) -> Array:
    """Return how many whole layers fit into a time."""
    return np.maximum(np.floor(seconds / layer_s + 1e-9), 0.0)


def orders(table: KindTable, kinds: Ints, counts: Ints) -> Iterator[tuple[int, ...]]:
    """Yield each order of one structure's groups as the kinds of its stages, each region visited once."""
    groups = list(zip(kinds.tolist(), counts.tolist(), strict=True))
    for order in itertools.permutations(groups):
        visits = [home for home, _ in itertools.groupby(table.kinds[kind].region for kind, _ in order)]
        if len(visits) == len(set(visits)):
            yield tuple(kind for kind, count in order for _ in range(count))
