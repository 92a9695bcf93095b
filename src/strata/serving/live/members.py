"""Who is in the cluster: joins, heartbeats and silence, told apart by incarnation numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from strata.decision import Reason
from strata.serving.live.events import Heartbeat
from strata.serving.node import Node


@dataclass(slots=True)
class Member:
    """A node that is in. A suspect broke a request off, or is stuck; it gets no layers until it is well.

    num_failures: how often it became one since something ended well on it; each time it waits longer, until
    `suspect_until_s` at least. usage: shares of its machine in use, as of its last heartbeat.
    """

    node: Node
    incarnation: int
    heard_s: float
    is_suspect: bool = False
    num_failures: int = 0
    suspect_until_s: float = -math.inf
    usage: Mapping[str, float] = field(default_factory=dict)

    def hear(self, now_s: float) -> None:
        """Hear that it is well, which clears it of suspicion in time."""
        self.heard_s, self.is_suspect = now_s, self.is_suspect and now_s < self.suspect_until_s


class Members:
    """The nodes that are in, spares included: all of them must send heartbeats."""

    def __init__(self, timeout_s: float, *, interval_s: float = 5.0) -> None:
        self._timeout_s, self._interval_s = timeout_s, interval_s
        self._members: dict[str, Member] = {}

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._members

    def __getitem__(self, node_id: str) -> Member:
        return self._members[node_id]

    def __len__(self) -> int:
        return len(self._members)

    def nodes(self) -> list[Node]:
        """Return all nodes that may be given work, by id."""
        members = sorted(self._members.items())
        return [member.node for _, member in members if not member.is_suspect]

    def join(self, node: Node, incarnation: int, now_s: float) -> Literal["new", "known", "restarted"] | Reason:
        """Take a node in: `known` is a repeated message, `restarted` one whose former life has ended unseen."""
        before = self._members.get(node.node_id)
        if before is not None and incarnation < before.incarnation:
            return Reason("node-stale", subject=node.node_id)
        if before is not None and incarnation == before.incarnation:
            was_suspect = before.is_suspect
            before.hear(now_s)
            # A suspect's work has been taken from it.
            return "new" if was_suspect and not before.is_suspect else "known"
        self._members[node.node_id] = Member(node, incarnation, now_s)
        return "new" if before is None else "restarted"

    def heartbeat(self, heartbeat: Heartbeat, now_s: float) -> Reason | None:
        """Hear a node, or say why it must join anew."""
        member = self._members.get(heartbeat.node_id)
        if member is None or heartbeat.incarnation > member.incarnation:
            return Reason("join-again", subject=heartbeat.node_id)
        if heartbeat.incarnation < member.incarnation:
            return Reason("node-stale", subject=heartbeat.node_id)
        member.hear(now_s)
        if heartbeat.is_stuck:
            self.suspect(heartbeat.node_id, now_s)
        member.usage = heartbeat.usage
        if heartbeat.hop_s:
            member.node = replace(member.node, hop_s={**member.node.hop_s, **heartbeat.hop_s})
        return None

    def suspect(self, node_id: str, now_s: float) -> None:
        """Give a node no work until it is heard again: at once the first time, later and later after that."""
        member = self._members[node_id]
        if not member.is_suspect:
            wait_s = self._interval_s * (2.0 ** min(member.num_failures, 16) - 1.0)
            member.suspect_until_s = now_s + min(wait_s, self._timeout_s)
            member.is_suspect, member.num_failures = True, member.num_failures + 1

    def trust(self, node_ids: Iterable[str]) -> None:
        """Note that something ended well on nodes."""
        for node_id in node_ids:
            if member := self._members.get(node_id):
                member.num_failures = 0

    def is_current(self, node_id: str, incarnation: int) -> bool:
        """Return whether a message is of the node's present life."""
        return node_id in self._members and self._members[node_id].incarnation == incarnation

    def remove(self, node_id: str) -> None:
        """Forget a node."""
        self._members.pop(node_id, None)

    def suspects(self) -> list[str]:
        """Return the nodes that are under suspicion."""
        return [name for name, member in sorted(self._members.items()) if member.is_suspect]

    def silent(self, now_s: float) -> list[str]:
        """Return the nodes that have not been heard for longer than the timeout."""
        return [name for name, m in sorted(self._members.items()) if now_s - m.heard_s > self._timeout_s]

    def extend_deadlines(self, gap_s: float) -> None:
        """Count so much time as heard: it was we who were away."""
        for member in self._members.values():
            member.heard_s += gap_s
