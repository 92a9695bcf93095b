"""Pictures: well-formed, with every name escaped, and their lengths those of the figures."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree as Tree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.pictures.delays import delay_lanes
from strata.pictures.front import plan_points
from strata.pictures.heat import acu_map
from strata.pictures.ranges import layer_ranges
from strata.pictures.spent import spent_bars
from strata.pictures.wan import wan_map
from strata.pictures.waterfall import request_spans, waterfall

SVG = "{http://www.w3.org/2000/svg}"
NAMES = st.text(min_size=1, max_size=30)
TIMES = st.floats(1e-6, 1e6)
BREAKDOWNS = st.fixed_dictionaries(dict.fromkeys(("compute", "bubble", "wan", "sync"), TIMES))


def plan(name, breakdown, *, usd=1.0):
    step_s = sum(breakdown.values())
    return {
        "rank": 1, "name": name, "step_time_s": step_s, "breakdown_s": breakdown, "utilization": 0.5,
        "cost_usd_per_mtoken": usd,
    }  # fmt: skip


PLANS = st.lists(st.builds(plan, NAMES, BREAKDOWNS), min_size=1, max_size=5)


def parsed(picture: str) -> Tree.Element:
    return Tree.fromstring(picture)


@given(plans=PLANS)
def test_bars_are_as_long_as_their_share_of_the_longest_step(plans):
    root = parsed(spent_bars(plans))
    bars = [rect for rect in root.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    total = sum(float(rect.get("width")) for rect in bars)
    longest = max(each["step_time_s"] for each in plans)
    assert total == pytest.approx(510 * sum(each["step_time_s"] for each in plans) / longest, abs=0.1 * len(bars))


@given(plans=PLANS, axis=st.sampled_from(["cost_usd_per_mtoken", "utilization"]))
def test_every_plan_is_a_point_within_the_picture(plans, axis):
    root = parsed(plan_points(plans, axis=axis, chosen=plans[0]["name"]))
    points = list(root.iter(f"{SVG}circle"))
    assert len(points) == len(plans)
    for point in points:
        assert 0 <= float(point.get("cx")) <= float(root.get("width"))
        assert 0 <= float(point.get("cy")) <= float(root.get("height"))


def test_plans_without_prices_say_so():
    shown = plan_points([plan("a", {"compute": 1.0}, usd=None)], axis="cost_usd_per_mtoken")
    assert "no plan has a figure for money" in shown


@given(names=st.lists(NAMES, min_size=1, max_size=12, unique=True), data=st.data())
def test_a_map_has_every_domain_whatever_its_name(names, data):
    domains = [{"name": name, "accelerator": name, "num_devices": 8} for name in names]
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=10))
    links = [
        {"source": a, "dest": b, "bandwidth_bytes_per_s": 1e9, "latency_s": 0.03, "factor": 0.5} for a, b in pairs
    ]
    root = parsed(wan_map(domains, links, used={names[0]: 4}, hops=pairs))
    assert len(list(root.iter(f"{SVG}circle"))) == len(names)
    assert len(list(root.iter(f"{SVG}path"))) == 2 * len(pairs)


@given(cuts=st.lists(st.integers(1, 79), max_size=6, unique=True), copies=st.integers(1, 60))
def test_layers_of_a_pipeline_fill_its_row(cuts, copies):
    edges = [0, *sorted(cuts), 80]
    pipelines = [
        {"stages": [
            {"node": f"A/{copy}", "first": first, "end": end, "stage_s": 0.01}
            for first, end in pairwise(edges)
        ]}
        for copy in range(copies)
    ]  # fmt: skip
    root = parsed(layer_ranges(pipelines, num_layers=80))
    widths = [float(rect.get("width")) for rect in root.iter(f"{SVG}rect")]
    assert len(widths) == len(edges) - 1  # alike, so one row
    assert sum(widths) == pytest.approx(740, abs=0.1 * len(widths))


@given(num=st.integers(1, 400_000), per_node=st.sampled_from([1, 4, 8, 16, 72]), free=st.integers(0, 100))
def test_a_heat_map_shows_every_device_or_says_how_many_it_leaves_out(num, per_node, free):
    domain = {
        "name": "A", "accelerator": "x", "acu": 100.0, "num_devices": num, "devices_per_node": per_node,
        "num_free": min(free, num),
    }  # fmt: skip
    shown = acu_map([domain])
    root = parsed(shown)
    squares = sum(path.get("d").count("z") for path in root.iter(f"{SVG}path"))
    left_out = sum(int(each.text.split()[1]) for each in root.iter(f"{SVG}text") if each.text.startswith("and "))
    of_each = per_node if num > 5000 else 1
    assert squares == -(-(num - left_out) // of_each)
    assert len(shown) < 1e6


def test_a_card_whose_acu_is_not_known_is_drawn():
    domain = dict.fromkeys(("acu", "num_free")) | {
        "name": "A", "accelerator": "x", "num_devices": 8, "devices_per_node": 8,
    }  # fmt: skip
    assert "ACU not known" in acu_map([domain])


GAPS = st.lists(st.floats(0, 1e3), min_size=2, max_size=8)


@given(gaps=GAPS, first_part=st.floats(0, 1), name=NAMES)
def test_a_requests_parts_follow_each_other_from_its_arrival_to_its_end(gaps, first_part, name):
    """Attempts that are lost, each after a wait, and one that ends."""
    timeline, at_s = [], 0.0
    for number in range(0, len(gaps) - 1, 2):
        sent_s, end_s = at_s + gaps[number], at_s + gaps[number] + gaps[number + 1]
        timeline.append({"attempt": number, "waited_s": sent_s, "route": [[name, 0, 4], ["b", 4, 8]]})
        timeline.append({"interrupted_after_s": end_s, "reason": {}})
        at_s = end_s
    first_s = sent_s + first_part * (end_s - sent_s)
    timeline[-1] = {"finished_after_s": end_s, "tokens": 3, "first_token_after_s": first_s}
    spans = list(request_spans(timeline))
    assert spans[0].begin_s == 0
    assert all(a.end_s == b.begin_s for a, b in pairwise(spans))
    assert spans[-1].end_s == end_s
    assert spans[-1].where == f"{name} > b"
    request = {"request_id": name, "timeline": timeline}
    titles = parsed(waterfall([request])).iter(f"{SVG}title")
    assert len(list(titles)) == 1 + sum(span.end_s > span.begin_s for span in spans)
    assert len(list(parsed(waterfall([request, request])).iter(f"{SVG}text"))) == 4 + 2 * 2


def test_an_id_as_the_gateway_makes_them_is_cut_to_what_there_is_room_for():
    """Digits are wider than letters are on average: eight pixels each."""
    labels = parsed(waterfall([{"request_id": "cmpl-" + "0" * 32, "timeline": []}])).iter(f"{SVG}text")
    [label] = [each for each in labels if (each.text or "").startswith("cmpl-")]
    assert len(label.text) * 8 <= float(label.get("x"))


def test_a_request_that_was_refused_or_waits_has_no_part():
    assert list(request_spans([{"rejected": {}}])) == []
    assert list(request_spans([])) == []
    assert [span.kind for span in request_spans([{"cancelled_after_s": 1.0}])] == ["waiting"]


def lane(pool, waiting):
    return {
        "pool": pool, "is_critical": True, "threads": 2, "waits": 3, "waited_ms": 5.0, "longest_ms": 2.0,
        "woken": waiting, "preempted": [value / 2 for value in waiting], "yielded": [0.0] * len(waiting),
    }  # fmt: skip


@given(
    names=st.lists(NAMES, min_size=1, max_size=4),
    waiting=st.lists(st.floats(0, 1e4), min_size=1, max_size=40),
    worst=st.lists(st.floats(0, 1000), max_size=8),
)
def test_delays_stay_within_their_lanes_and_each_finding_is_marked(names, waiting, worst):
    findings = [{"token": "cpu-wait", "worst_ms": [at, min(at + 5, 1000.0)]} for at in worst]
    report = {"lanes": [lane(name, waiting) for name in names], "findings": findings, "wall_ms": 1000.0}
    root = parsed(delay_lanes(report))
    lanes = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "lane"]
    assert len(lanes) == len(names)
    pins = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "pin"]
    marked = sorted(int(word.split()[0]) for pin in pins for word in pin.find(f"{SVG}title").text.split(", "))
    assert marked == list(range(1, len(worst) + 1))
    width, height = float(root.get("width")), float(root.get("height"))
    for pin in pins:
        assert 0 <= float(pin.get("x")) <= width
        assert float(pin.get("y")) + float(pin.get("height")) <= height


def test_plans_whose_names_are_cut_are_told_apart_by_their_rank():
    breakdown = dict.fromkeys(("compute", "bubble", "wan", "sync"), 1.0)
    alike = [
        plan("dp " + " | ".join(["Somewhere"] * 9) + end, breakdown) | {"rank": rank}
        for rank, end in ((1, "a"), (2, "b"))
    ]
    labels = [text.text for text in parsed(spent_bars(alike)).iter(f"{SVG}text") if "…" in (text.text or "")]
    assert [label.partition(":")[0] for label in labels] == ["1", "2"]
