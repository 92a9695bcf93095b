"""A timeline as a Chrome trace: open it in ui.perfetto.dev or chrome://tracing.

Trace event format ("JSON Object Format", "Complete Events", "Flow Events"): a process a job, a thread a lane.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from strata.files import write_text
from strata.simulate.timeline import Span, SpanKind, Timeline, gaps, is_stage, job_and_name

Event = dict[str, Any]

NAMES: Final = {
    SpanKind.FORWARD: "F",
    SpanKind.BACKWARD: "B",
    SpanKind.WEIGHT: "W",
    SpanKind.UPDATE: "UPDATE",
    SpanKind.TRANSFER: "WAN transfer",
    SpanKind.COLLECTIVE: "collective",
    SpanKind.FAILURE: "failure",
}
BUBBLE: Final = "bubble"

_STAGE: Final = re.compile(r"(.*)stage ([0-9]+) \([^)]*\)(.*)", re.DOTALL)

# Reserved colour names of the trace viewer; everything else gets a colour from its name.
_CRITICAL_COLOUR: Final = "terrible"
_BUBBLE_COLOUR: Final = "white"


def chrome_trace(timeline: Timeline) -> Event:
    """Return the timeline in the trace event format; times in microseconds, rounded to the nanosecond.

    A span of the critical path has `args.critical`, the category "critical" and a colour of its own. Arrows run
    from a microbatch's forward on one stage to its forward on the next, and back from backward to backward.
    """
    lanes = timeline.by_lane()
    process = {job: pid for pid, job in enumerate(dict.fromkeys(job_and_name(lane)[0] for lane in lanes), start=1)}
    thread = {lane: (process[job_and_name(lane)[0]], tid) for tid, lane in enumerate(lanes, start=1)}
    events = [*_names(process, thread)]
    for lane, spans in lanes.items():
        events += (_complete(span, *thread[lane]) for span in spans)
        if is_stage(spans):
            events += (_bubble(start, end, *thread[lane]) for start, end in gaps(spans, timeline.end_s))
    events += _arrows(timeline.spans, thread)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_trace(timeline: Timeline, path: str | Path) -> None:
    """Write the Chrome trace; a path that ends in `.gz` is compressed, which both viewers read."""
    write_text(path, json.dumps(chrome_trace(timeline), ensure_ascii=False, allow_nan=False) + "\n")


def _names(process: dict[str, int], thread: dict[str, tuple[int, int]]) -> Iterator[Event]:
    for job, pid in process.items():
        yield from _named("process", pid, 0, job or "step", pid)
    for lane, (pid, tid) in thread.items():
        yield from _named("thread", pid, tid, job_and_name(lane)[1], tid)


def _named(what: str, pid: int, tid: int, name: str, place: int) -> Iterator[Event]:
    for key, value in (("name", name), ("sort_index", place)):
        yield {"ph": "M", "name": f"{what}_{key}", "pid": pid, "tid": tid, "args": {key: value}}


def _ns(time_s: float) -> int:
    # Whole nanoseconds: rounding each end alone keeps neighbours neighbours, rounding a duration does not.
    return round(time_s * 1e9)


def _between(start_s: float, end_s: float, pid: int, tid: int) -> Event:
    start, end = _ns(start_s), _ns(end_s)
    return {"ph": "X", "dur": (end - start) / 1e3, **_at(start, pid, tid)}


def _complete(span: Span, pid: int, tid: int) -> Event:
    category, args = NAMES[span.kind], Event()
    event = {"name": category, "cat": category, **_between(span.start_s, span.end_s, pid, tid), "args": args}
    if span.kind in (SpanKind.FORWARD, SpanKind.BACKWARD, SpanKind.WEIGHT):
        event["name"] = span.label or (f"{category}{span.microbatch}" if span.microbatch >= 0 else category)
    elif span.label:
        event["name"] = f"{category} {span.label}"
    if span.microbatch >= 0:
        args["microbatch"] = span.microbatch
    if span.is_critical:
        args["critical"] = True
        event |= {"cat": f"{category},critical", "cname": _CRITICAL_COLOUR}
    return event


def _bubble(start_s: float, end_s: float, pid: int, tid: int) -> Event:
    return {
        "name": BUBBLE,
        "cat": BUBBLE,
        **_between(start_s, end_s, pid, tid),
        "cname": _BUBBLE_COLOUR,
        "args": {},
    }


def _arrows(spans: Iterable[Span], thread: dict[str, tuple[int, int]]) -> Iterator[Event]:
    """Yield an arrow from each stage that sent a microbatch to the next stage that worked on it."""
    journeys: dict[tuple[str, SpanKind, int], list[tuple[int, Span]]] = defaultdict(list)
    for span in spans:
        stage = _STAGE.fullmatch(span.lane)
        if stage and span.microbatch >= 0 and span.kind in (SpanKind.FORWARD, SpanKind.BACKWARD):
            # Pipelines of one job, and copies of one pipeline, number their microbatches alike.
            journeys[stage[1] + stage[3], span.kind, span.microbatch].append((int(stage[2]), span))
    flow = 0
    for (_, kind, _), journey in journeys.items():
        for sender, receiver in _sent(journey, to_next=1 if kind is SpanKind.FORWARD else -1):
            flow += 1
            common = {"name": NAMES[kind], "cat": "message", "id": flow}
            # An arrow belongs to the span it lies in: one nanosecond before the end is still inside.
            leaves = max(_ns(sender.start_s), _ns(sender.end_s) - 1)
            yield {"ph": "s", **common, **_at(leaves, *thread[sender.lane])}
            yield {"ph": "f", "bp": "e", **common, **_at(_ns(receiver.start_s), *thread[receiver.lane])}


def _sent(journey: Sequence[tuple[int, Span]], *, to_next: int) -> Iterator[tuple[Span, Span]]:
    """Yield who sent to whom: after a failure, or in the next step, a microbatch may start over."""
    for (i, sender), (j, receiver) in pairwise(sorted(journey, key=lambda item: item[1].start_s)):
        if j == i + to_next and sender.end_s <= receiver.start_s:
            yield sender, receiver


def _at(time_ns: int, pid: int, tid: int) -> Event:
    return {"ts": time_ns / 1e3, "pid": pid, "tid": tid}
