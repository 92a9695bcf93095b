from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serving.planning.allocate import greedy
from strata.serving.planning.allocation import score
from strata.serving.planning.dynamic import least_latency, most_throughput, quickest_from
from strata.serving.planning.split import bottleneck_s, least_bottleneck, stages_s
from tests.serving.planning.pools import legal_splits, node, pool, random_pool
from tests.support.laws import examples


@given(st.integers(0, 10_000), st.booleans())
@examples(40)
def test_the_quickest_pipeline_of_an_order_is_found(seed, equal):
    one = random_pool(seed, num_nodes=5, layers=7, room=(0.2, 1.2), equal=equal)
    best = float("inf")
    for size in range(5):
        for rest in combinations(range(1, 5), size):
            members = [0, *rest]
            for counts in legal_splits(one, members):
                best = min(best, sum(stages_s(one, members, counts)) + one.cycle_s(members))
    found, members, counts = quickest_from(one, (0, 1, 2, 3, 4))
    assert found == pytest.approx(best)
    if members:
        assert sum(stages_s(one, members, counts)) + one.cycle_s(members) == pytest.approx(found)


def test_latency_fills_the_fastest_node_and_throughput_balances():
    two = pool(node("fast", 1e-3, room=6), node("slow", 3e-3, room=6), hop_s=0.0)
    assert sorted(least_latency(two)[0]) == [("fast", 0, 6), ("slow", 6, 8)]
    assert sorted(stage.end - stage.first for stage in most_throughput(two)[0]) == [2, 6]
    even = pool(node("fast", 1e-3, room=7), node("slow", 2e-3, room=7), hop_s=0.0)
    assert [stage.end - stage.first for stage in sorted(least_latency(even)[0])] == [7, 1]
    assert [stage.end - stage.first for stage in sorted(most_throughput(even)[0])] == [5, 3]


@given(st.integers(0, 10_000))
@examples(25)
def test_no_cuts_of_the_same_order_serve_more(seed):
    one = random_pool(seed, num_nodes=6, layers=9, room=(0.2, 1.2))
    fills = [one.nodes[i].capacity.middle * one.layer_s[i] for i in range(6)]
    order = sorted(range(6), key=lambda i: (one.regions[i], -fills[i], i))

    def most(left: list[int]) -> float:
        """The best over all first runs, an idle first node among them."""
        best = most(left[1:]) if left else 0.0
        for end in range(1, len(left) + 1):
            counts = least_bottleneck(one, left[:end])
            if counts:
                best = max(best, one.batch / bottleneck_s(one, left[:end], counts) + most(left[end:]))
        return best

    assert score(one, most_throughput(one)).tokens_per_s == pytest.approx(most(order))


def test_greedy_closes_a_pipeline_with_the_smallest_node_that_completes_it():
    one = pool(node("a", 1e-3, room=6), node("b", 2e-3, room=6), node("c", 3e-3, room=2), node("d", 4e-3, room=2))
    plans = greedy(one)
    assert [[stage.node_id for stage in stages] for stages in plans] == [["a", "c"], ["b", "d"]]
