from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import UsageError
from strata.simulate.astra.discover import AstraBackend
from strata.simulate.compat.closed_forms import alone_ns
from strata.simulate.compat.hierarchy import chunks, collective_ns
from strata.simulate.compat.network import Dimension, Topology
from strata.simulate.compat.system import Algorithm, Collective, System

MIB = 2**20
AR, AG, RS, A2A = Collective
RING, DIRECT, HALVING_DOUBLING = Algorithm


def dimension(topology, npus=8, *, backend="unaware", gib_per_s=50.0, latency_ns=500.0):
    return Dimension(Topology(topology), npus, gib_per_s, latency_ns, AstraBackend(backend))


def took(collective, algorithm, size_mib, *dimensions, **system):
    algorithms = algorithm if isinstance(algorithm, tuple) else (algorithm,) * len(dimensions)
    return collective_ns(
        collective, algorithms, size_bytes=int(size_mib * MIB), dimensions=dimensions, system=System(**system)
    )


@pytest.mark.parametrize(
    ("collective", "algorithm", "topology", "backend", "expected_ns"),
    [
        (AR, RING, "Ring", "aware", 9_197_541),
        (AR, RING, "Ring", "unaware", 9_197_541),
        (AR, RING, "Switch", "aware", 17_954_541),
        (AR, RING, "Switch", "unaware", 9_204_541),
        (AR, HALVING_DOUBLING, "Switch", "aware", 17_694_812),
        (AR, HALVING_DOUBLING, "Switch", "unaware", 8_944_812),
        (AR, DIRECT, "FullyConnected", "aware", 1_313_943),
        (A2A, DIRECT, "Switch", "aware", 5_001_020),
        (A2A, DIRECT, "Switch", "unaware", 626_020),
    ],
)
def test_a_collective_of_256_mib_on_8_takes_what_astra_sim_reported(
    collective, algorithm, topology, backend, expected_ns
):
    assert took(collective, algorithm, 256, dimension(topology, backend=backend)) == expected_ns


def test_a_gigabyte_per_second_is_2_to_the_30():
    assert dimension("FullyConnected", gib_per_s=1, latency_ns=0).send_ns(2**30) == pytest.approx(10**9, abs=1)


@pytest.mark.parametrize(("collective", "factor"), [(AR, 2), (AG, 1), (RS, 1)])
def test_a_direct_exchange_on_a_ring_waits_for_the_other_side(collective, factor):
    ring = dimension("Ring", latency_ns=10**6)
    assert took(collective, DIRECT, 1, ring) // (4 * 10**6) == factor


def test_what_a_ring_reduces_first_it_gathers_after():
    ring = dimension("Ring", latency_ns=0)
    whole, scattered, gathered = took(AR, RING, 8, ring), took(RS, RING, 8, ring), took(AG, RING, 1, ring)
    assert whole == scattered + gathered - System().endpoint_delay_ns


def test_odd_sizes_come_back_doubled_from_the_floor_they_reached():
    # 4 ranks, 27 bytes: 13, 6, then 3 doubled: 6, 12.
    switch = dimension("Switch", 4, gib_per_s=1e9 / 2**30, latency_ns=0)
    found = alone_ns(AR, HALVING_DOUBLING, size_bytes=27, dimension=switch, system=System())
    assert found == 13 + 6 + 6 + 12 + 5 * 10


def test_a_ring_exchange_has_idle_links_where_latency_rules():
    small = dimension("Ring", 64, backend="aware", latency_ns=10**9)
    assert took(A2A, DIRECT, 1, small) >= 32 * 10**9
    busy = dimension("Ring", 8, backend="aware")
    message = 32 * MIB
    assert took(A2A, DIRECT, 256, busy) == 10 * busy.busy_ns(message) + 2 * 500 + 20


def test_the_exchange_of_a_huge_ring_is_bound_by_its_links():
    ring = dimension("Ring", 4096, backend="aware")
    assert took(A2A, DIRECT, 4096, ring) == 2048 * 2049 // 2 * ring.busy_ns(MIB) + 2 * 500 + 20


def test_no_closed_form_is_said_not_guessed():
    with pytest.raises(UsageError, match="no closed form"):
        took(AR, HALVING_DOUBLING, 1, dimension("Switch", 6))
    with pytest.raises(UsageError, match="several chunks at once"):
        took(AR, RING, 1, dimension("Switch", backend="aware"), splits=4, active_chunks=2)


def test_chunks_at_once_share_aware_links_and_multiply_unaware_ones():
    wan = {"gib_per_s": 0.625, "latency_ns": 30e6}
    chunked = {"splits": 16, "active_chunks": 16}
    assert took(AR, RING, 256, dimension("Ring", 3, backend="aware", **wan), **chunked) == 563_333_268
    assert took(AR, RING, 256, dimension("Ring", 3, **wan), **chunked) == 153_354_348


def test_chunks_one_after_another_cost_the_same_on_both_backends():
    sizes = [took(AR, RING, 16, dimension("Ring", backend=backend), splits=4) for backend in ("aware", "unaware")]
    assert sizes == [4 * took(AR, RING, 4, dimension("Ring"))] * 2


def test_upstreams_own_h100_example_is_met():
    h100 = dimension("Switch", gib_per_s=400, latency_ns=936.25)
    assert took(AR, RING, 1, h100, local_memory_gb_per_s=3350, splits=4, active_chunks=2) == 55_222


def test_a_chunk_is_at_least_a_byte_a_rank():
    assert chunks(AR, 100, 64, System(splits=4)) == (64, 4)
    assert chunks(AG, 100, 64, System(splits=4)) == (25, 4)
    assert chunks(AR, 1001, 8, System(splits=10)) == (100, 11)


LAN, WAN = {"gib_per_s": 50, "latency_ns": 500}, {"gib_per_s": 0.375, "latency_ns": 50e6}


@pytest.mark.parametrize(
    ("intra", "inter", "algorithms", "size_mib", "expected_ns"),
    [
        ("Switch", "Ring", (RING, RING), 256, 320_357_645),
        ("FullyConnected", "Ring", (DIRECT, RING), 16, 207_030_196),
        ("Switch", "FullyConnected", (RING, DIRECT), 256, 164_781_103),
        ("Switch", "Switch", (HALVING_DOUBLING, RING), 256, 520_097_916),
    ],
)
def test_two_dimensions_scatter_reduce_and_gather(intra, inter, algorithms, size_mib, expected_ns):
    dims = dimension(intra, 8, **LAN), dimension(inter, 3, **WAN)
    assert took(AR, algorithms, size_mib, *dims) == expected_ns


def test_baseline_reduces_everything_in_every_dimension():
    dims = dimension("Switch", 8, **LAN), dimension("Ring", 3, **WAN)
    assert took(AR, RING, 256, *dims, is_bandwidth_aware=False) == 1_098_429_019


@pytest.mark.parametrize(("active", "queues", "expected_ns"), [(1, 1, 913_464_942), (4, 2, 457_888_342)])
def test_chunks_overlap_between_dimensions_and_wait_within_one(active, queues, expected_ns):
    dims = dimension("Switch", 8, **LAN), dimension("Ring", 3, **WAN)
    assert took(AR, RING, 256, *dims, splits=4, active_chunks=active, queues=queues) == expected_ns


def test_gathering_visits_the_slow_dimension_with_little_and_the_fast_with_much():
    dims = dimension("Switch", 8, **LAN), dimension("Ring", 3, **WAN)
    apart = took(AG, RING, 16, dims[1]) + took(AG, RING, 48, dims[0])
    assert took(AG, RING, 16, *dims) == apart


@given(
    st.sampled_from([AR, AG, RS, A2A]), st.sampled_from([RING, DIRECT]), st.sampled_from(list(Topology)),
    st.sampled_from((AstraBackend.AWARE, AstraBackend.UNAWARE)), st.integers(2, 24),
    st.integers(24, 10**9), st.integers(0, 10**8),
)  # fmt: skip
def test_more_bytes_or_latency_never_take_less(
    collective, algorithm, topology, backend, n, size_bytes, latency_ns
):
    def alone(size, latency):
        here = Dimension(topology, n, 1.0, latency, backend)
        return alone_ns(collective, algorithm, size_bytes=size, dimension=here, system=System())

    found = alone(size_bytes, latency_ns)
    assert found <= alone(size_bytes + n, latency_ns)
    assert found <= alone(size_bytes, latency_ns + 1000)


@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from([1, 2, 3, 4]))
def test_chunks_never_beat_the_bottleneck_nor_lose_to_a_queue_of_one(splits, active, queues):
    dims = dimension("Switch", 8, **LAN), dimension("Ring", 3, **WAN)
    found = took(AR, RING, 48, *dims, splits=splits, active_chunks=active, queues=queues)
    assert found <= took(AR, RING, 48, *dims, splits=splits)
    assert found >= took(AR, RING, 48 / splits, *dims) * (splits == 1)
