"""Which layer a live thread falls into, as scx_layered decides it; for conditions that /proc can answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from strata.host.policy.policy import Layer, Match
from strata.host.threads.label import NAME_PREFIX
from strata.host.threads.snapshot import Thread

_HOLDS: Final[Mapping[str, Callable[[Thread, Any], bool]]] = {
    "CgroupPrefix": lambda thread, text: cgroup_path(thread).startswith(text),
    "CgroupSuffix": lambda thread, text: cgroup_path(thread).endswith(text),
    "CgroupContains": lambda thread, text: text in cgroup_path(thread),
    "CommPrefix": lambda thread, text: thread.name.startswith(text),
    "CommPrefixExclude": lambda thread, text: not thread.name.startswith(text),
    "PcommPrefix": lambda thread, text: thread.process.startswith(text),
    "PcommPrefixExclude": lambda thread, text: not thread.process.startswith(text),
    "NiceAbove": lambda thread, nice: thread.nice > nice,
    "NiceBelow": lambda thread, nice: thread.nice < nice,
    "NiceEquals": lambda thread, nice: thread.nice == nice,
    "PIDEquals": lambda thread, tid: thread.tid == tid,
    "TGIDEquals": lambda thread, pid: thread.pid == pid,
    "PPIDEquals": lambda thread, pid: thread.ppid == pid,
    "IsGroupLeader": lambda thread, is_leader: thread.is_leader == is_leader,
    # Whoever labelled itself is called so, unless it took another name since.
    "CmdJoin": lambda thread, text: thread.name.startswith(NAME_PREFIX + text),
}
KNOWN: Final = frozenset(_HOLDS)
"""Conditions that can be answered from /proc; the others never hold here."""


def holds(match: Match, thread: Thread) -> bool:
    """Return whether a condition holds for a thread; False for what /proc does not tell."""
    return match.kind in _HOLDS and _HOLDS[match.kind](thread, match.value)


def layer_of(thread: Thread, layers: Sequence[Layer]) -> Layer | None:
    """Return the layer that takes a thread: the first of which a block holds as a whole."""
    for layer in layers:
        if any(all(holds(match, thread) for match in block) for block in layer.matches):
            return layer
    return None


def cgroup_path(thread: Thread) -> str:
    """Return its cgroup as scx_layered writes it, `job/`; the root for one that is not seen from here."""
    return "/" if thread.cgroup.startswith("/..") else thread.cgroup.strip("/") + "/"
