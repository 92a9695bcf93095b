"""What conditions say about each other (one follows from another, they never hold together) and about threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, Final

from strata.host.policy.policy import JOIN_BYTES, Layer, Match
from strata.host.threads.label import NAME_PREFIX
from strata.host.threads.snapshot import Thread

NICE: Final = range(-20, 20)
_PREFIXES: Final = ("CommPrefix", "PcommPrefix", "CgroupPrefix", "CmdJoin")
_FLAGS: Final = ("IsGroupLeader", "UsedGpuTid", "UsedGpuPid")
_SINGLE: Final = (
    "UIDEquals", "GIDEquals", "PIDEquals", "PPIDEquals", "TGIDEquals", "NSPIDEquals", "NSEquals", "IsGroupLeader",
    "UsedGpuTid", "UsedGpuPid", "NumaNode",
)  # fmt: skip
"""Conditions on something of which a thread has one."""


def is_always(match: Match) -> bool:
    """Return whether a condition holds for every thread."""
    if match.kind in ("CommPrefix", "PcommPrefix", "CgroupPrefix"):
        return bool(match.value == "")
    if match.kind in ("CgroupSuffix", "CgroupContains"):
        return match.value in ("", "/")  # every path ends with a slash
    return match.kind.startswith("Nice") and set(NICE) == _nices(match)


def implies(a: Match, b: Match) -> bool:
    """Return whether a thread that fits `a` always fits `b`; False where that is not known."""
    if a == b or is_always(b):
        return True
    if a.kind.startswith("Nice") and b.kind.startswith("Nice"):
        return _nices(a) <= _nices(b)
    if b.kind.endswith("Exclude"):
        return _excludes(a, b)
    if b.kind == "CgroupContains" and a.kind in ("CgroupPrefix", "CgroupSuffix", "CgroupContains"):
        return b.value in a.value
    if a.kind != b.kind:
        # A thread that used a GPU makes its process one that did.
        return (a.kind, a.value, b.kind, b.value) == ("UsedGpuTid", True, "UsedGpuPid", True)
    if a.kind in _PREFIXES:
        return bool(a.value.startswith(b.value))
    if a.kind == "CgroupSuffix":
        return bool(a.value.endswith(b.value))
    if a.kind == "AvgRuntime":
        return bool(b.value[0] <= a.value[0] and a.value[1] <= b.value[1])
    return False


def covers(wide: Sequence[Match], narrow: Sequence[Match]) -> bool:
    """Return whether a thread that fits all of `narrow` always fits all of `wide`."""
    return all(is_always(b) or any(implies(a, b) for a in narrow) for b in wide)


def leave_none(alternatives: Sequence[Match]) -> bool:
    """Return whether every thread fits one of some conditions, though each leaves out threads by itself.

    As two names left out in blocks of their own: what has the one name has not the other.
    """
    restrictive = [match for match in alternatives if not is_always(match)]
    nices = set().union(*(_nices(match) for match in restrictive if match.kind.startswith("Nice")))
    return nices == set(NICE) or any(_either(a, b) or _either(b, a) for a, b in combinations(restrictive, 2))


def _either(a: Match, b: Match) -> bool:
    if a.kind == b.kind and a.kind.endswith("Exclude"):
        return not a.value.startswith(b.value) and not b.value.startswith(a.value)
    if b.kind == f"{a.kind}Exclude":
        return bool(b.value.startswith(a.value))
    return a.kind == b.kind and a.kind in _FLAGS and a.value != b.value


def contradiction(block: Sequence[Match]) -> str:
    """Return why no thread can fit all of these conditions; "" where one may."""
    for match in block:
        if why := _impossible(match):
            return why
    for a, b in combinations(block, 2):
        if _exclusive(a, b) or _exclusive(b, a):
            return f"{_sentence(a)} and {_sentence(b)} never hold together"
    nices = [match for match in block if match.kind.startswith("Nice")]
    if nices and not set(NICE).intersection(*(_nices(match) for match in nices)):
        return f"{' and '.join(map(_sentence, nices))} leave no nice value"
    return ""


def _impossible(match: Match) -> str:
    if match.kind.startswith("Nice") and not _nices(match):
        return f"{_sentence(match)}: nice values go from {NICE[0]} to {NICE[-1]}"
    if match.kind == "AvgRuntime" and match.value[0] >= match.value[1]:
        return f"{_sentence(match)}: the upper end is not above the lower"
    if match.kind.endswith("Exclude") and match.value == "":
        return f"{_sentence(match)} leaves out every name"
    if match.kind == "CmdJoin" and JOIN_BYTES <= len(match.value.encode()) < 16:
        return f"{_sentence(match)}: a join command holds {JOIN_BYTES - 1} bytes"
    return ""


def _exclusive(a: Match, b: Match) -> bool:
    if a.kind == b.kind and a.kind in _SINGLE:
        return bool(a.value != b.value)
    if a.kind == b.kind and a.kind in _PREFIXES:
        return not a.value.startswith(b.value) and not b.value.startswith(a.value)
    if a.kind == b.kind == "CgroupSuffix":
        return not a.value.endswith(b.value) and not b.value.endswith(a.value)
    if a.kind == b.kind == "AvgRuntime":
        return bool(max(a.value[0], b.value[0]) >= min(a.value[1], b.value[1]))
    if b.kind == f"{a.kind}Exclude":
        return bool(a.value.startswith(b.value))
    return (a.kind, a.value, b.kind, b.value) == ("UsedGpuTid", True, "UsedGpuPid", False)


def _excludes(a: Match, b: Match) -> bool:
    if a.kind == b.kind:
        return bool(b.value.startswith(a.value))
    if a.kind != b.kind.removesuffix("Exclude"):
        return False
    return not a.value.startswith(b.value) and not b.value.startswith(a.value)


def _nices(match: Match) -> set[int]:
    if match.kind == "NiceAbove":
        return {nice for nice in NICE if nice > match.value}
    if match.kind == "NiceBelow":
        return {nice for nice in NICE if nice < match.value}
    return {nice for nice in NICE if nice == match.value}


def _sentence(match: Match) -> str:
    value = list(match.value) if isinstance(match.value, tuple) else match.value
    return f"{match.kind} {value!r}"


HOLDS: Final[Mapping[str, Callable[[Thread, Any], bool]]] = {
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
    "UIDEquals": lambda thread, user: thread.user == user,
    "PIDEquals": lambda thread, tid: thread.tid == tid,
    "TGIDEquals": lambda thread, pid: thread.pid == pid,
    "PPIDEquals": lambda thread, pid: thread.ppid == pid,
    "IsGroupLeader": lambda thread, is_leader: thread.is_leader == is_leader,
    # Whoever labelled itself is called so, unless it took another name since.
    "CmdJoin": lambda thread, text: thread.name.startswith(NAME_PREFIX + text),
}
"""Conditions that can be answered from /proc; the others never hold here."""


def holds(match: Match, thread: Thread) -> bool:
    """Return whether a condition holds for a thread; False for what /proc does not tell."""
    return match.kind in HOLDS and HOLDS[match.kind](thread, match.value)


def layer_of(thread: Thread, layers: Sequence[Layer]) -> Layer | None:
    """Return the layer that takes a thread: the first of which a block holds as a whole."""
    for layer in layers:
        if any(all(holds(match, thread) for match in block) for block in layer.matches):
            return layer
    return None


def cgroup_path(thread: Thread) -> str:
    """Return its cgroup as scx_layered writes it, `job/`; the root for one that is not seen from here."""
    return "/" if thread.cgroup.startswith("/..") else thread.cgroup.strip("/") + "/"
