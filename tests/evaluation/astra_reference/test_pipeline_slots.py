from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import UsageError
from strata.evaluation.astra_reference.pipeline_slots import (
    pipeline_ns,
    warmups,
)
from strata.simulate.astra.discover import AstraBackend
from strata.simulate.compat.groups import path
from strata.simulate.compat.network import Dimension, Topology
from tests.evaluation.astra_reference.steps import astra_compatible_step

MS = 10**6


def pp4x8(order, topology, backend, *, gib_per_s, latency_ns, size_bytes):
    """The pipeline of astra_reference.md: 4 stages, 8 microbatches, 10 ms forward and 20 ms backward."""
    dims = (Dimension(Topology(topology), 4, gib_per_s, latency_ns, AstraBackend(backend)),)
    return pipeline_ns(
        [10_000] * 4, [20_000] * 4, lambda source, dest: path(source, dest, size_bytes, dims),
        microbatches=8, warmup=warmups(order, 4, 8),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("order", "topology", "backend", "link", "expected_ns"),
    [
        ("gpipe", "Ring", "aware", "lan", 333_753_000),
        ("gpipe", "FullyConnected", "unaware", "lan", 333_753_000),
        ("gpipe", "Switch", "aware", "lan", 337_506_000),
        ("gpipe", "Switch", "unaware", "lan", 333_756_000),
        ("gpipe", "Ring", "unaware", "wan", 1_720_000_000),
        ("gpipe", "Switch", "aware", "wan", 3_320_000_000),
        ("gpipe", "Switch", "unaware", "wan", 2_320_000_000),
        ("1f1b", "Ring", "aware", "wan", 1_780_000_000),
        ("1f1b", "Switch", "aware", "lan", 350_016_000),
        ("1f1b", "Switch", "aware", "wan", 3_310_000_000),
        ("1f1b", "Switch", "unaware", "wan", 2_350_000_000),
    ],
)
def test_a_pipeline_takes_what_astra_sim_reported(order, topology, backend, link, expected_ns):
    gib_per_s, latency_ns = {"lan": (50, 500), "wan": (0.625, 30 * MS)}[link]
    found = pp4x8(order, topology, backend, gib_per_s=gib_per_s, latency_ns=latency_ns, size_bytes=2**25)
    assert found == expected_ns


def step(**changes):
    case = {
        "forward_s": [0.01] * 4,
        "backward_s": [0.02] * 4,
        "message_bytes": [2**20] * 3,
        "bandwidth_bytes_per_s": [0.625 * 2**30] * 3,
        "latency_s": [0.03] * 3,
        "microbatches": 8,
    }
    return astra_compatible_step(**(case | changes))


def test_the_step_in_seconds_is_the_one_astra_sim_reported():
    assert step(order="gpipe") == pytest.approx(0.751250000, abs=1e-12)
    assert step(order="1f1b") == pytest.approx(0.859687500, abs=1e-12)
    assert step(order=[3, 2, 1, 0]) == step(order="1f1b")


def test_one_stage_only_computes():
    nothing = {"message_bytes": [], "bandwidth_bytes_per_s": [], "latency_s": []}
    assert step(forward_s=[0.01], backward_s=[0.02], **nothing) == pytest.approx(8 * 0.03)


def test_sends_of_a_rank_follow_one_another_latency_included():
    # Two stages, two forwards of 1 us: the second message leaves when the first has arrived.
    found = step(
        forward_s=[1e-6] * 2, backward_s=[1e-6] * 2, message_bytes=[1], bandwidth_bytes_per_s=[1e9],
        latency_s=[0.01], microbatches=2, order="gpipe",
    )  # fmt: skip
    assert found == pytest.approx(4 * 0.01, rel=1e-3)


def test_a_latency_is_not_cut_by_float_noise():
    # 0.0011 * 1e9 is 1099999.9999999998 in binary floating point, or near it.
    found = step(
        forward_s=[0.001] * 2, backward_s=[0.001] * 2, message_bytes=[0], bandwidth_bytes_per_s=[1e9],
        latency_s=[0.0011], microbatches=1,
    )  # fmt: skip
    assert round(found * 1e9) == 4_000_000 + 2 * 1_100_000


@pytest.mark.parametrize(("compute_s", "expected_ns"), [(1.4e-6, 1000), (1.6e-6, 2000), (1e-8, 1)])
def test_computes_are_whole_microseconds_and_never_nothing(compute_s, expected_ns):
    nothing = {"message_bytes": [], "bandwidth_bytes_per_s": [], "latency_s": []}
    found = step(forward_s=[compute_s], backward_s=[compute_s], microbatches=1, **nothing)
    assert round(found * 1e9) == 2 * expected_ns


def test_an_order_that_waits_for_itself_is_refused():
    with pytest.raises(UsageError, match="wait for each other"):
        step(order=[0, 2, 1, 0])
    with pytest.raises(UsageError, match="one warm-up for each of 4 stages"):
        step(order=[3, 2])
    with pytest.raises(UsageError, match="zigzag"):
        step(order="zigzag")


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(1, 6), st.integers(0, 100))
def test_no_step_is_shorter_than_its_busiest_stage(forward_ms, microbatches, latency_ms):
    stages = len(forward_ms)
    found = step(
        forward_s=[f / 1e3 for f in forward_ms],
        backward_s=[f / 500 for f in forward_ms],
        message_bytes=[2**20] * (stages - 1),
        bandwidth_bytes_per_s=[1e9] * (stages - 1),
        latency_s=[latency_ms / 1e3] * (stages - 1),
        microbatches=microbatches,
    )
    assert found >= microbatches * max(forward_ms) * 3 / 1e3 - 1e-9
