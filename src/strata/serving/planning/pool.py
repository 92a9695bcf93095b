"""What may serve a model: nodes with a decode time for every layer, and the hops between them; and whether it can.

Everything a layer allocation is decided on. All times are of one decode step of the pool's batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from strata.arrays import Bools, Floats
from strata.decision import Reason
from strata.serving.planning.service import ServiceGoals


class LayerCapacity(NamedTuple):
    """Most layers a node holds, by its place in a pipeline: the first keeps the embedding, the last the head."""

    first: int
    middle: int
    last: int
    only: int


@dataclass(frozen=True, slots=True)
class PoolNode:
    """One node: `prefix_s[k]` is its time for the first k of L layers, `head_s` what being last adds [s]."""

    id: str
    prefix_s: tuple[float, ...]
    head_s: float
    capacity: LayerCapacity

    def layers_s(self, first: int, end: int) -> float:
        """Return the time of layers [first, end)."""
        return self.prefix_s[end] - self.prefix_s[first]


@dataclass(frozen=True, slots=True)
class KvRoom:
    """How many sequences the memory of each node keeps beside the layers it has.

    usable_bytes: of each node, in the pool's order. weight_bytes_before, kv_bytes_before: of layers before each of
    L + 1 borders, the latter of one sequence at its end. tied_bytes: of embedding and head, kept once. most:
    sequences at once on a node, whatever its memory.
    """

    usable_bytes: tuple[float, ...]
    weight_bytes_before: tuple[float, ...]
    kv_bytes_before: tuple[float, ...]
    embedding_bytes: float
    head_bytes: float
    tied_bytes: float
    most: int

    def only(self, kept: Sequence[int]) -> KvRoom:
        """Return the same for some of the nodes, in the order given."""
        return replace(self, usable_bytes=tuple(self.usable_bytes[i] for i in kept))

    def slots(self, slots_by_stage: Sequence[float]) -> int:
        """Return how many sequences a pipeline keeps in flight: those of its tightest stage."""
        return int(min(self.most, *slots_by_stage))

    def lost_slots(self, count: int) -> float:
        """Return the sequences that the weights of a layer more take from a stage of so many, all layers alike."""
        kv_bytes = self.kv_bytes_before[-1]
        return self.weight_bytes_before[-1] / kv_bytes / count if kv_bytes > 0 else 0.0

    def slots_by_stage(self, members: Sequence[int], counts: Sequence[int]) -> list[float]:
        """Return how many sequences each stage has memory for."""
        slots, first, last = list[float](), 0, len(members) - 1
        for place, (i, count) in enumerate(zip(members, counts, strict=True)):
            slots.append(self.stage_slots(i, first, first + count, is_first=place == 0, is_last=place == last))
            first += count
        return slots

    def stage_slots(self, i: int, first: int, end: int, *, is_first: bool, is_last: bool) -> float:
        """Return how many sequences node i has memory for beside layers [first, end)."""
        taken = self.kv_bytes_before[end] - self.kv_bytes_before[first]
        if taken <= 0:
            return math.inf
        free = self.usable_bytes[i] - self.weight_bytes_before[end] + self.weight_bytes_before[first]
        if is_first:
            free -= self.embedding_bytes
        if is_last:
            free -= self.head_bytes
            if is_first:
                free += self.tied_bytes
        return max(free, 0.0) / taken + 1e-9


def equal_layers(layer_s: float, num_layers: int) -> tuple[float, ...]:
    """Return the prefix sums of layers that take equally long."""
    return tuple(layer_s * count for count in range(num_layers + 1))


@dataclass(frozen=True)
class NodePool:
    """Nodes in canonical order (by id), L layers, the sequences of one decode step, and one-way hops [s].

    `hop_s[i, j]` is what passing activations from node i to node j adds; it need not be symmetric.
    service: goals that requests have, where they have any. kv: what limits the sequences in flight, where that is
    known; without it there are always enough to keep all stages busy. held: layers [first, end) that a node keeps
    ready; between plans that are equal otherwise, the one that moves fewer is taken.
    """

    nodes: tuple[PoolNode, ...]
    num_layers: int
    batch: int
    hop_s: Floats
    service: ServiceGoals | None = None
    held: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    kv: KvRoom | None = None

    @classmethod
    def of(
        cls,
        nodes: list[PoolNode],
        num_layers: int,
        batch: int,
        hop_s: Floats,
        *,
        service: ServiceGoals | None = None,
        held: Mapping[str, tuple[int, int]] | None = None,
        kv: KvRoom | None = None,
    ) -> NodePool:
        """Return the pool of nodes that came in any order; `hop_s`, `service` and `kv` are in theirs."""
        order = sorted(range(len(nodes)), key=lambda i: nodes[i].id)
        hops = np.asarray(hop_s, dtype=float).reshape(len(nodes), len(nodes))
        ordered = tuple(nodes[i] for i in order)
        return cls(
            ordered,
            num_layers,
            batch,
            hops[np.ix_(order, order)],
            service and service.only(order),
            held or {},
            kv and kv.only(order),
        )

    def only(self, kept: Sequence[int]) -> NodePool:
        """Return the pool of some of its nodes."""
        return NodePool(
            tuple(self.nodes[i] for i in kept),
            self.num_layers,
            self.batch,
            self.hop_s[np.ix_(kept, kept)],
            self.service and self.service.only(kept),
            self.held,
            self.kv and self.kv.only(kept),
        )

    @cached_property
    def index(self) -> dict[str, int]:
        """The place of each node, by its id."""
        return {node.id: i for i, node in enumerate(self.nodes)}

    @cached_property
    def has_equal_layers(self) -> bool:
        """Whether every node takes equally long for each layer, to rounding."""
        if not self.nodes:
            return True
        prefix = np.array([node.prefix_s for node in self.nodes])
        straight = prefix[:, -1:] * np.linspace(0.0, 1.0, self.num_layers + 1)
        return bool(np.allclose(prefix, straight, rtol=1e-9, atol=1e-15))

    @cached_property
    def layer_s(self) -> list[float]:
        """Each node's mean time of a layer."""
        return [node.prefix_s[-1] / self.num_layers for node in self.nodes]

    @cached_property
    def hops(self) -> list[list[float]]:
        """`hop_s` as lists, which single look-ups read faster."""
        rows: list[list[float]] = self.hop_s.tolist()
        return rows

    @cached_property
    def near_s(self) -> Floats:
        """There and back, halved [N, N]; infinite on the diagonal."""
        near: Floats = (self.hop_s + self.hop_s.T) / 2
        np.fill_diagonal(near, np.inf)
        return near

    @cached_property
    def regions(self) -> list[int]:
        """The region of each node: nodes joined by hops below the widest gap in the pool's latencies."""
        return _regions(self.near_s)

    @cached_property
    def has_equal_room(self) -> bool:
        """Whether every layer takes equally much time and memory, to rounding."""
        if self.kv is None or not self.has_equal_layers:
            return False
        bytes_before = np.array([self.kv.weight_bytes_before, self.kv.kv_bytes_before])
        straight = bytes_before[:, -1:] * np.linspace(0.0, 1.0, self.num_layers + 1)
        return bool(np.allclose(bytes_before, straight, rtol=1e-9, atol=1e-3))

    def rate(self, *, slowest_s: float, decode_s: float, slots: float) -> float:
        """Return the tokens/s of a pipeline: its slowest stage sets the pace, or the sequences in flight do."""
        rate = self.batch / slowest_s if slowest_s > 0 else math.inf
        return min(rate, slots / decode_s) if decode_s > 0 else rate

    def slots(self, members: Sequence[int], counts: Sequence[int]) -> float:
        """Return how many sequences a pipeline keeps in flight at most; infinite where nobody knows."""
        return math.inf if self.kv is None else self.kv.slots(self.kv.slots_by_stage(members, counts))

    def cycle_s(self, members: list[int]) -> float:
        """Return the hops of one decode step around the members, the last back to the first included."""
        if len(members) < 2:
            return 0.0
        hops = self.hops
        return sum(hops[a][b] for a, b in pairwise(members)) + hops[members[-1]][members[0]]


CLEAR_GAP = 2.0
"""Latencies fall into "inside" and "across" where two neighbouring ones differ by at least this factor."""


def _regions(near_s: Floats) -> list[int]:
    n = len(near_s)
    values = np.unique(near_s[np.isfinite(near_s) & (near_s > 0)])
    if len(values) < 2:
        return [0] * n
    ratios = values[1:] / values[:-1]
    widest = int(np.argmax(ratios))
    if ratios[widest] < CLEAR_GAP:
        return [0] * n
    region = [0] * n
    for number, members in enumerate(components(near_s <= values[widest])):
        for i in members:
            region[i] = number
    return region


def components(joined: Bools) -> Iterator[list[int]]:
    """Yield the sets of what reaches each other, by way of others perhaps; joined: [N, N], symmetric."""
    left = set(range(len(joined)))
    while left:
        members, new = set[int](), {min(left)}
        while new:
            members |= new
            new = set(np.flatnonzero(joined[sorted(new)].any(axis=0)).tolist()) - members
        left -= members
        yield sorted(members)


def largest_pipeline(pool: NodePool) -> tuple[list[int], int]:
    """Return a pipeline of at most L nodes that holds the most layers, and how many (more than L perhaps).

    With more than L nodes it may hold fewer than the most, but never fewer than L if any pipeline does.
    """
    rooms, L = [node.capacity for node in pool.nodes], pool.num_layers
    everyone = range(len(rooms))
    best: tuple[list[int], int] = ([], 0)
    if rooms:
        alone = max(everyone, key=lambda i: rooms[i].only)
        best = [alone], rooms[alone].only
    # The two ends must differ, so one of the two best firsts goes with one of the two best lasts.
    firsts = sorted((i for i in everyone if rooms[i].first > 0), key=lambda i: rooms[i].middle - rooms[i].first)
    lasts = sorted((i for i in everyone if rooms[i].last > 0), key=lambda i: rooms[i].middle - rooms[i].last)
    inner = sorted((i for i in everyone if rooms[i].middle > 0), key=lambda i: -rooms[i].middle)
    for first in firsts[:2]:
        for last in lasts[:2]:
            if first == last or L < 2:
                continue
            between = [i for i in inner[:L] if i not in (first, last)][: L - 2]
            held = rooms[first].first + sum(rooms[i].middle for i in between) + rooms[last].last
            if held > best[1]:
                best = [first, *between, last], held
    return best


def why_not_held(pool: NodePool) -> tuple[Reason, ...]:
    """Say why a pool serves nothing; empty where it holds the model."""
    held = largest_pipeline(pool)[1]
    if held >= pool.num_layers:
        return ()
    return (Reason("layers-do-not-fit", data={"have": held, "need": pool.num_layers, "nodes": len(pool.nodes)}),)
