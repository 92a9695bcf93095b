"""Seed 003's test group "routing": least end-to-end latency over the layered graph."""

from __future__ import annotations

import math
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serving.layout import Layout, Line
from strata.serving.planning.allocation import Stage
from strata.serving.routing import layered
from tests.serving.routing.layouts import every_path, latency_s, layout, random_layout, request, router, server
from tests.support.laws import examples

LATER_S = 1e6
"""Between two requests, so that no prompt is being read when the next comes."""


@given(st.integers(0, 100_000), st.lists(st.tuples(st.integers(1, 100), st.integers(1, 60)), max_size=8))
@examples(80)
def test_every_route_is_as_fast_as_the_best_of_all_paths_with_room(seed, sizes):
    one = random_layout(seed)
    dp = router("dp", one)
    room = {server_.node_id: (server_.slots, server_.kv_tokens) for server_ in one.servers}
    for i, (prompt, most) in enumerate(sizes):
        asked = request(f"r{i}", prompt, most)
        loads = {name: dp.load(name) for name in room}
        running = {name: load[0] for name, load in loads.items()}
        open_ = {
            name
            for name, (slots, kv) in room.items()
            if running[name] < slots and loads[name][1] + asked.kv_tokens <= kv
        }
        best = min(
            (
                latency_s(one, path, asked, running)
                for path in every_path(one)
                if open_.issuperset(stage.node_id for stage in path)
            ),
            default=math.inf,
        )
        with mock.patch.object(layered, "SWEEPS", 99):
            route = dp.route(asked, i * LATER_S)
        if route is None:
            assert best == math.inf
        else:
            assert latency_s(one, route.stages, asked, running) == pytest.approx(best, rel=1e-9)
            assert route.ttft_s + (most - 1) * route.tpot_s == pytest.approx(best, rel=1e-9)


def test_nodes_of_different_pipelines_are_joined_where_that_is_faster():
    fast, slow = {"step_s": 0.01}, {"step_s": 0.05}
    one = layout(
        (server("a0", 0, 2, **fast), server("a1", 2, 4, **slow)),
        (server("b0", 0, 2, **slow), server("b1", 2, 4, **fast)),
    )
    assert [stage.node_id for stage in router("dp", one).route(request(), 0.0).stages] == ["a0", "b1"]


def test_a_node_may_be_entered_inside_its_range_and_costs_only_what_it_is_used_for():
    one = Layout(
        4,
        (server("head", 0, 2, step_s=0.01), server("long", 1, 4, step_s=0.03), server("all", 0, 4, step_s=0.9)),
        far=Line(1e-3),
    )
    route = router("dp", one).route(request(), 0.0)
    assert route.stages == (Stage("head", 0, 2), Stage("long", 2, 4))
    assert route.tpot_s == pytest.approx(0.011 + 0.031 * 2 / 3 + 2e-3)


def test_a_layer_counts_not_only_a_node():
    # Counting one layer's time a node, as the peer does, two nodes of slow layers look faster than three.
    one = Layout(
        8,
        (
            server("a", 0, 4, step_s=4 * 9e-3), server("b", 4, 8, step_s=4 * 9e-3),
            server("c", 0, 3, step_s=3 * 3e-3), server("d", 3, 6, step_s=3 * 3e-3),
            server("e", 6, 8, step_s=2 * 3e-3),
        ),
        far=Line(1e-3),
    )  # fmt: skip
    assert [stage.node_id for stage in router("dp", one).route(request(), 0.0).stages] == ["c", "d", "e"]


def test_the_way_back_to_the_head_counts():
    there = {("h", "near"): Line(2e-3), ("h", "far"): Line(1e-3)}
    back = {("near", "h"): Line(2e-3), ("far", "h"): Line(90e-3)}
    one = Layout(4, (server("h", 0, 2), server("near", 2, 4), server("far", 2, 4)), hops=there | back)
    assert router("dp", one).route(request(), 0.0).stages[-1].node_id == "near"


def test_long_prompts_take_the_wide_link_and_long_answers_the_short_one():
    hops = {("h", "wide"): Line(30e-3, 1e-6), ("h", "short"): Line(1e-3, 1e-3)}
    ranges = {"h": (0, 2), "wide": (2, 4), "short": (2, 4)}
    one = Layout(4, tuple(server(name, *ends, kv_tokens=9000) for name, ends in ranges.items()), hops=hops)
    assert router("dp", one).route(request(prompt=4000, most=2), 0.0).stages[-1].node_id == "wide"
    assert router("dp", one).route(request(prompt=10, most=500), 0.0).stages[-1].node_id == "short"


def test_a_prompt_that_is_still_being_read_is_waited_for():
    one = layout((server("a", prefill_s=1e-2),), (server("b", prefill_s=1.2e-2),))
    dp = router("dp", one)
    assert dp.route(request("long", prompt=500, most=1), 0.0).stages[0].node_id == "a"
    assert dp.route(request("next", prompt=50, most=1), 1.0).stages[0].node_id == "b"
    assert dp.route(request("later", prompt=50, most=1), 10.0).stages[0].node_id == "a"
    assert dp.explain(request("x", prompt=50, most=1), 10.0)[0]["ttft_s"] == pytest.approx(0.6)


def test_equal_paths_are_taken_in_turn():
    one = layout(*((server(f"{p}0", 0, 2), server(f"{p}1", 2, 4)) for p in "abcd"))
    dp, heads = router("dp", one), []
    for i in range(40):
        heads.append(dp.route(request(f"r{i}"), i * LATER_S).stages[0].node_id)
        dp.release(f"r{i}", i * LATER_S)
    assert {name: heads.count(name) for name in set(heads)} == {"a0": 10, "b0": 10, "c0": 10, "d0": 10}


@given(st.integers(0, 100_000), st.integers(0, 2))
@examples(40)
def test_where_not_every_head_is_searched_no_path_looks_faster_than_it_is(seed, sweeps):
    one = random_layout(seed, most_slots=9)
    asked, idle = request(), dict.fromkeys((s.node_id for s in one.servers), 0)
    best = min(latency_s(one, path, asked, idle) for path in every_path(one))
    with mock.patch.object(layered, "SWEEPS", sweeps):
        found = router("dp", one)._search(asked, 0.0)
    assert best <= found.total_s * (1 + 1e-9)


def test_a_layout_with_a_missing_layer_has_no_route_and_refuses_nobody():
    dp = router("dp", Layout(4, (server("a", 0, 2), server("c", 3, 4))))
    assert dp.route(request(), 0.0) is None
    assert dp.refuses(request(), 0.0) is None
    assert dp.explain(request(), 0.0) == []


def test_a_request_no_path_has_memory_for_is_refused_with_the_most_there_is():
    one = layout(
        (server("a", 0, 2, kv_tokens=500), server("b", 2, 4, kv_tokens=90)),
        (server("c", 0, 2, kv_tokens=80), server("d", 2, 4, kv_tokens=300)),
    )
    dp = router("dp", one)
    assert dp.refuses(request(prompt=250, most=50), 0.0) is None
    reason = dp.refuses(request(prompt=250, most=51), 0.0)
    assert (reason.token, reason.data) == ("request-too-long", {"tokens": 301, "most": 300})
