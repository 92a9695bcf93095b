"""Seed 003's test group "routing": turns by rate, and the least work."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serving.layout import Layout, Line
from tests.serving.routing.layouts import STRATEGIES, alone, layout, random_layout, request, router, server
from tests.support.laws import examples


def heads(one, count, *, keep=False, **more):
    """Where `count` requests go; each ends before the next comes unless they are kept."""
    found = []
    for i in range(count):
        now = 10.0 * i
        route = one.route(request(f"r{i}", **more), now)
        found.append(route.stages[0].node_id if route else None)
        if not keep:
            one.release(f"r{i}", now)
    return found


@given(st.lists(st.floats(1e-3, 1e-1), min_size=1, max_size=6))
@examples(50)
def test_turns_are_proportional_to_rates_at_every_moment(steps):
    servers = [server(f"n{i}", step_s=step_s, per_sequence_s=0.0) for i, step_s in enumerate(steps)]
    taken = heads(router("rr", alone(*servers)), 200)
    total = sum(1 / step_s for step_s in steps)
    for upto in (1, 7, 50, 200):
        count = Counter(taken[:upto])
        for i, step_s in enumerate(steps):
            assert abs(count[f"n{i}"] - upto / step_s / total) < len(steps)


def test_the_fast_one_has_its_turns_between_those_of_the_slow():
    one = router("rr", alone(server("a", step_s=1.0, per_sequence_s=0), *(
        server(name, step_s=5.0, per_sequence_s=0) for name in "bc")))  # fmt: skip
    # nginx's example: weights 5, 1, 1.
    assert "".join(heads(one, 7)) == "aabacaa"


def test_a_step_ends_when_the_slowest_node_has_done_all_microbatches_or_one_has_come_around():
    lay = layout((server("a", 0, 2, step_s=0.02), server("b", 2, 4)), hop_s=1e-3)
    near, far = router("rr", lay), router("rr", Layout(4, lay.servers, lay.pipelines, far=Line(0.1)))
    # Four sequences as two microbatches: 2 x 22 ms on a; 22 + 12 ms and two hops around.
    assert near.rate[0] == pytest.approx(4 / 0.044)
    assert far.rate[0] == pytest.approx(4 / 0.234)
    assert near.route(request("alone", 10, 2), 0.0).tpot_s == pytest.approx(0.021 + 0.011 + 2e-3)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sequences_beyond_those_of_one_step_take_a_step_of_their_own(strategy):
    one = router(strategy, alone(server("a", per_sequence_s=0.0, slots=24, step_sequences=8)))
    seen = [one.route(request(f"r{i}", prompt=1, most=2), 0.0).tpot_s for i in range(24)]
    if strategy == "auto":  # its steps have prompts in them: only how much later they end is told
        assert seen[7] < 1.5 * seen[0]
        assert seen[8] > 1.5 * seen[7]
        assert seen[16] > 1.2 * seen[15]
    else:
        assert seen == pytest.approx([0.01] * 8 + [0.02] * 8 + [0.03] * 8)


def test_a_full_step_sends_the_next_request_to_the_idle_pipeline():
    # One node is faster for a sequence alone, but decodes two at a time.
    near = server("a", per_sequence_s=0.0, slots=24, step_sequences=2)
    lay = layout((near,), (server("b", 0, 2, per_sequence_s=0.0), server("c", 2, 4, per_sequence_s=0.0)))
    assert heads(router("auto", lay), 3, keep=True, most=50) == ["a", "a", "b"]


def test_turns_skip_whoever_is_full():
    one = router("rr", alone(server("a", slots=1), server("b", slots=3)))
    assert sorted(heads(one, 4, keep=True)) == ["a", "b", "b", "b"]
    assert heads(one, 1) == [None]


def test_a_node_in_two_pipelines_counts_in_both():
    shared = server("s", 2, 4, slots=3)
    one = router("rr", layout((server("a", 0, 2, slots=2), shared), (server("b", 0, 2, slots=2), shared)))
    assert heads(one, 4, keep=True).count(None) == 1
    assert one.load("s") == (3, 60)


@given(st.integers(0, 100_000), st.lists(st.tuples(st.integers(1, 90), st.integers(1, 60)), max_size=12))
@examples(60)
def test_least_work_takes_the_cheapest_pipeline_with_room_and_never_a_full_one(seed, sizes):
    lay = random_layout(seed)
    one, servers = router("auto", lay), {s.node_id: s for s in lay.servers}
    for i, (prompt, most) in enumerate(sizes):
        asked, now = request(f"r{i}", prompt, most), i * 0.01
        costs = dict(zip(one.pipelines, one.weighed(asked, now)[1].tolist(), strict=True))
        has_capacity = {
            stages
            for stages in one.pipelines
            if all(
                one.load(s.node_id)[0] < servers[s.node_id].slots
                and one.load(s.node_id)[1] + asked.kv_tokens <= servers[s.node_id].kv_tokens
                for s in stages
            )
        }
        route = one.route(asked, now)
        assert (route is None) == (not has_capacity)
        if route:
            assert route.stages in has_capacity
            assert costs[route.stages] == pytest.approx(min(costs[stages] for stages in has_capacity))


def test_the_cost_is_own_time_and_what_others_lose():
    one = router("auto", alone(server("a", step_s=0.01, per_sequence_s=0.002, prefill_s=1e-3)))
    asked = request(prompt=100, most=11)
    assert one.weighed(asked, 0.0)[1][0] == pytest.approx(0.1 + 10 * 0.012)
    one.route(request("first", prompt=50, most=11), 0.0)
    one.first_token("first", 0.0)
    # The one that runs takes 12 ms of every step, a chunk the rest: so much longer is the reading,
    # and so much of it do its steps lose. It also loses 2 ms in each of 10 steps.
    chunk_s = one.reading.chunk_tokens * 1e-3
    read_s = 0.1 * (0.012 + chunk_s) / chunk_s
    lost_s = 10 * 0.002 + read_s * chunk_s / (0.012 + chunk_s)
    assert one.weighed(asked, 0.0)[1][0] == pytest.approx(read_s + 10 * 0.014 + lost_s)
    route = one.route(asked, 0.0)
    assert (route.ttft_s, route.tpot_s) == (pytest.approx(read_s), pytest.approx(0.014))


def test_prompts_wait_for_each_other_and_a_first_token_says_which_are_read():
    one = router("auto", alone(server("a", step_s=0.0, per_sequence_s=0.0, prefill_s=1e-2)))
    asked = request(prompt=10, most=1)
    for name, prompt in (("r0", 50), ("r1", 20)):
        one.route(request(name, prompt, 1), 0.0)
    assert one.weighed(asked, 0.0)[0].ttft_s[0] == pytest.approx(0.8)
    assert one.weighed(asked, 0.1)[0].ttft_s[0] == pytest.approx(0.7)
    one.first_token("r0", 0.1)  # earlier than was reckoned
    assert one.weighed(asked, 0.1)[0].ttft_s[0] == pytest.approx(0.3)
    one.release("r0", 0.1)
    assert one.weighed(asked, 0.1)[0].ttft_s[0] == pytest.approx(0.3)
    one.release("r1", 0.1)  # never read
    assert one.weighed(asked, 0.1)[0].ttft_s[0] == pytest.approx(0.1)


def test_what_is_read_later_than_was_reckoned_is_still_waited_for():
    one = router("auto", alone(server("a", step_s=0.0, per_sequence_s=0.0, prefill_s=1e-2)))
    for name in ("r0", "r1", "r2"):
        one.route(request(name, 50, 1), 0.0)
    assert one.weighed(request(prompt=10, most=1), 2.0)[0].ttft_s[0] == pytest.approx(0.1)
    one.first_token("r0", 2.0)
    assert one.weighed(request(prompt=10, most=1), 2.0)[0].ttft_s[0] == pytest.approx(1.1)


def test_a_pipeline_that_is_always_reading_has_longer_steps():
    one = router(
        "auto", alone(server("a", step_s=0.01, per_sequence_s=0.0, prefill_s=1e-4, slots=90, kv_tokens=10**6))
    )
    for i in range(60):
        one.route(request(f"r{i}", 10_000, 90), float(i))
    step_s = one.weighed(request(), 60.0)[0].step_s[0]
    chunk_s = one.reading.chunk_tokens * 1e-4
    assert 0.01 + 0.7 * chunk_s < step_s < 0.01 + chunk_s


def test_an_interrupted_request_reads_what_it_had_and_has_fewer_steps_left():
    one = router("auto", alone(server("a", step_s=0.01, per_sequence_s=0.0, prefill_s=1e-3)))
    assert one.weighed(request(prompt=10, most=21, generated=5), 0.0)[1][0] == pytest.approx(0.015 + 15 * 0.01)


def test_work_goes_by_speed_and_equal_ones_take_turns():
    one = router("auto", alone(server("a"), server("b"), server("c", step_s=0.1)))
    assert heads(one, 4) == ["a", "b", "a", "b"]
    busy = router(
        "auto", alone(*(server(name, slots=9, per_sequence_s=0.01) for name in "ab"), server("c", step_s=0.05))
    )
    assert Counter(heads(busy, 12, keep=True)).most_common(1)[0][1] < 6


def test_a_cached_beginning_draws_a_request_and_saves_its_prefill():
    one = router("auto", alone(server("a", prefill_s=1e-2), server("b", prefill_s=1e-2)))
    told = {"prompt": 64, "blocks": (1, 2, 3, 4)}
    (first,) = heads(one, 1, **told)
    assert set(heads(one, 9)) == {"a", "b"}
    assert heads(one, 4, **told) == [first] * 4
    route = one.route(request("again", **told), 200.0)
    assert (route.cached_tokens, route.ttft_s) == (63, pytest.approx(1e-2))


def test_affinity_ends_where_the_load_gap_is_wide():
    servers = [server(name, slots=8, step_s=1e-3, per_sequence_s=0.0, prefill_s=1e-4) for name in "ab"]
    one = router("auto", alone(*servers))
    placed = heads(one, 6, keep=True, prompt=64, blocks=(1, 2, 3, 4))
    assert placed[:3] == [placed[0]] * 3
    assert len(set(placed)) == 2


def test_a_pipeline_that_stays_keeps_its_prefixes_through_a_new_layout():
    one = router("auto", alone(server("b", prefill_s=1e-2)))
    one.route(request("r", 64, blocks=(1, 2, 3, 4)), 0.0)
    one.arrange(alone(server("a", prefill_s=1e-2), server("b", prefill_s=1e-2), server("c", prefill_s=1e-2)))
    route = one.route(request("s", 64, blocks=(1, 2, 3, 4)), 1e2)
    assert (route.stages[0].node_id, route.cached_tokens) == ("b", 63)


def test_a_goal_that_load_puts_out_of_reach_is_waited_for():
    one = router("auto", alone(server("a", step_s=0.01, per_sequence_s=0.01, prefill_s=1e-3)))
    assert one.route(request("first", prompt=100), 0.0)
    for asked in (request("quick", tpot_goal_s=0.025), request("soon", ttft_goal_s=0.05)):
        assert one.route(asked, 0.0) is None
        assert one.refuses(asked, 0.0) is None
    assert one.route(request("soon", ttft_goal_s=0.05), 0.09)
    one.release("first", 1.0)
    one.release("soon", 1.0)
    assert one.route(request("quick", tpot_goal_s=0.025), 1.0)


def test_a_goal_that_no_idle_pipeline_meets_is_refused_with_the_best_there_is():
    one = router("auto", alone(server("a", step_s=0.01, per_sequence_s=0.01, prefill_s=1e-3, kv_tokens=300)))
    late = one.refuses(request(prompt=100, ttft_goal_s=0.05), 0.0)
    assert str(late) == "the first token within 50ms, but even an idle pipeline needs 100ms"
    slow = one.refuses(request(prompt=100, tpot_goal_s=0.015), 0.0)
    assert (slow.token, slow.data["goal"], slow.data["best"]) == ("goal-out-of-reach", "each token", "20ms")
    assert one.refuses(request(prompt=100, ttft_goal_s=0.1, tpot_goal_s=0.02), 0.0) is None
    assert one.refuses(request(prompt=900, ttft_goal_s=0.05), 0.0).token == "request-too-long"


def test_a_goal_that_waiting_has_put_out_of_reach_is_told_from_one_that_always_was():
    one = router("auto", alone(server("a", prefill_s=1e-3)))
    late = one.refuses(request(prompt=100, ttft_goal_s=0.05, waited_s=0.1), 0.0)
    assert str(late) == (
        "the first token within 150ms, but it has waited 100ms, and even an idle pipeline needs 100ms"
    )
    never = one.refuses(request(prompt=100, ttft_goal_s=0.03, waited_s=0.05), 0.0)
    assert str(never) == "the first token within 80ms, but even an idle pipeline needs 100ms"


def test_two_goals_that_only_different_pipelines_meet_are_out_of_reach_together():
    soon, quick = server("soon", prefill_s=1e-4, step_s=0.1), server("quick", prefill_s=1e-2, step_s=0.01)
    one = router("auto", alone(soon, quick))
    reason = one.refuses(request(prompt=100, ttft_goal_s=0.1, tpot_goal_s=0.05), 0.0)
    assert (reason.data["goal"], reason.data["best"]) == ("each token", "101ms")
    assert one.refuses(request(prompt=100, ttft_goal_s=-0.5), 0.0).data["wanted"] == "0s"


def test_what_is_cached_brings_a_goal_within_reach():
    one = router("auto", alone(server("a", prefill_s=1e-2)))
    asked = request(prompt=64, blocks=(1, 2, 3, 4), ttft_goal_s=0.1)
    assert one.refuses(asked, 0.0).token == "goal-out-of-reach"
    one.route(request("before", prompt=64, blocks=(1, 2, 3, 4)), 0.0)
    assert one.refuses(asked, 0.0) is None
    one.release("before", 10.0)
    assert math.isclose(one.route(asked, 10.0).ttft_s, 1e-2)
