"""Laws of all-reduces between domains, and DiLoCo's arithmetic."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.simulate import collective
from strata.simulate.collective import best_all_reduce, best_ring, diloco_s, eta
from tests.support.laws import examples

SEEDS = st.integers(0, 2**32 - 1)
LINK = {"bandwidth_bytes_per_s": 2.0, "latency_s": 0.5}


def links(seed, members):
    rng = np.random.default_rng(seed)
    return rng.uniform(0.2, 2, (members, members)), rng.uniform(0, 1, (members, members))


def uniform(members):
    return np.full((members, members), 2.0), np.full((members, members), 0.5)


def test_a_ring_takes_two_rounds_of_all_others():
    assert collective.ring_s(12.0, members=4, **LINK) == 2 * 3 / 4 * 12 / 2 + 2 * 3 * 0.5


@given(st.floats(0, 1e9), st.integers(1, 16), st.floats(1e9, 1e12), st.floats(0, 1e-3))
def test_a_tensor_parallel_sum_is_a_ring_or_one_exchange_whichever_is_faster(size, ranks, bandwidth, latency):
    link = {"bandwidth_bytes_per_s": bandwidth, "latency_s": latency}
    found = collective.tensor_parallel_s(size, ranks=ranks, **link)
    ring, exchange = collective.ring_s(size, members=ranks, **link), (ranks - 1) * size / bandwidth + latency
    assert found == (min(ring, exchange) if ranks > 1 else 0.0)
    assert found <= collective.tensor_parallel_s(2 * size, ranks=ranks, **link)


def test_one_domain_has_nothing_to_sum():
    alone = best_all_reduce(9.0, np.zeros((1, 1)), np.zeros((1, 1)))
    assert (alone.algorithm, alone.time_s, alone.bytes_sent.sum()) == ("none", 0.0, 0.0)


def test_independent_equal_links_are_best_used_directly():
    found = best_all_reduce(12.0, *uniform(4))
    assert found.algorithm == "direct"
    assert found.time_s == pytest.approx(2 * (12 / (4 * 2.0) + 0.5))
    assert found.bytes_sent.sum() == pytest.approx(2 * 3 * 12)


def test_a_missing_link_leads_to_the_hub_that_avoids_it():
    bandwidth, latency = uniform(3)
    bandwidth[0, 1] = bandwidth[1, 0] = 0.0
    found = best_all_reduce(12.0, bandwidth, latency)
    assert (found.algorithm, found.time_s) == ("star", 2 * (12 / 2 + 0.5))
    assert found.bytes_sent.tolist() == [[0, 0, 12], [0, 0, 12], [12, 12, 0]]


def test_without_any_link_the_time_is_infinite():
    assert best_all_reduce(12.0, np.zeros((2, 2)), np.zeros((2, 2))).time_s == np.inf


def test_one_way_links_make_a_ring_the_only_algorithm():
    bandwidth = np.zeros((3, 3))
    bandwidth[[0, 2, 1], [2, 1, 0]] = 2.0
    found = best_all_reduce(12.0, bandwidth, np.zeros((3, 3)))
    assert (found.algorithm, found.time_s) == ("ring", 2 * 2 / 3 * 12 / 2)
    assert set(zip(*np.nonzero(found.bytes_sent), strict=True)) == {(0, 2), (2, 1), (1, 0)}


@given(seed=SEEDS, members=st.integers(2, 6))
@examples(40)
def test_the_best_ring_is_the_best_of_all_orders(seed, members):
    bandwidth, latency = links(seed, members)
    every = []
    for order in permutations(range(members)):
        after = np.roll(order, -1)
        slowest, longest = bandwidth[order, after].min(), latency[order, after].max()
        every.append(collective.ring_s(8.0, members=members, bandwidth_bytes_per_s=slowest, latency_s=longest))
    assert best_ring(8.0, 1 / bandwidth, latency)[1] == pytest.approx(min(every))


def test_a_large_ring_finds_a_hidden_fast_one():
    rng = np.random.default_rng(0)
    order = rng.permutation(12)
    bandwidth = np.full((12, 12), 0.1)
    bandwidth[order, np.roll(order, -1)] = 1.0
    found, time_s = best_ring(12.0, 1 / bandwidth, np.zeros((12, 12)))
    assert sorted(found) == list(range(12))
    assert time_s == pytest.approx(2 * 11 * 1.0)


@given(seed=SEEDS, members=st.integers(2, 6), factor=st.floats(1, 4))
@examples(40)
def test_never_faster_with_less_bandwidth_or_more_latency(seed, members, factor):
    bandwidth, latency = links(seed, members)
    base = best_all_reduce(8.0, bandwidth, latency).time_s
    rng = np.random.default_rng(seed)
    worse = rng.uniform(1, factor, bandwidth.shape)
    assert best_all_reduce(8.0, bandwidth / worse, latency).time_s >= base * (1 - 1e-12)
    assert best_all_reduce(8.0, bandwidth, latency * worse).time_s >= base * (1 - 1e-12)


@given(seed=SEEDS, members=st.integers(2, 6))
@examples(40)
def test_the_time_covers_the_bytes_on_every_link(seed, members):
    bandwidth, latency = links(seed, members)
    found = best_all_reduce(8.0, bandwidth, latency)
    assert (found.bytes_sent / bandwidth <= found.time_s * (1 + 1e-12)).all()
    assert found.bytes_sent.sum() >= 2 * (members - 1) * 8.0 * (1 - 1e-12)  # no sum moves less
    assert not np.diag(found.bytes_sent).any()


def test_the_token_penalty_is_the_declared_table():
    assert [eta(h) for h in (1, 8, 32, 128, 500)] == pytest.approx([1, 1.005, 1.02, 1.06, 1.10])
    assert eta(64) == pytest.approx(1.04)  # halfway between 32 and 128 in log2
    assert eta(1000) > eta(500)


def test_diloco_waits_once_in_h_steps_for_what_it_cannot_hide():
    assert diloco_s(2.0, 50.0, local_steps=1) == 52.0
    assert diloco_s(2.0, 64.0, local_steps=32) == pytest.approx(2 * 1.02 + 64 / 32)


def test_sites_that_share_an_uplink_cannot_use_all_their_links_at_once():
    """The review's case: eight sites joined by 50 Gbps links sum 141 GB in 5.65 s only if each sends 350 Gbps."""
    size, speed = 141.25e9, 50e9 / 8
    bandwidth, latency = np.full((8, 8), speed), np.zeros((8, 8))
    free = best_all_reduce(size, bandwidth, latency)
    assert (free.algorithm, free.time_s) == ("direct", pytest.approx(5.65))
    bound = best_all_reduce(size, bandwidth, latency, np.full(8, speed))
    assert bound.time_s == pytest.approx(39.55)


def test_the_hub_of_a_star_shares_its_uplink_with_all_others():
    latency = np.full((3, 3), 1.0)
    bandwidth = np.array([[0, 10, 10], [10, 0, 0], [10, 0, 0]], dtype=float)
    free = best_all_reduce(10.0, bandwidth, latency)
    bound = best_all_reduce(10.0, bandwidth, latency, np.array([10.0, 10.0, 10.0]))
    assert (free.algorithm, free.time_s) == ("star", pytest.approx(4.0))
    assert (bound.algorithm, bound.time_s) == ("star", pytest.approx(6.0))
