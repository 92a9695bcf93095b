"""What is remembered of a node's isolation, and where: an annotation on the node beside its taint.

Both are written by one patch, so that they never disagree, and another controller goes on from them. Times are
wall-clock seconds of the controller; one ahead of the reader's clock counts as now, so that a clock that is off
makes a node wait longer, never shorter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from strata.cluster.api.actions import Event, Ref, event
from strata.cluster.api.annotations import PREFIX
from strata.cluster.api.kinds import NODE, Object, annotations_of, meta
from strata.decision import Reason
from strata.fleet.isolation import FORGIVEN_S, MemberState

STANDING: Final = PREFIX + "standing"
"""Annotation of a node: its standing as JSON."""
UNHEALTHY: Final = PREFIX + "unhealthy"
"""Key of the taint of nodes that are out."""
HARD: Final = "NoSchedule"
SOFT: Final = "PreferNoSchedule"

_FORM: Final = 1
_MOST_TIMES: Final = 1000
_MOST_CAUSES: Final = 128
_LONGEST: Final = 253


@dataclass(frozen=True, slots=True)
class IsolationState:
    """A node's standing, and while it is out what took it out: by device, a fault's word or `slow-...`."""

    standing: MemberState = field(default_factory=MemberState)
    causes: Mapping[str, str] = field(default_factory=dict)


def encode(state: IsolationState, now_s: float) -> str:
    """Return a mark as the annotation's value, empty where nothing of it matters any more."""
    standing = state.standing
    is_forgiven = not standing.times or now_s - standing.since_s > FORGIVEN_S
    if not standing.is_isolated and is_forgiven:
        return ""
    mark: dict[str, Any] = {"v": _FORM, "out": standing.is_isolated, "since": standing.since_s}
    mark["times"] = standing.times
    if standing.is_isolated:
        mark |= {"well": standing.well_since_s, "causes": dict(state.causes)}
    return json.dumps(mark, separators=(",", ":"), allow_nan=False)


def decode(text: str, now_s: float) -> IsolationState:
    """Return the mark an annotation holds. Raises ValueError for what `encode` never writes."""
    try:
        mark = json.loads(text)
        if mark["v"] != _FORM or not isinstance(mark["out"], bool):
            raise ValueError("unknown form")
        times = mark["times"]
        if not isinstance(times, int) or isinstance(times, bool) or not 0 < times <= _MOST_TIMES:
            raise ValueError("times is not a count")
        well, causes = mark.get("well"), mark.get("causes", {})
        if len(causes) > _MOST_CAUSES or not all(
            isinstance(word, str) and 0 < len(word) <= _LONGEST for pair in causes.items() for word in pair
        ):
            raise ValueError("causes are not words by device")
        standing = MemberState(
            mark["out"],
            since_s=_past(mark["since"], now_s),
            well_since_s=None if well is None else _past(well, now_s),
            times=times,
        )
    except (TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {str(error)[:80]}") from None
    return IsolationState(standing, dict(causes))


def _past(value: object, now_s: float) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError("not a time")
    return min(float(value), now_s)


def states_of(nodes: Mapping[str, Object], now_s: float) -> tuple[dict[str, IsolationState], tuple[Event, ...]]:
    """Return what the API server remembers of nodes, and an event for each annotation that cannot be read.

    A node with our taint and no annotation that can be read is out since now, for the first time.
    """
    states: dict[str, IsolationState] = {}
    events = []
    for name, node in nodes.items():
        text = annotations_of(node).get(STANDING)
        if text is not None:
            try:
                states[name] = decode(text, now_s)
                continue
            except ValueError as error:
                reason = Reason("standing-unreadable", name, {"key": STANDING, "fault": str(error)[:80]})
                events.append(event(node_ref(node), reason, is_warning=True))
        if any(taint.get("effect") == HARD for taint in our_taints(node)):
            states[name] = IsolationState(MemberState(is_isolated=True, since_s=now_s, times=1))
    return states, tuple(events)


def our_taints(node: Object) -> Iterator[Mapping[str, str]]:
    """Yield a node's taints that are ours."""
    for taint in (node.get("spec") or {}).get("taints") or ():
        if taint.get("key") == UNHEALTHY:
            yield taint


def node_ref(node: Object) -> Ref:
    """Return a node as what actions are about."""
    return Ref(NODE, str(meta(node).get("name") or ""), uid=str(meta(node).get("uid") or ""))
