"""The Chrome trace: well formed, a thread a lane, nothing at the same time on one."""

import gzip
import json
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given

from strata.simulate.chrome import chrome_trace, write_trace
from strata.simulate.timeline import Span, SpanKind, Timeline
from tests.simulate.random_timelines import timelines
from tests.support.laws import examples

WEST, EAST, LINK = "llama/stage 0 (West)", "llama/stage 1 (East)", "llama/link West>East"
STEP = Timeline(
    (WEST, LINK, EAST, "other/stage 0 (West)"),
    (
        Span(WEST, SpanKind.FORWARD, 0.0, 1.0, microbatch=3, is_critical=True),
        Span(WEST, SpanKind.BACKWARD, 4.0, 6.0, microbatch=3, is_critical=True),
        Span(WEST, SpanKind.UPDATE, 6.0, 6.5),
        Span(LINK, SpanKind.TRANSFER, 1.0, 1.25, "F3", microbatch=3),
        Span(EAST, SpanKind.FORWARD, 1.5, 2.0, microbatch=3),
        Span(EAST, SpanKind.BACKWARD, 2.0, 3.5, microbatch=3),
        Span(EAST, SpanKind.COLLECTIVE, 3.5, 6.0, "sum of copies"),
    ),
)


def of(trace, phase):
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def on_lane(trace):
    lanes = defaultdict(list)
    for event in of(trace, "X"):
        lanes[event["pid"], event["tid"]].append((round(event["ts"] * 1e3), round(event["dur"] * 1e3), event))
    return {lane: sorted(events, key=lambda event: event[:2]) for lane, events in lanes.items()}


@given(timeline=timelines())
@examples(60)
def test_a_trace_is_json_whose_events_have_all_their_fields(timeline):
    trace = json.loads(json.dumps(chrome_trace(timeline), allow_nan=False))
    assert trace["displayTimeUnit"] == "ms"
    for event in trace["traceEvents"]:
        assert {"ph", "name", "pid", "tid"} <= event.keys()
        assert event["ph"] in "MXsf"
        assert event["ph"] == "M" or event["ts"] >= 0
        assert event["ph"] != "X" or event["dur"] >= 0


@given(timeline=timelines())
@examples(60)
def test_nothing_on_a_lane_happens_at_the_same_time(timeline):
    for events in on_lane(chrome_trace(timeline)).values():
        for (start, length, _), (after, _, _) in pairwise(events):
            assert start + length <= after


@given(timeline=timelines())
@examples(60)
def test_work_and_bubbles_fill_a_stage_to_the_end_of_the_step(timeline):
    for events in on_lane(chrome_trace(timeline)).values():
        if any(event["cat"] == "bubble" for _, _, event in events):
            assert sum(length for _, length, _ in events) == round(timeline.end_s * 1e9)


def test_a_job_is_a_process_and_a_lane_a_thread_in_the_order_given():
    names = {
        (event["pid"], event["tid"], event["name"]): next(iter(event["args"].values()))
        for event in of(chrome_trace(STEP), "M")
    }
    assert names == {
        (1, 0, "process_name"): "llama",
        (1, 0, "process_sort_index"): 1,
        (2, 0, "process_name"): "other",
        (2, 0, "process_sort_index"): 2,
        (1, 1, "thread_name"): "stage 0 (West)",
        (1, 1, "thread_sort_index"): 1,
        (1, 2, "thread_name"): "link West>East",
        (1, 2, "thread_sort_index"): 2,
        (1, 3, "thread_name"): "stage 1 (East)",
        (1, 3, "thread_sort_index"): 3,
        (2, 4, "thread_name"): "stage 0 (West)",
        (2, 4, "thread_sort_index"): 4,
    }


def test_spans_are_named_as_the_field_does_and_stages_have_bubbles():
    found = [(event["tid"], event["name"], event["ts"], event["dur"]) for event in of(chrome_trace(STEP), "X")]
    assert sorted(found) == [
        (1, "B3", 4e6, 2e6),
        (1, "F3", 0.0, 1e6),
        (1, "UPDATE", 6e6, 0.5e6),
        (1, "bubble", 1e6, 3e6),
        (2, "WAN transfer F3", 1e6, 0.25e6),
        (3, "B3", 2e6, 1.5e6),
        (3, "F3", 1.5e6, 0.5e6),
        (3, "bubble", 0.0, 1.5e6),
        (3, "bubble", 6e6, 0.5e6),
        (3, "collective sum of copies", 3.5e6, 2.5e6),
    ]


def test_the_critical_path_is_marked_and_looks_different():
    events = of(chrome_trace(STEP), "X")
    critical = [event for event in events if event["args"].get("critical")]
    assert [(event["name"], event["cat"]) for event in critical] == [("F3", "F,critical"), ("B3", "B,critical")]
    colours = {event["cname"] for event in critical}
    assert len(colours) == 1
    assert not colours & {event.get("cname") for event in events if event not in critical}


def test_arrows_lead_from_the_sender_into_the_receiver():
    trace = chrome_trace(STEP)
    starts = {event["id"]: event for event in of(trace, "s")}
    ends = {event["id"]: event for event in of(trace, "f")}
    assert starts.keys() == ends.keys()
    arrows = {
        (start["name"], start["tid"], start["ts"], ends[i]["tid"], ends[i]["ts"]) for i, start in starts.items()
    }
    # A nanosecond before its end a span is still open.
    assert arrows == {("F", 1, 1e6 - 1e-3, 3, 1.5e6), ("B", 3, 3.5e6 - 1e-3, 1, 4e6)}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a/pipeline 0 stage 0 (x)", "a/pipeline 1 stage 1 (y)"),
        ("a/stage 0 (x) copy 0", "a/stage 1 (y) copy 1"),
        ("a/stage 0 (x)", "b/stage 1 (y)"),
        ("a/stage 1 (y)", "a/stage 0 (x)"),
    ],
)
def test_other_pipelines_copies_jobs_and_steps_are_sent_nothing(first, second):
    spans = (Span(first, SpanKind.FORWARD, 0, 1, microbatch=0), Span(second, SpanKind.FORWARD, 1, 2, microbatch=0))
    assert not of(chrome_trace(Timeline((first, second), spans)), "s")


def test_a_stage_that_starts_over_sends_once():
    lanes = ("a/stage 0 (x) copy 1", "a/stage 1 (y) copy 1")
    times = ((lanes[0], 0, 1), (lanes[0], 2, 3), (lanes[1], 3, 4))
    spans = tuple(Span(lane, SpanKind.FORWARD, start, end, microbatch=0) for lane, start, end in times)
    (arrow,) = of(chrome_trace(Timeline(lanes, spans)), "s")
    assert arrow["ts"] == pytest.approx(3e6, abs=1e-2)


def test_a_timeline_without_spans_is_a_trace_without_events():
    assert chrome_trace(Timeline((), ())) == {"traceEvents": [], "displayTimeUnit": "ms"}


def test_a_trace_is_written_plain_and_compressed(tmp_path):
    write_trace(STEP, tmp_path / "t.json")
    write_trace(STEP, tmp_path / "t.json.gz")
    plain = (tmp_path / "t.json").read_bytes()
    assert json.loads(plain) == chrome_trace(STEP)
    assert gzip.decompress((tmp_path / "t.json.gz").read_bytes()) == plain
