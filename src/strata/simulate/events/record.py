"""What happened, span by span, with what each span waited for: the timeline and its critical path."""

from __future__ import annotations

from dataclasses import replace

from strata.simulate.timeline import Span, SpanKind, Timeline

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
