"""What befalls nodes in a replay: they join, leave, die and slow down."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from strata import units
from strata.errors import UsageError

Kind = Literal["join", "leave", "kill", "slow"]


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """One of them, `at_s` after the first arrival may come. `factor`: how many times as long a slow node takes."""

    kind: Kind
    node_id: str
    at_s: float
    factor: float = 1.0


def parse(kind: Kind, text: str, known: Collection[str]) -> list[FaultEvent]:
    """Read NODE@TIME, or NODE@TIME*FACTOR for `slow`; of a machine that is cut, one event a group of its devices.

    Raises UsageError.
    """
    example = f"--{kind} NODE@60s" + ("*1.5" if kind == "slow" else "")
    node_id, at, when = text.rpartition("@")
    when, star, factor = when.partition("*")
    if not at or bool(star) != (kind == "slow"):
        raise UsageError(f"--{kind} {text} does not say which node and when", hint=example)
    struck = [name for name in known if name == node_id or name.startswith(f"{node_id}.")]
    if not struck:
        raise UsageError(f"--{kind} {text}: no node {node_id!r} (there are {_some(known)})", hint=example)
    at_s = units.parse(when, "time")
    try:
        times = float(factor) if star else 1.0
    except ValueError:
        times = math.nan
    if at_s < 0 or not 0 < times < math.inf:
        raise UsageError(f"--{kind} {text} has an invalid time or factor", hint=example)
    return [FaultEvent(kind, name, at_s, times) for name in struck]


def _some(known: Collection[str]) -> str:
    shown = sorted(known)[:6]
    return ", ".join(shown) + (", ..." if len(known) > len(shown) else "")
