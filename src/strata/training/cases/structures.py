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
from numpy.typing import NDArray

from strata.training.cases.file import Array
from strata.training.cases.kinds import Ints, KindTable, Rings

MAX_ROWS: Final = 120_000
"""Most structures of one number of groups; long pipelines of many groups are left out first."""
MAX_GROUPS: Final = 4
BISECTIONS: Final = 12


@dataclass(frozen=True, slots=True)
class Structures:
    """n structures of G groups each: kind [n, G] and its number of stages [n, G]."""

    kind: Ints
    count: Ints

    def take(self, rows: Ints | NDArray[np.bool_]) -> Structures:
        """Return some of the structures."""
        return Structures(self.kind[rows], self.count[rows])


def enumerate_structures(table: KindTable) -> Iterator[Structures]:
    """Yield all structures by number of groups, each kind at most once."""
    K, L = len(table.kinds), table.num_layers
    mixed = table.is_mixed.tolist()
    for G in range(1, MAX_GROUPS + 1):
        sets = [s for s in itertools.combinations(range(K), G) if sum(mixed[k] for k in s) <= 1]
        longest = next((S for S in range(L, G - 1, -1) if math.comb(S, G) * len(sets) <= MAX_ROWS), 0)
        if not sets or not longest:
            return
        counts = _compositions(G, longest)
        kinds = np.array(sets, dtype=np.int64)
        yield Structures(np.repeat(kinds, len(counts), axis=0), np.tile(counts, (len(kinds), 1)))


@cache
def _compositions(groups: int, most: int) -> Ints:
    """Return all ways to write 1..most as a sum of `groups` positive numbers, in order [n, groups]."""
    bars = np.array(list(itertools.combinations(range(1, most + 1), groups)), dtype=np.int64)
    return np.diff(bars, axis=1, prepend=0)


def most_replicas(table: KindTable, structures: Structures) -> Ints:
    """Return the largest data-parallel degree the capacity admits, mixed stages shared ideally [n]."""
    tp = table.tp_of[structures.kind]  # (n, G, P)
    mixed = table.is_mixed[structures.kind]  # (n, G)
    capacity = table.pools.capacity
    used = (tp * (structures.count * ~mixed)[:, :, None]).sum(axis=1)  # (n, P)
    pure = np.where(used > 0, capacity // np.maximum(used, 1), capacity.sum()).min(axis=1)
    share = np.where((mixed[:, :, None]) & (tp > 0), 1.0 / np.maximum(tp, 1), 0.0)  # (n, G, P)
    wanted = structures.count + (used[:, None, :] * share).sum(axis=2)
    ideal = np.floor((capacity * share).sum(axis=2) / wanted + 1e-9)
    return np.minimum(pure, np.where(mixed, ideal, pure[:, None]).min(axis=1)).astype(np.int64)


class Bounds:
    """Lower bounds on structures of one table, from what no order and no split can avoid."""

    def __init__(self, table: KindTable, rings: Rings) -> None:
        self._table, self._rings = table, rings
        layer_s = np.diagonal(table.time_s, axis1=1, axis2=2)  # (K, L)
        # Embedding and head cost some kinds next to nothing; only layers that count for every kind are counted.
        self._counted = (layer_s >= 0.5 * np.median(layer_s, axis=1, keepdims=True)).all(axis=0)
        self._layer_s = layer_s[:, self._counted].min(axis=1)
        self._total_s = layer_s.sum(axis=1)
        self._cheapest_send_s = table.send_s.min(axis=(1, 2))
        self._update_s = table.update_s.min(axis=1)

    def busiest_s(self, structures: Structures) -> Array:
        """Return a lower bound on max(c_i + m_i) [n]."""
        n_layers = int(self._counted.sum())
        layer_s = self._layer_s[structures.kind]
        stages = structures.count.sum(axis=1)
        sends = np.where(stages > 3, 2.0, np.where(stages > 1, 1.0, 0.0))
        send_s = self._cheapest_send_s[structures.kind] * sends[:, None]
        low = n_layers / (structures.count / layer_s).sum(axis=1)
        high = low + layer_s.max(axis=1) + send_s.max(axis=1)
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            room = structures.count * np.maximum(np.floor((middle[:, None] - send_s) / layer_s + 1e-9), 0.0)
            enough = room.sum(axis=1) >= n_layers
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return np.asarray(low)

    def pipeline_s(self, structures: Structures) -> Array:
        """Return a lower bound on the sum of c_i + m_i and one optimizer step [n]."""
        stages = structures.count.sum(axis=1)
        sends = np.where(stages > 3, 2 * stages, np.array([0, 0, 3, 5])[np.minimum(stages, 3)])
        compute = self._total_s[structures.kind].min(axis=1)
        send = self._cheapest_send_s[structures.kind].min(axis=1) * sends
        return np.asarray(compute + send + self._update_s[structures.kind].min(axis=1))

    def sync_s(self, structures: Structures, replicas: int) -> Array:
        """Return a lower bound on the slowest stage's all-reduce [n]: the parameters shared ideally."""
        shards = (structures.count * self._table.ring_tp[structures.kind]).sum(axis=1)
        by_shards = self._rings.shared_s(np.arange(1, shards.max(initial=1) + 1).astype(float), replicas)
        return np.asarray(by_shards[shards - 1])


def orders(table: KindTable, structure_kinds: Ints, structure_counts: Ints) -> Iterator[list[int]]:
    """Yield each order of one structure's groups as the kinds of its stages, regions visited once each."""
    for order in itertools.permutations(range(len(structure_kinds))):
        sequence = [
            int(structure_kinds[g]) for g in order if structure_counts[g] > 0 for _ in range(structure_counts[g])
        ]
        visits = [home for home, _ in itertools.groupby(table.kinds[k].region for k in sequence)]
        if len(visits) == len(set(visits)):
            yield sequence
