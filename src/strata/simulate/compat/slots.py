"""Traces played as ASTRA-sim plays them: one compute slot and one communication slot a rank.

A send holds its rank's only communication slot until it is *delivered*, latency included, so the sends of a
rank never overlap: on a 30 ms WAN that is most of the difference to our own model (docs/fidelity.md). A
collective holds it until it ends. Receives need no slot. Of the nodes that are ready the lowest id goes first.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

from strata.errors import UsageError
from strata.simulate.astra.chakra import Node, NodeType
from strata.simulate.compat.network import Path, Wire
from strata.simulate.event_clock import EventClock

PathOf = Callable[[int, int, int], Path]
"""Source rank, destination rank, bytes: the links a message takes."""
CollectiveNs = Callable[[Node, Sequence[int]], int]
"""A collective node and the ranks that take part: how long it lasts once all of them have come."""


@dataclass(slots=True)
class _Rank:
    nodes: dict[int, Node]
    order: TopologicalSorter[int]
    computes: list[tuple[int, Node]] = field(default_factory=list)
    messages: list[tuple[int, Node]] = field(default_factory=list)
    is_computing: bool = False
    is_communicating: bool = False
    collectives: Counter[str] = field(default_factory=Counter)
    finish_ns: int = 0


def play(
    traces: Sequence[Sequence[Node]], *, path: PathOf, groups: Sequence[Sequence[int]], collective_ns: CollectiveNs
) -> tuple[int, ...]:
    """Return when each rank finishes [ns]. groups: those that `pg_name` numbers from 1; no name is the world.

    Raises UsageError where ranks wait for each other for ever: ASTRA-sim ends without a word.
    """
    return _Player(traces, path, groups, collective_ns).run()


class _Player:
    def __init__(
        self,
        traces: Sequence[Sequence[Node]],
        path: PathOf,
        groups: Sequence[Sequence[int]],
        collective_ns: CollectiveNs,
    ) -> None:
        self.path, self.collective_ns = path, collective_ns
        self.groups = {str(number): ranks for number, ranks in enumerate(groups, 1)}
        self.ranks = [_rank(nodes) for nodes in traces]
        self.clock = EventClock(0)  # [ns]
        self.free_at: dict[Wire, int] = {}
        self.delivered: Counter[tuple[Any, ...]] = Counter()
        self.posted: dict[tuple[Any, ...], deque[tuple[int, Node]]] = defaultdict(deque)
        self.joined: dict[tuple[str, int], list[tuple[int, Node]]] = defaultdict(list)

    def run(self) -> tuple[int, ...]:
        for rank in range(len(self.ranks)):
            self._issue(rank)
        while self.clock.step():
            pass
        stuck = [rank for rank, state in enumerate(self.ranks) if state.order.is_active()]
        if stuck:
            raise UsageError(f"ranks {stuck} wait for each other forever; ASTRA-sim would just exit with 0")
        return tuple(state.finish_ns for state in self.ranks)

    def _ready(self, rank: int, node: Node) -> None:
        state = self.ranks[rank]
        if node.type is NodeType.COMP:
            heapq.heappush(state.computes, (node.id, node))
        elif node.type is not NodeType.COMM_RECV:
            heapq.heappush(state.messages, (node.id, node))
        elif self.delivered[key := _match(node)]:
            self.delivered[key] -= 1
            self.clock.at(self.clock.now, self._done, rank, node)
        else:
            self.posted[key].append((rank, node))

    def _issue(self, rank: int) -> None:
        """Start what may start now."""
        state = self.ranks[rank]
        for node_id in sorted(state.order.get_ready()):
            self._ready(rank, state.nodes[node_id])
        if state.messages and not state.is_communicating:  # first: a send has a lower id than what follows it
            state.is_communicating = True
            _, node = heapq.heappop(state.messages)
            if node.type is NodeType.COMM_COLL:
                self._join(rank, node)
            else:
                source, dest, size, _ = _match(node)
                self._travel(rank, node, self.path(source, dest, size))
        if state.computes and not state.is_computing:
            state.is_computing = True
            _, node = heapq.heappop(state.computes)
            # ASTRA-sim gives a compute node of no duration one tick.
            self.clock.at(self.clock.now + (node.duration_us * 1000 or 1), self._done, rank, node)

    def _travel(self, rank: int, node: Node, path: Path) -> None:
        if not path:
            self._deliver(rank, node)
            return
        link = path[0]
        start = max(self.clock.now, self.free_at.get(link.wire, 0))
        self.free_at[link.wire] = start + link.busy_ns
        self.clock.at(start + link.arrival_ns, self._travel, rank, node, path[1:])

    def _deliver(self, rank: int, node: Node) -> None:
        self._done(rank, node)
        key = _match(node)
        if self.posted[key]:
            self._done(*self.posted[key].popleft())
        else:
            self.delivered[key] += 1

    def _join(self, rank: int, node: Node) -> None:
        name = str(node.attrs.get("pg_name", ""))
        members = self.groups.get(name, range(len(self.ranks)))
        use = self.ranks[rank].collectives[name]
        self.ranks[rank].collectives[name] += 1
        here = self.joined[name, use]
        here.append((rank, node))
        if len(here) == len(members):
            end = self.clock.now + self.collective_ns(node, members)
            for each in here:
                self.clock.at(end, self._done, *each)

    def _done(self, rank: int, node: Node) -> None:
        state = self.ranks[rank]
        if node.type is NodeType.COMP:
            state.is_computing = False
        elif node.type is not NodeType.COMM_RECV:
            state.is_communicating = False
        state.finish_ns = self.clock.now
        state.order.done(node.id)
        self._issue(rank)


def _rank(nodes: Sequence[Node]) -> _Rank:
    order = TopologicalSorter({node.id: {*node.data_deps, *node.ctrl_deps} for node in nodes})
    order.prepare()
    return _Rank({node.id: node for node in nodes}, order)


def _match(node: Node) -> tuple[int, int, int, int]:
    """Return what pairs a send with its receive: source, destination, bytes, tag."""
    source, dest, size, tag = (
        int(node.attrs[name])  # type: ignore[arg-type]  # those four are numbers
        for name in ("comm_src", "comm_dst", "comm_size", "comm_tag")
    )
    return source, dest, size, tag
