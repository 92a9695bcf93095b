"""Who runs where: slots and KV tokens of every node, reserved at dispatch and given back on completion.

The counts are our own, so they are true between heartbeats too; what nodes say only finds lost requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from strata.serving.layout import StageServer


class Holding(NamedTuple):
    """What one request holds: a slot and so many KV tokens on each of the nodes, since when."""

    names: tuple[str, ...]
    nodes: tuple[int, ...]
    kv_tokens: int
    since_s: float


class Reservations:
    """Counts by node, at the index of the node's server in `servers`; every change is O(nodes of the route)."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}
        self.slots: list[int] = []
        self.kv_tokens: list[int] = []
        self.running: list[int] = []
        self.others: list[int] = []
        """Requests that others sent there: they slow ours down, and take no slot that we could give."""
        self.kv_used: list[int] = []
        self._on: list[set[str]] = []
        self._heartbeat_s: dict[str, float] = {}
        self._held: dict[str, Holding] = {}

    def arrange(self, servers: Sequence[StageServer]) -> None:
        """Take new servers; a request keeps what it holds on nodes that are there.

        More may then be held on a node than its new range has room for: nothing is added until it has again.
        """
        others = dict(zip(self.index, self.others, strict=True))
        self.index = {server.node_id: i for i, server in enumerate(servers)}
        assert len(self.index) == len(servers), "a node serves two ranges"
        self.slots = [server.slots for server in servers]
        self.kv_tokens = [server.kv_tokens for server in servers]
        self.running, self.kv_used = [0] * len(servers), [0] * len(servers)
        self.others = [others.get(server.node_id, 0) for server in servers]
        self._on = [set() for _ in servers]
        self._heartbeat_s = {name: at for name, at in self._heartbeat_s.items() if name in self.index}
        for request_id, held in self._held.items():
            nodes = tuple(self.index[name] for name in held.names if name in self.index)
            self._held[request_id] = held._replace(nodes=nodes)
            self._add(request_id, nodes, held.kv_tokens, sign=1)

    def reserve(
        self, request_id: str, names: tuple[str, ...], nodes: tuple[int, ...], kv_tokens: int, now_s: float
    ) -> None:
        """Book a request on nodes that have room for it. A request holds one route at a time."""
        assert request_id not in self._held, f"{request_id} is booked already"
        self._held[request_id] = Holding(names, nodes, kv_tokens, now_s)
        self._add(request_id, nodes, kv_tokens, sign=1)

    def release(self, request_id: str) -> tuple[int, ...]:
        """Give back what a request holds; return the nodes that changed."""
        held = self._held.pop(request_id, None)
        if held is None:
            return ()
        self._add(request_id, held.nodes, held.kv_tokens, sign=-1)
        return held.nodes

    def reconcile(self, node_id: str, running: AbstractSet[str], now_s: float) -> tuple[str, ...]:
        """Return what was booked before the node's previous heartbeat and is not in this one, by name.

        A request on its way to the node is younger than that; the first heartbeat of a node accuses nobody.
        """
        node = self.index.get(node_id)
        if node is None:
            return ()
        before_s = self._heartbeat_s.get(node_id, -math.inf)
        self._heartbeat_s[node_id] = now_s
        missing = self._on[node] - running
        return tuple(sorted(name for name in missing if self._held[name].since_s < before_s))

    def note_others(self, node_id: str, count: int) -> tuple[int, ...]:
        """Note how many requests of others a node has; return the nodes that changed."""
        node = self.index.get(node_id)
        if node is None or self.others[node] == count:
            return ()
        self.others[node] = count
        return (node,)

    def others_on(self, node_id: str) -> int:
        """Return how many requests of others a node has."""
        node = self.index.get(node_id)
        return 0 if node is None else self.others[node]

    def load(self, node_id: str) -> tuple[int, int]:
        """Return the sequences and KV tokens booked on a node; none on one that serves nothing."""
        node = self.index.get(node_id)
        return (0, 0) if node is None else (self.running[node], self.kv_used[node])

    def _add(self, request_id: str, nodes: tuple[int, ...], kv_tokens: int, *, sign: int) -> None:
        running, kv_used, on = self.running, self.kv_used, self._on
        for node in nodes:
            running[node] += sign
            kv_used[node] += sign * kv_tokens
            if sign > 0:
                on[node].add(request_id)
            else:
                on[node].discard(request_id)
