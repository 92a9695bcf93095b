"""What a request's time went into: waiting, reading the prompt, decoding; a row a request, or one an attempt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from strata.pictures.svg import COLOURS, fitting, picture, rect, text
from strata.units import show_time

_KINDS: Final = {
    "waiting": "#8886",
    "to the first token": COLOURS[0],
    "decoding": COLOURS[2],
    "lost with an attempt": COLOURS[5],
}
_LEFT: Final = 220.0
_WIDTH: Final = 900.0
_ROW: Final = 24.0


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a request's time, since its arrival. where: the nodes of its route."""

    kind: str
    begin_s: float
    end_s: float
    where: str = ""


def request_spans(timeline: Sequence[Mapping[str, Any]]) -> Iterator[Span]:
    """Yield what a request did, from a gateway's timeline of it; of one in flight, what is over."""
    at_s, where = 0.0, ""
    for entry in timeline:
        if "waited_s" in entry:
            where = " > ".join(stage[0] for stage in entry["route"])
            yield Span("waiting", at_s, entry["waited_s"])
            at_s = entry["waited_s"]
        elif "interrupted_after_s" in entry:
            yield Span("lost with an attempt", at_s, entry["interrupted_after_s"], where)
            at_s = entry["interrupted_after_s"]
        elif "finished_after_s" in entry:
            # Where an earlier attempt said the first token, this one has decoded from its start on.
            first_s = max(at_s, at_s if entry["first_token_after_s"] is None else entry["first_token_after_s"])
            yield Span("to the first token", at_s, first_s, where)
            yield Span("decoding", first_s, entry["finished_after_s"], where)
        elif "cancelled_after_s" in entry:
            kind = "lost with an attempt" if where else "waiting"
            yield Span(kind, at_s, entry["cancelled_after_s"], where)


def waterfall(requests: Sequence[Mapping[str, Any]], *, standalone: bool = False) -> str:
    """Draw requests by their `request_id` and `timeline`, as a gateway's `/decisions` lists them."""
    rows = [(request["request_id"], list(request_spans(request["timeline"]))) for request in requests]
    longest_s = max((span.end_s for _, spans in rows for span in spans), default=0.0) or 1.0
    scale = (_WIDTH - _LEFT - 80) / longest_s
    body, x, y = [], _LEFT, 8.0
    for kind, colour in _KINDS.items():
        body += [rect(x, y, 12, 12, fill=colour, css="edge"), text(x + 17, y + 10, kind, "small")]
        x += 40 + 7 * len(kind)
    y += 24
    for name, spans in rows:
        body.append(text(_LEFT - 8, y + 13, fitting(name, _LEFT - 40), "end"))
        for span in spans:
            width = (span.end_s - span.begin_s) * scale
            title = f"{span.kind}: {show_time(span.end_s - span.begin_s)}{span.where and f', {span.where}'}"
            if width > 0:
                x, colour = _LEFT + span.begin_s * scale, _KINDS[span.kind]
                body.append(rect(x, y, width, _ROW - 6, fill=colour, css="edge", title=title))
        end_s = spans[-1].end_s if spans else 0.0
        body.append(text(_LEFT + end_s * scale + 6, y + 13, show_time(end_s) if spans else "in flight or refused"))
        y += _ROW
    title = f"{len(rows)} requests, the longest {show_time(longest_s)}"
    return picture(body, width=_WIDTH, height=y + 6, title=title, standalone=standalone)
