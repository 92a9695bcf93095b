import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.fleet import topology
from strata.fleet.topology import Subset, best_subset
from tests.support.laws import examples

FAST, SLOW = 300e9, 25e9


def islands(num_devices, size):
    """Devices in islands of `size`: fast inside, slow between."""
    island = np.arange(num_devices) // size
    return np.where(island[:, None] == island, FAST, SLOW)


@st.composite
def nodes(draw):
    n = draw(st.integers(2, 8))
    levels = draw(st.integers(1, 6))
    bandwidth = np.zeros((n, n))
    for i, j in combinations(range(n), 2):
        bandwidth[i, j] = bandwidth[j, i] = draw(st.integers(0, levels))
    free = draw(st.lists(st.integers(0, n - 1), unique=True, min_size=2))
    return bandwidth, free, draw(st.integers(2, len(free)))


def by_brute_force(bandwidth, free, count):
    def value(devices):
        pairs = [bandwidth[i, j] for i, j in combinations(devices, 2)]
        return min(pairs), sum(pairs), tuple(-device for device in devices)

    best = max(combinations(sorted(free), count), key=value)
    return Subset(best, value(best)[0])


@given(nodes())
def test_enumeration_finds_what_brute_force_finds(node):
    assert best_subset(*node) == by_brute_force(*node)


@given(nodes())
def test_the_search_for_large_nodes_finds_what_brute_force_finds(node):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topology, "_ENUMERABLE", 0)
        assert best_subset(*node) == by_brute_force(*node)


def test_four_devices_stay_on_one_island():
    subset = best_subset(islands(8, 4), [1, 2, 3, 4, 5, 6, 7], 4)
    assert subset == Subset((4, 5, 6, 7), FAST)


def test_the_worst_pair_counts_before_the_sum():
    bandwidth = np.full((4, 4), 2.0)
    bandwidth[0, 1] = bandwidth[1, 0] = bandwidth[0, 2] = bandwidth[2, 0] = 100.0
    bandwidth[1, 2] = bandwidth[2, 1] = 1.0
    assert best_subset(bandwidth, range(4), 3).devices == (0, 1, 3)


def test_equal_devices_are_taken_from_the_lowest_index():
    assert best_subset(np.ones((16, 16)), range(3, 16), 5).devices == (3, 4, 5, 6, 7)


@pytest.mark.parametrize(("size", "count"), [(8, 8), (16, 12), (4, 24), (8, 24)])
def test_64_devices_in_shuffled_islands_are_solved_exactly(size, count):
    order = np.random.default_rng(0).permutation(64)
    shuffled = islands(64, size)[np.ix_(order, order)]
    subset = best_subset(shuffled, range(64), count)
    total = sum(shuffled[pair] for pair in combinations(subset.devices, 2))
    assert total == islands(64, size)[:count, :count][np.triu_indices(count, 1)].sum()


@examples(5)
@given(st.integers(0, 2**32 - 1))
def test_a_search_cut_short_still_answers(seed):
    upper = np.triu(np.random.default_rng(seed).integers(1, 10**6, (40, 40)), 1).astype(float)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topology, "_MAX_VISITS", 5)
        subset = best_subset(upper + upper.T, range(40), 12)
    assert len(set(subset.devices)) == 12
    pairs = [(upper + upper.T)[pair] for pair in combinations(subset.devices, 2)]
    assert subset.worst_pair_bandwidth == min(pairs)


def test_more_devices_than_are_free_is_no_subset():
    assert best_subset(np.ones((4, 4)), [0, 2], 3) is None


def test_one_device_has_no_pair():
    assert best_subset(np.ones((4, 4)), [3, 2], 1) == Subset((2,), math.inf)
