from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.evaluation.published_benchmarks.calibrated import (
    CALIBRATION,
    ProfiledStep,
    SoftwareConstants,
    predicted_s,
    shared_ring_s,
    shared_send_s,
)
from strata.fleet.fleet import BandwidthCurve

NOTHING = SoftwareConstants(exchange_overhead_s=0.0, handover_s_per_byte=0.0)
FLAT = BandwidthCurve((2.0,))  # 2 GB/s whatever the size


def step(forward, backward, send=(), *, microbatches=1, message_bytes=0.0, after_s=0.0) -> ProfiledStep:
    """One pipeline, or several where `forward` is a list of lists."""
    forward_s, backward_s = (np.atleast_2d(np.array(x, dtype=float)) for x in (forward, backward))
    chains, stages = forward_s.shape
    send_s = np.broadcast_to(np.array(send, dtype=float), (chains, stages - 1))
    sizes = np.full(stages - 1, message_bytes)
    return ProfiledStep(forward_s, backward_s, send_s, send_s, sizes, microbatches, after_s)


def test_one_stage_of_one_copy_is_its_microbatches_and_what_follows_and_nothing_else():
    work = step([1.0], [2.0], microbatches=8, after_s=0.5)
    assert predicted_s(work, SoftwareConstants(0.25, 1.0)) == pytest.approx(8 * 3.0 + 0.5)


def test_stages_or_copies_that_end_a_step_together_pay_the_overhead_once():
    several = dataclasses.replace(step([1.0], [2.0], microbatches=8, after_s=0.5), num_copies=2)
    assert predicted_s(several, SoftwareConstants(0.25, 0.0)) == pytest.approx(8 * 3.0 + 0.5 + 0.25)
    piped = step([1.0, 1.0], [2.0, 2.0], [0.0], microbatches=1)
    assert predicted_s(piped, SoftwareConstants(0.25, 0.0)) == pytest.approx(6.0 + 0.25)


@given(st.floats(1e-6, 10), st.floats(1e-6, 10), st.integers(1, 64), st.floats(0, 1), st.floats(1, 10))
def test_a_step_without_messages_grows_with_its_work_alone_however_small(
    forward, backward, count, after_s, factor
):
    def seconds(by: float) -> float:
        return predicted_s(step([by * forward], [by * backward], microbatches=count, after_s=by * after_s))

    assert seconds(1) == pytest.approx(count * (forward + backward) + after_s)
    assert seconds(factor) == pytest.approx(factor * seconds(1))


def test_a_middle_stage_pays_three_messages_a_microbatch():
    work = {m: step([1, 1, 1], [2, 2, 2], [0.1, 0.1], microbatches=m) for m in (40, 41)}
    assert predicted_s(work[41], NOTHING) - predicted_s(work[40], NOTHING) == pytest.approx(3.0 + 3 * 0.1)


def test_a_last_stage_that_is_the_slowest_pays_two_messages_a_microbatch():
    work = {m: step([1, 4], [1, 4], [0.1], microbatches=m) for m in (40, 41)}
    assert predicted_s(work[41], NOTHING) - predicted_s(work[40], NOTHING) == pytest.approx(8.0 + 2 * 0.1)


def test_a_first_stage_that_is_the_slowest_pays_one_message_a_microbatch():
    work = {m: step([4, 1], [4, 1], [0.1], microbatches=m) for m in (40, 41)}
    assert predicted_s(work[41], NOTHING) - predicted_s(work[40], NOTHING) == pytest.approx(8.0 + 0.1)


def test_the_handover_counts_as_much_as_network_time():
    by_network = step([1, 1], [2, 2], [0.1], microbatches=5)
    by_handover = step([1, 1], [2, 2], [0.0], microbatches=5, message_bytes=1e9)
    assert predicted_s(by_handover, SoftwareConstants(0.0, 0.1e-9)) == pytest.approx(
        predicted_s(by_network, NOTHING)
    )


def test_the_slowest_pipeline_sets_the_step():
    both = step([[1, 1], [3, 1]], [[1, 1], [3, 1]], [0.1], microbatches=6)
    assert predicted_s(both, NOTHING) == predicted_s(step([3, 1], [3, 1], [0.1], microbatches=6), NOTHING)


times = st.lists(st.floats(0.1, 10), min_size=3, max_size=3)


@given(times, times, st.floats(0, 1), st.floats(0, 1), st.integers(1, 12))
def test_a_slower_network_never_shortens_a_step(forward, backward, send, more, microbatches):
    one = step(forward, backward, [send, send], microbatches=microbatches)
    slower = step(forward, backward, [send, send + more], microbatches=microbatches)
    assert predicted_s(one, NOTHING) <= predicted_s(slower, NOTHING) * (1 + 1e-12)


@given(times, times, st.floats(0, 1), st.integers(1, 12))
def test_a_step_is_never_shorter_than_its_busiest_stage(forward, backward, send, microbatches):
    work = step(forward, backward, [send, send], microbatches=microbatches)
    busiest = max(f + b for f, b in zip(forward, backward, strict=True))
    assert predicted_s(work, NOTHING) >= microbatches * busiest * (1 - 1e-12)


def test_rings_of_one_node_share_its_interface():
    alone = shared_ring_s(FLAT, 1e9, 1, 4)
    assert alone == pytest.approx(2 * 3 / 4 * 1e9 / 2e9)
    assert shared_ring_s(FLAT, 8e9, 8, 4) == pytest.approx(8 * alone)


def test_interfaces_of_their_own_make_rings_independent():
    per_rank, aggregate = BandwidthCurve((0.1, 2.0)), BandwidthCurve((0.4, 8.0))
    assert shared_ring_s(aggregate, 4e9, 4, 16) == pytest.approx(shared_ring_s(per_rank, 1e9, 1, 16))


def test_nothing_is_sent_to_nobody():
    assert shared_ring_s(FLAT, 1e9, 4, 1) == 0.0
    assert shared_send_s(FLAT, 0.0, 4) == 0.0


def test_every_constant_has_a_unit_and_a_physical_value():
    for constant in dataclasses.fields(CALIBRATION):
        assert constant.metadata["unit"] in ("s", "s/B")
        assert getattr(CALIBRATION, constant.name) > 0
