"""What happened when: the spans a simulation leaves behind, one lane per stage and per link."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a lane is doing in a span; a lane without a span idles."""

    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHT = "weight"
    UPDATE = "update"
    TRANSFER = "transfer"
    COLLECTIVE = "collective"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Span:
    """One thing a lane did from `start_s` to `end_s`. Spans of one lane never overlap.

    lane: "JOB/stage 3 (West)" or "JOB/link West>East"; microbatch: -1 where it belongs to none;
    is_critical: part of a chain of spans that explains the step's length.
    """

    lane: str
    kind: Kind
    start_s: float
    end_s: float
    label: str = ""
    microbatch: int = -1
    is_critical: bool = False


@dataclass(frozen=True, slots=True)
class Timeline:
    """The spans of one simulated step, by lane and then by time; `lanes` in the order they are drawn."""

    lanes: tuple[str, ...]
    spans: tuple[Span, ...]

    @property
    def end_s(self) -> float:
        """When the last span ends."""
        return max((span.end_s for span in self.spans), default=0.0)
