"""What pipelines do with requests, against what can be computed by hand or is known of queues."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serving.layout import Line, StepCurve
from strata.serving.replay.fault_events import FaultEvent
from strata.workload.requests import Request
from tests.serving.replay.worlds import pipeline, ran, replay
from tests.support.laws import examples


def test_one_request_takes_its_prefill_and_then_a_step_a_token():
    run = ran([(0.0, 100, 11)], pipeline("a"), decode=Line(0.02), prefill=Line(0.1, 0.001))
    assert run.record.ttft_s[0] == pytest.approx(0.2)
    assert run.record.tpot_s[0] == pytest.approx(0.02)
    assert run.record.latency_s[0] == pytest.approx(0.2 + 10 * 0.02)


def test_a_pipeline_adds_its_stages_and_hops_the_closing_one_too():
    run = ran(
        [(0.0, 100, 11)],
        pipeline("a", "b", "c"),
        decode=Line(0.02),
        prefill=Line(0.0, 0.001),
        hop=Line(0.03, 1e-4),
    )
    assert run.record.ttft_s[0] == pytest.approx(3 * 0.1 + 2 * (0.03 + 100 * 1e-4) + 0.03 + 1e-4)
    assert run.record.tpot_s[0] == pytest.approx(3 * 0.02 + 3 * (0.03 + 1e-4))


def test_microbatches_fill_a_pipeline_so_that_the_slowest_stage_sets_the_pace():
    # Four sequences on two stages are two microbatches of two: each stage is busy twice a step.
    run = ran([(0.0, 1, 10_001)] * 4, pipeline("a", "b"), decode=Line(0.01, 0.005))
    assert run.record.tpot_s[0] == pytest.approx(2 * 0.01 + 4 * 0.005, rel=1e-3)


def test_hops_set_the_pace_where_they_are_longer_than_the_work():
    run = ran([(0.0, 1, 101)] * 2, pipeline("a", "b"), decode=Line(0.01), hop=Line(0.2))
    assert run.record.tpot_s[0] == pytest.approx(2 * 0.01 + 2 * 0.2)


def test_a_second_sequence_slows_the_first_from_its_first_token_on():
    # Alone a step takes 10 ms, together 20 ms: 50 tokens until 0.5 s, one and a half while the second's prompt
    # rides along with a step and its token comes with the next one's end, then the rest at half the pace.
    run = ran([(0.0, 1, 101), (0.5, 1, 1001)], pipeline("a"), decode=Line(0.0, 0.01))
    assert run.record.latency_s[0] == pytest.approx(0.515 + 48.5 * 0.02)


def test_prompts_are_read_one_after_the_other():
    run = ran([(0.0, 100, 1)] * 3, pipeline("a"), prefill=Line(0.0, 0.001))
    assert sorted(run.record.ttft_s) == pytest.approx([0.1, 0.2, 0.3])


def test_a_prompt_that_is_read_stretches_decode_steps_by_a_chunk():
    # Decode needs 10 ms a step, a chunk of 512 tokens 51.2 ms: while it reads, a step takes both.
    run = replay([(0.0, 1, 10_001), (1.0, 5120, 2)], pipeline("a"), decode=Line(0.01), prefill=Line(0.0, 1e-4))
    run.run()
    reading_s = 10 * (0.01 + 0.0512)
    assert run.record.ttft_s[0] == pytest.approx(reading_s + 0.01 / 2, rel=1e-3)
    assert run.record.latency_s[1] == pytest.approx(100.0 + 10 * 0.0512, rel=1e-3)


def test_decode_that_waits_for_hops_leaves_its_time_to_prefill():
    lines = {"decode": Line(0.01), "prefill": Line(0.0, 1e-4), "hop": Line(0.5)}
    run = ran([(0.0, 1, 101), (20.0, 5120, 2)], pipeline("a", "b"), **lines)
    assert run.record.latency_s[1] == pytest.approx(run.record.ttft_s[1] + 100 * 1.02)
    # The reading node decodes for 10 ms of each 1.02 s; two stages, hops and half a step come on top.
    assert run.record.ttft_s[0] == pytest.approx(0.512 / (1 - 0.01 / 1.02) + 0.512 + 1.0 + 0.005, rel=1e-3)


def test_a_slow_node_slows_what_it_does_from_then_on():
    slow = [FaultEvent("slow", "a", 0.5, 3.0)]
    run = ran([(0.0, 1, 101)], pipeline("a"), decode=Line(0.01), fault_events=slow)
    assert run.record.latency_s[0] == pytest.approx(0.5 + 50 * 0.03)


def test_a_slow_node_reads_the_rest_of_a_prompt_slowly():
    slow = [FaultEvent("slow", "a", 0.5, 3.0)]
    run = ran([(0.0, 1000, 1)], pipeline("a"), prefill=Line(0.0, 0.001), fault_events=slow)
    assert run.record.ttft_s[0] == pytest.approx(0.5 + 0.5 * 3)


def test_nodes_are_as_busy_as_their_work():
    run = ran([(0.0, 100, 101), (9.0, 1, 101)], pipeline("a"), decode=Line(0.01), prefill=Line(0.0, 0.001))
    assert run.service.machines["a"].busy_s == pytest.approx(0.1 + 1.0 + 0.001 + 1.0)


def exponential(rate, n, *, mean_tokens=1000, seed=1):
    """Poisson arrivals of exponential sizes; so many tokens that whole ones hardly matter."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(1 / rate, n))
    tokens = np.maximum(2, np.rint(rng.exponential(mean_tokens, n))).astype(int)
    return [Request(float(a), 1, int(t) + 1) for a, t in zip(at, tokens, strict=True)]


def test_one_slot_is_an_m_m_1_queue_and_follows_lindleys_recursion_request_by_request():
    load, requests = 0.7, exponential(0.7, 8_000)
    run = ran(requests, pipeline("a"), slots=1, decode=Line(0.001))
    waits, wait_s = [], 0.0
    for one, following in zip(requests, [*requests[1:], None], strict=True):
        waits.append(wait_s)
        if following:
            wait_s = max(0.0, wait_s + (one.output_tokens - 1) * 0.001 - (following.at_s - one.at_s))
    np.testing.assert_allclose(run.record.wait_s, waits, atol=1e-6)
    assert np.mean(waits) == pytest.approx(load / (1 - load), rel=0.15)


@pytest.mark.long("serves as many requests as a mean needs")
def test_c_slots_wait_as_erlang_says():
    slots, load = 4, 0.8
    run = ran(exponential(slots * load, 20_000), pipeline("a"), slots=slots, decode=Line(0.001))
    offered = slots * load
    term = offered**slots / math.factorial(slots) / (1 - load)
    waiting = term / (sum(offered**k / math.factorial(k) for k in range(slots)) + term)
    assert np.mean(run.record.wait_s) == pytest.approx(waiting / (slots * (1 - load)), rel=0.15)
    assert np.mean(np.array(run.record.wait_s) > 1e-9) == pytest.approx(waiting, rel=0.05)


@pytest.mark.parametrize("alike", [False, True], ids=["exponential", "all-alike"])
def test_a_shared_processor_takes_the_mean_time_that_no_distribution_changes(alike):
    load, requests = 0.6, exponential(0.6, 12_000)
    if alike:
        requests = [request._replace(output_tokens=1001) for request in requests]
    run = ran(requests, pipeline("a"), decode=Line(0.0, 0.001))
    assert np.mean(run.record.latency_s) == pytest.approx(1 / (1 - load), rel=0.1)


def test_littles_law_holds_exactly_over_a_whole_run():
    requests = exponential(3.0, 500)
    run = replay(requests, pipeline("a"), slots=4, decode=Line(0.0005, 0.0002))
    inside = last_s = 0.0
    while not run.is_over:
        present, before_s = len(run.waiting) + len(run._attempts), run.clock.now
        run.clock.step()
        inside += present * (run.clock.now - before_s)
        last_s = run.clock.now
    assert len(run.record) == 500
    assert inside / last_s == pytest.approx(500 / last_s * np.mean(run.record.latency_s))


traffic = st.lists(
    st.tuples(st.floats(0, 3), st.integers(1, 2000), st.integers(1, 60)), min_size=1, max_size=25
).map(sorted)


@examples(60)
@given(traffic, st.integers(1, 4), st.floats(0.1, 3), st.booleans())
def test_every_request_ends_once_whatever_befalls_the_nodes(requests, slots, at_s, is_slow):
    what = [FaultEvent("slow", "a", at_s, 2.5)] if is_slow else [
        FaultEvent("kill", "a", at_s), FaultEvent("join", "a", at_s + 1.0)
    ]  # fmt: skip
    how = {"slots": slots, "decode": Line(0.004, 0.001), "prefill": Line(0.01, 1e-4), "hop": Line(0.01)}
    run, again = (ran(requests, pipeline("a", "b"), pipeline("c"), fault_events=what, **how) for _ in range(2))
    assert len(run.record) == len(requests)
    assert sorted(run.record.at_s) == [at for at, _, _ in requests]
    assert set(run.record.outcome) == {0}
    assert run.record == again.record
    assert min(run.record.wait_s) >= 0
    assert all(wait <= ttft <= latency + 1e-9 for wait, ttft, latency in zip(
        run.record.wait_s, run.record.ttft_s, run.record.latency_s, strict=True
    ))  # fmt: skip
    assert not any(machine.heads or machine.paths for machine in run.service.machines.values())
    longest = max(map(len, (machine.reading for machine in run.service.machines.values())))
    assert longest == 0


def test_short_prompts_share_a_step_and_long_ones_take_several():
    # A step of prompts takes 10 ms besides its tokens, each 0.1 ms: ten of 50 tokens are one step of 60 ms in an
    # engine; here they end one after the other, and what is left has steps of its own.
    together = ran([(0.0, 50, 1)] * 10, pipeline("a"), prefill=Line(0.01, 1e-4))
    assert 0.01 + 500e-4 <= max(together.record.ttft_s) < 0.6 * (10 * 0.01 + 500e-4)
    long = ran([(0.0, 2048, 1)], pipeline("a"), prefill=Line(0.01, 1e-4))
    assert long.record.ttft_s[0] == pytest.approx(4 * 0.01 + 2048e-4)


def test_steps_get_longer_with_what_is_cached():
    # 10 ms and 10 us for each cached token: after a prompt of 100, the n-th step takes 11 ms and n times 10 us.
    curve = StepCurve((1.0, 512.0), (0.01, 0.01), 1e-5)
    run = ran([(0.0, 100, 1001)], pipeline("a"), decode=Line(1.0), curve=curve)
    assert run.record.latency_s[0] == pytest.approx(1000 * 0.011 + 1e-5 * 1000**2 / 2, rel=0.01)


def test_a_step_between_two_points_of_the_curve_lies_between_them():
    curve = StepCurve((1.0, 2.0, 4.0), (0.01, 0.02, 0.02), 0.0)
    run = ran([(0.0, 1, 10_001)] * 3, pipeline("a"), curve=curve)
    assert run.record.tpot_s[0] == pytest.approx(0.02, rel=1e-3)
    assert [curve.at(n, 0.0) for n in (0.5, 1.5, 3.0, 6.0)] == pytest.approx([0.005, 0.015, 0.02, 0.02])
