"""What happened when: the spans a simulation leaves behind, one lane per stage and per link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class SpanKind(StrEnum):
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
    kind: SpanKind
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

    def by_lane(self) -> dict[str, list[Span]]:
        """Return the spans of each lane, lanes without any included."""
        by_lane: dict[str, list[Span]] = {lane: [] for lane in self.lanes}
        for span in self.spans:
            by_lane[span.lane].append(span)
        return by_lane


def job_and_name(lane: str) -> tuple[str, str]:
    """Split "JOB/stage 3 (West)" into the job and the lane's name within it; the job is "" where none is named."""
    job, slash, name = lane.partition("/")
    return (job, name) if slash else ("", lane)


def is_stage(spans: Sequence[Span]) -> bool:
    """Whether a lane of these spans computes, so that its gaps are a pipeline's bubbles."""
    return any(
        span.kind in (SpanKind.FORWARD, SpanKind.BACKWARD, SpanKind.WEIGHT, SpanKind.UPDATE) for span in spans
    )


def gaps(spans: Sequence[Span], end_s: float) -> list[tuple[float, float]]:
    """Return when a lane idles between 0 and `end_s`, as (start, end) in seconds; `spans` by time."""
    gaps, free_s = [], 0.0
    for span in spans:
        if span.start_s > free_s:
            gaps.append((free_s, span.start_s))
        free_s = max(free_s, span.end_s)
    if end_s > free_s:
        gaps.append((free_s, end_s))
    return gaps


NOTHING = -1
"""The cause of a span that waited for nothing."""


class Record:
    """Spans in the order they ended. A span is known by its number."""

    def __init__(self) -> None:
        self.lanes: dict[str, None] = {}
        self.spans: list[Span] = []
        self._causes: list[int] = []

    def lane(self, name: str) -> str:
        """Announce a lane; lanes are drawn in the order they are announced."""
        self.lanes.setdefault(name)
        return name

    def add(
        self,
        lane: str,
        kind: SpanKind,
        span_s: tuple[float, float],
        *,
        cause: int,
        label: str = "",
        microbatch: int = -1,
    ) -> int:
        """Add what a lane did from start to end [s] after the span `cause` had ended; returns its number."""
        self.spans.append(Span(lane, kind, *span_s, label, microbatch))
        self._causes.append(cause)
        return len(self.spans) - 1

    def end_s(self, number: int) -> float:
        """Return when a span ended, 0 for NOTHING [s]."""
        return self.spans[number].end_s if number != NOTHING else 0.0

    def timeline(self) -> Timeline:
        """Return all spans, those marked that lead to the one that ended last."""
        spans = list(self.spans)
        number = max(range(len(spans)), key=lambda i: spans[i].end_s, default=NOTHING)
        while number != NOTHING:
            spans[number] = replace(spans[number], is_critical=True)
            number = self._causes[number]
        place = {lane: i for i, lane in enumerate(self.lanes)}
        shown = [span for span in spans if span.end_s > span.start_s]
        return Timeline(tuple(self.lanes), tuple(sorted(shown, key=lambda span: (place[span.lane], span.start_s))))
