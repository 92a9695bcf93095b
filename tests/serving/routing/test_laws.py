"""Seed 003's test group "routing": what holds for every router, whatever it is asked."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serving.layout import Layout, Line
from tests.serving.routing.layouts import (
    STRATEGIES,
    alone,
    layout,
    random_layout,
    request,
    router,
    server,
    shuffled,
)
from tests.support.laws import examples

seeds = st.integers(0, 100_000)
strategies = st.sampled_from(STRATEGIES)
calls = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 120), st.integers(1, 60), st.floats(0, 5)), max_size=40
)
"""A request's number, prompt and answer, and the time since the last call; a known number is released."""


def play(one, sequence):
    """Route or release as asked; yield after every call: who was routed, and the route."""
    now, live = 0.0, set()
    for number, prompt, most, gap in sequence:
        now += gap
        name = f"r{number}"
        if name in live:
            live.discard(name)
            one.release(name, now)
            yield name, None
        else:
            route = one.route(request(name, prompt, most), now)
            live |= {name} if route else set()
            yield name, route


@given(seeds, strategies, calls)
@examples(80)
def test_no_node_is_ever_booked_beyond_its_slots_or_its_memory(seed, strategy, sequence):
    lay = random_layout(seed)
    one = router(strategy, lay)
    for _ in play(one, sequence):
        for server_ in lay.servers:
            running, kv_tokens = one.load(server_.node_id)
            assert 0 <= running <= server_.slots
            assert 0 <= kv_tokens <= server_.kv_tokens


@given(seeds, strategies, calls)
@examples(60)
def test_a_release_restores_what_the_route_took_and_a_second_one_nothing(seed, strategy, sequence):
    lay = random_layout(seed)
    one = router(strategy, lay)
    for _ in play(one, sequence):
        pass
    loads = {server_.node_id: one.load(server_.node_id) for server_ in lay.servers}
    route = one.route(request("probe", 7, 3), 1e9)
    for stage in route.stages if route else ():
        assert one.load(stage.node_id) == (loads[stage.node_id][0] + 1, loads[stage.node_id][1] + 10)
    one.release("probe", 1e9)
    one.release("probe", 1e9)
    assert {server_.node_id: one.load(server_.node_id) for server_ in lay.servers} == loads


@given(seeds, strategies, calls)
@examples(60)
def test_routes_do_not_depend_on_the_order_nodes_joined_in(seed, strategy, sequence):
    lay = random_layout(seed)
    first, second = router(strategy, lay), router(strategy, shuffled(lay, seed))
    assert list(play(first, sequence)) == list(play(second, sequence))


@given(seeds, strategies, st.integers(1, 120), st.integers(1, 60))
@examples(60)
def test_a_route_covers_all_layers_along_what_its_nodes_serve(seed, strategy, prompt, most):
    lay = random_layout(seed)
    route = router(strategy, lay).route(request("r", prompt, most), 0.0)
    at, servers = 0, {server_.node_id: server_ for server_ in lay.servers}
    for stage in route.stages if route else ():
        assert stage.first == at
        assert servers[stage.node_id].first <= stage.first < stage.end == servers[stage.node_id].end
        at = stage.end
    assert at == (lay.num_layers if route else 0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_fits_is_found_and_what_does_not_waits(strategy):
    one = router(strategy, alone(server("a", slots=1, kv_tokens=30), server("b", slots=1, kv_tokens=100)))
    assert one.route(request("big", 60, 40), 0.0).stages[0].node_id == "b"
    assert one.route(request("second", 60, 40), 0.0) is None
    assert one.route(request("small", 10, 20), 0.0).stages[0].node_id == "a"
    assert one.route(request("third", 1, 1), 0.0) is None
    assert one.refuses(request("third", 1, 1), 0.0) is None
    one.release("big", 1.0)
    assert one.route(request("second", 60, 40), 1.0).stages[0].node_id == "b"
    assert one.refuses(request("huge", 60, 41), 0.0).token == "request-too-long"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_runs_keeps_its_place_when_the_layout_changes(strategy):
    one = router(strategy, alone(server("a", slots=2)))
    one.route(request("r0"), 0.0)
    one.route(request("r1"), 0.0)
    one.arrange(alone(server("a", slots=3), server("b", slots=1)))
    assert one.load("a") == (2, 40)
    assert {one.route(request(f"s{i}"), 0.0).stages[0].node_id for i in range(2)} == {"a", "b"}
    assert one.route(request("t"), 0.0) is None
    one.arrange(alone(server("b", slots=1)))
    one.release("r0", 1.0)
    assert (one.load("a"), one.load("b")) == ((0, 0), (1, 20))
    one.arrange(alone(server("a", slots=1)))
    assert one.load("a")[0] >= 1
    assert one.route(request("u"), 2.0) is None


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_a_layout_or_pipelines_everything_waits(strategy):
    for one in (router(strategy, Layout(0)), router(strategy, Layout(4))):
        assert one.route(request(), 0.0) is None
        assert one.refuses(request(), 0.0) is None
        assert one.explain(request(), 0.0) == []
        assert one.load("nobody") == (0, 0)
        assert one.reconcile("nobody", frozenset(), 0.0) == ()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nodes_without_a_link_between_them_are_no_path(strategy):
    pairs = [(server(f"{p}0", 0, 2), server(f"{p}1", 2, 4)) for p in "ab"]
    apart = {(a, b): Line(math.inf, 1e-6) for a in ("a0", "b0") for b in ("a1", "b1")}
    cut = layout(*pairs, hops=apart | {("b0", "b1"): Line(1e-3)})
    one = router(strategy, cut)
    assert [stage.node_id for stage in one.route(request("r"), 0.0).stages] == ["b0", "b1"]
    assert len(one.explain(request("s"), 0.0)) == 1
    assert router(strategy, layout(*pairs, hops=apart)).route(request(), 0.0) is None


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_beats_find_a_request_that_the_node_does_not_run(strategy):
    one = router(strategy, layout((server("a", 0, 2), server("b", 2, 4))))
    one.route(request("lost"), 0.0)
    one.route(request("runs"), 0.0)
    assert one.reconcile("b", frozenset(), 5.0) == ()
    one.route(request("new"), 7.0)
    assert one.reconcile("b", frozenset({"runs"}), 10.0) == ("lost",)
    assert one.load("b") == (3, 60)
    one.release("lost", 10.0)
    assert one.reconcile("b", frozenset({"runs"}), 15.0) == ("new",)
    assert one.reconcile("a", frozenset(), 15.0) == ()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_explanations_name_the_paths_cheapest_first_and_are_few(strategy):
    one = router(strategy, alone(*(server(f"n{i}", step_s=0.01 * (9 - i)) for i in range(9))))
    rows = one.explain(request(), 0.0)
    assert len(rows) == 5
    assert [str(row["path"])[:2] for row in rows] == ["n8", "n7", "n6", "n5", "n4"]
    costs = [row["cost_s"] for row in rows]
    assert costs == sorted(costs)
    assert rows[0]["cost_s"] == pytest.approx(rows[0]["ttft_s"] + 9 * rows[0]["tpot_s"])


@given(seeds, st.sampled_from(["auto", "dp"]), calls)
@examples(40)
def test_after_a_route_the_explanation_is_what_it_was_chosen_among(seed, strategy, sequence):
    one = router(strategy, random_layout(seed))
    for _ in play(one, sequence):
        pass
    asked = request("asked", 30, 20)
    before = one.explain(asked, 1e4)
    route = one.route(asked, 1e4)
    assert one.explain(asked, 1e4) == before
    if route is not None and len(before) < 5 and strategy == "auto":
        (row,) = [row for row in before if row["path"] == " > ".join(stage.node_id for stage in route.stages)]
        assert (row["ttft_s"], row["tpot_s"]) == (route.ttft_s, route.tpot_s)
