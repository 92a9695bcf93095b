"""Who is in the cluster: joins, heartbeats and silence, told apart by incarnation numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from strata.decision import Reason
from strata.serving.live.events import Heartbeat
from strata.serving.node import Node


@dataclass(slots=True)
class Member:
    """A node that is in. A suspect broke a request off and has not been heard since; it gets no layers."""

    node: Node
    incarnation: int
    heard_s: float
    is_suspect: bool = False


class Members:
    """The nodes that are in, spares included: all of them must send heartbeats."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
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
            before.heard_s, before.is_suspect = now_s, False
            return "new" if was_suspect else "known"  # a suspect's work has been taken from it
        self._members[node.node_id] = Member(node, incarnation, now_s)
        return "new" if before is None else "restarted"

    def heartbeat(self, heartbeat: Heartbeat, now_s: float) -> Reason | None:
        """Hear a node, or say why it must join anew."""
        member = self._members.get(heartbeat.node_id)
        if member is None or heartbeat.incarnation > member.incarnation:
            return Reason("join-again", subject=heartbeat.node_id)
        if heartbeat.incarnation < member.incarnation:
            return Reason("node-stale", subject=heartbeat.node_id)
        member.heard_s, member.is_suspect = now_s, False
        if heartbeat.hop_s:
            member.node = replace(member.node, hop_s={**member.node.hop_s, **heartbeat.hop_s})
        return None

    def is_current(self, node_id: str, incarnation: int) -> bool:
        """Return whether a message is of the node's present life."""
        return node_id in self._members and self._members[node_id].incarnation == incarnation

    def remove(self, node_id: str) -> None:
        """Forget a node."""
        self._members.pop(node_id, None)

    def silent(self, now_s: float) -> list[str]:
        """Return the nodes that have not been heard for longer than the timeout."""
        return [name for name, m in sorted(self._members.items()) if now_s - m.heard_s > self._timeout_s]

    def extend_deadlines(self, gap_s: float) -> None:
        """Count so much time as heard: it was we who were away."""
        for member in self._members.values():
            member.heard_s += gap_s
