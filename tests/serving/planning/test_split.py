from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serving.planning.allocation import performance_of
from strata.serving.planning.order import best_ring
from strata.serving.planning.pool import LayerCapacity, NodePool, PoolNode
from strata.serving.planning.split import best_split, bottleneck_s, capacities, fill_equal, least_bottleneck
from tests.serving.planning.pools import legal_splits, node, pool, random_pool, with_memory
from tests.support.laws import examples


@st.composite
def ordered(draw):
    one = random_pool(
        draw(st.integers(0, 10_000)),
        num_nodes=draw(st.integers(1, 4)),
        layers=draw(st.integers(1, 9)),
        room=(0.1, 1.3),
        equal=draw(st.booleans()),
    )
    return one, list(range(len(one.nodes)))


@given(ordered())
@examples(150)
def test_the_split_has_the_least_bottleneck_of_all(case):
    one, members = case
    counts = least_bottleneck(one, members)
    every = legal_splits(one, members)
    if counts is None:
        assert not every
    else:
        assert counts in every
        assert bottleneck_s(one, members, counts) == pytest.approx(
            min(bottleneck_s(one, members, other) for other in every)
        )


def test_a_node_alone_keeps_room_for_embedding_and_head():
    assert least_bottleneck(pool(node("a", room=9, ends=1)), [0]) is None
    assert least_bottleneck(pool(node("a", room=10, ends=1)), [0]) == [8]


def test_the_head_counts_as_work_of_the_last_stage():
    two = pool(node("a"), node("b", head_s=4e-3))
    assert least_bottleneck(two, [0, 1]) == [6, 2]
    assert least_bottleneck(two, [1, 0]) == [4, 4]


def rate(one: NodePool, counts: list[int]) -> float:
    return performance_of(one, list(range(len(counts))), counts).tokens_per_s


def test_layers_leave_the_node_whose_memory_keeps_the_fewest_sequences():
    # The first node has the embedding, too: with an equal share of the layers it keeps ten sequences.
    three = pool(*(node(name, layers=12) for name in "abc"), hop_s=0.0, batch=40)
    one = with_memory(three, [5.4, 9.0, 9.0], ends=1.0)
    assert least_bottleneck(one, [0, 1, 2]) == [4, 4, 4]
    assert best_split(one, [0, 1, 2]) == [2, 5, 5]
    assert rate(one, [2, 5, 5]) == max(rate(one, counts) for counts in legal_splits(one, [0, 1, 2]))
    assert rate(one, [2, 5, 5]) > 5 * rate(one, [4, 4, 4])


def test_where_memory_keeps_all_stages_busy_the_least_bottleneck_stays():
    one = with_memory(pool(*(node(name, layers=12) for name in "abc"), hop_s=0.0), [40.0, 90.0, 90.0])
    assert best_split(one, [0, 1, 2]) == [4, 4, 4]


@given(ordered(), st.lists(st.floats(1.0, 12.0), min_size=4, max_size=4))
@examples(150)
def test_a_split_for_memory_is_legal_and_never_slower(case, usable):
    one, members = case
    one = with_memory(one, usable[: len(members)])
    counts, usual = best_split(one, members), least_bottleneck(one, members)
    if counts is None:
        assert usual is None
    else:
        assert counts in legal_splits(one, members)
        assert rate(one, counts) >= rate(one, usual)


@given(st.integers(0, 10_000), st.integers(5, 7))
@examples(20)
def test_the_ring_of_a_few_nodes_is_the_cheapest(seed, num_nodes):
    from itertools import permutations

    one = random_pool(seed, num_nodes=num_nodes, layers=8)
    ring = best_ring(one, list(range(num_nodes)))
    assert sorted(ring) == list(range(num_nodes))
    cheapest = min(one.cycle_s([0, *rest]) for rest in permutations(range(1, num_nodes)))
    assert one.cycle_s(ring) == pytest.approx(cheapest)


def test_a_long_ring_keeps_its_members_and_is_no_dearer():
    one = random_pool(3, num_nodes=14, layers=20)
    ring = best_ring(one, list(range(14)))
    assert sorted(ring) == list(range(14))
    assert one.cycle_s(ring) < one.cycle_s(list(range(14)))


def test_a_member_takes_fewer_layers_where_the_next_one_would_be_too_long_for_its_neighbour():
    """Filling every member to the brim leaves `b` a layer of 9; the best split leaves it one of 1."""
    roomy, tight = LayerCapacity(3, 3, 3, 3), LayerCapacity(1, 1, 1, 1)
    a = PoolNode("a", (0.0, 1.0, 2.0, 12.0), 0.0, roomy)
    b = PoolNode("b", (0.0, 1.0, 2.0, 11.0), 0.0, tight)
    c = PoolNode("c", (0.0, 1.0, 2.0, 4.0), 0.0, roomy)
    assert least_bottleneck(pool(a, b, c), [0, 1, 2]) == [1, 1, 1]
    wide = pool(
        PoolNode("a", (0.0, 1.0, 2.0, 12.0, 13.0), 0.0, roomy),
        PoolNode("b", (0.0, 1.0, 2.0, 11.0, 12.0), 0.0, tight),
        PoolNode("c", (0.0, 1.0, 2.0, 3.0, 4.0), 0.0, roomy),
    )
    assert least_bottleneck(wide, [0, 1, 2]) == [1, 1, 2]


@given(ordered())
@examples(100)
def test_unequal_layers_are_split_exactly_where_members_hold_few(case):
    one, members = case
    caps = [max(1, cap // 2) for cap in capacities(one, members)]
    cramped = [
        PoolNode(n.id, n.prefix_s, n.head_s, LayerCapacity(cap, cap, cap, cap))
        for n, cap in zip(one.nodes, caps, strict=True)
    ]
    one = NodePool(tuple(cramped), one.num_layers, one.batch, one.hop_s)
    counts, every = least_bottleneck(one, members), legal_splits(one, members)
    assert (counts is None) == (not every)
    if counts:
        best = min(bottleneck_s(one, members, other) for other in every)
        assert bottleneck_s(one, members, counts) == pytest.approx(best)


def test_speeds_of_any_ratio_are_split():
    for layer_s in ([1e-15, 1e9, 1e9], [1e9, 1e-15, 1.0], [1e-300, 1e300, 1.0]):
        counts = fill_equal(12, layer_s, [4, 8, 6], 0.5)
        assert sum(counts) == 12
        assert all(1 <= count <= cap for count, cap in zip(counts, [4, 8, 6], strict=True))
