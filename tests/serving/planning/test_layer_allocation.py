from __future__ import annotations

import dataclasses
import math
import random
from itertools import combinations, count

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strata.serving.planning.allocate import allocate
from strata.serving.planning.allocation import Stage, faults, score
from strata.serving.planning.auto import HEATS, MID_SHARE, MOVES, SPLITS_FOR_ROOM, auto
from strata.serving.planning.bound import bound_tokens_per_s, fluid_bound
from strata.serving.planning.evaluation import RingEvaluator
from strata.serving.planning.goal import Goal, Weighing
from strata.serving.planning.pool import LayerCapacity, NodePool
from strata.serving.planning.split import bottleneck_s, least_bottleneck
from tests.serving.planning.pools import most_tokens_per_s, node, pool, random_pool, with_memory
from tests.support.laws import examples

seeds = st.integers(0, 100_000)


@given(
    seeds,
    st.integers(1, 6),
    st.integers(1, 16),
    st.sampled_from([0.4, 1.3]),
    st.sampled_from([Goal.THROUGHPUT, Goal.BOTH]),
)
@examples(40)
def test_small_pools_are_served_as_well_as_by_brute_force_and_the_bound_is_no_lower(seed, n, layers, room, goal):
    one = random_pool(seed, num_nodes=n, layers=layers, room=(0.1, room))
    best = most_tokens_per_s(one)
    found = allocate(one, goal=goal, has_floor=True)
    assert faults(one, found.pipelines) == []
    assert found.performance.tokens_per_s >= 0.98 * best
    assert bool(found.pipelines) == (best > 0)
    if best:
        assert best * (1 - 1e-6) <= found.bound_tokens_per_s <= fluid_bound(one) * (1 + 1e-9)
        assert found.gap == pytest.approx(1 - found.performance.tokens_per_s / found.bound_tokens_per_s)
    else:
        assert [reason.token for reason in found.reasons] == ["layers-do-not-fit"]


@given(
    seeds,
    st.integers(1, 14),
    st.sampled_from(["auto", "dp", "greedy"]),
    st.sampled_from(list(Goal)),
    st.booleans(),
)
@examples(40)
def test_every_strategy_is_legal_on_every_pool(seed, n, strategy, goal, equal):
    one = random_pool(seed, num_nodes=n, layers=12, room=(0.05, 0.8), equal=equal)
    found = allocate(one, strategy, goal=goal)
    assert faults(one, found.pipelines) == []
    assert bool(found.pipelines) != any(reason.token == "layers-do-not-fit" for reason in found.reasons)
    assert found.performance.tokens_per_s <= found.bound_tokens_per_s * (1 + 1e-9)


@given(seeds, st.integers(2, 12), st.sampled_from(["auto", "dp", "greedy"]))
@examples(15)
def test_the_answer_does_not_depend_on_the_order_nodes_joined_in(seed, n, strategy):
    one = random_pool(seed, num_nodes=n, layers=12)
    order = list(range(n))
    random.Random(seed).shuffle(order)
    other = NodePool.of([one.nodes[i] for i in order], one.num_layers, one.batch, one.hop_s[np.ix_(order, order)])
    assert allocate(other, strategy).pipelines == allocate(one, strategy).pipelines


@pytest.mark.parametrize("strategy", ["auto", "dp", "greedy"])
def test_odd_pools_are_answered_not_raised(strategy):
    none = LayerCapacity(0, 0, 0, 0)
    odd = {
        "empty": pool(),
        "one too small": pool(node("a", room=3)),
        "no room at all": pool(*(dataclasses.replace(node(f"n{i}"), capacity=none) for i in range(3))),
        "no node may be an end": pool(*(node(f"n{i}", room=4, ends=4) for i in range(4))),
    }
    for one in odd.values():
        found = allocate(one, strategy)
        assert (found.pipelines, found.performance.tokens_per_s, found.gap) == ((), 0.0, None)
        assert [reason.token for reason in found.reasons] == ["layers-do-not-fit"]


@pytest.mark.parametrize("strategy", ["auto", "dp", "greedy"])
def test_a_pool_that_only_one_choice_of_ends_serves_is_served(strategy):
    ends = dataclasses.replace(node("z", room=2), capacity=LayerCapacity(2, 2, 0, 0))
    tail = dataclasses.replace(node("a", room=2), capacity=LayerCapacity(0, 2, 2, 0))
    inner = [dataclasses.replace(node(f"m{i}", room=2), capacity=LayerCapacity(0, 2, 0, 0)) for i in range(2)]
    one = pool(ends, tail, *inner)
    (stages,) = allocate(one, strategy).pipelines
    assert (stages[0].node_id, stages[-1].node_id) == ("z", "a")
    assert faults(one, [stages]) == []


def test_a_pool_of_one_layer_needs_no_second_node():
    one = NodePool.of([node("a", layers=1), node("b", layers=1)], 1, 8, np.zeros((2, 2)))
    assert allocate(one).pipelines == ((Stage("a", 0, 1),), (Stage("b", 0, 1),))


def test_throughput_may_cross_regions_where_the_other_goals_do_not():
    # Two regions, three nodes each, two hold the model: the third of each is only of use with the other's.
    hops = np.array([[1e-3 if i // 3 == j // 3 else 0.5 for j in range(6)] for i in range(6)])
    np.fill_diagonal(hops, 0.0)
    one = NodePool.of([node(f"n{i}", room=4) for i in range(6)], 8, 8, hops)
    regions = {name: i // 3 for i, name in enumerate(f"n{i}" for i in range(6))}

    def crossing(goal):
        plans = allocate(one, goal=goal).pipelines
        return [len({regions[stage.node_id] for stage in stages}) > 1 for stages in plans]

    assert sorted(crossing(Goal.THROUGHPUT)) == [False, False, True]
    assert not any(crossing(Goal.BOTH))
    assert not any(crossing(Goal.LATENCY))
    assert one.regions == [0, 0, 0, 1, 1, 1]


@given(seeds, st.integers(2, 5), st.sampled_from([Goal.LATENCY, Goal.BOTH]))
@examples(25)
def test_no_choice_of_disjoint_pipelines_of_a_small_pool_is_worth_more(seed, n, goal):
    one = random_pool(seed, num_nodes=n, layers=8, room=(0.4, 1.3))
    weighing = Weighing.of(goal)
    evaluator = RingEvaluator(one)

    def best(left, rate, weight):
        if not left:
            return weighing.value(rate, weight)
        first, *rest = left
        choices = [best(rest, rate, weight)]
        for size in range(len(rest) + 1):
            for others in combinations(rest, size):
                after = [i for i in rest if i not in others]
                rings = evaluator.orders([first, *others])
                choices += [best(after, rate + ring.rate, weight + ring.weight) for ring in rings]
        return max(choices)

    performance = allocate(one, goal=goal).performance
    found = weighing.value(performance.tokens_per_s, performance.tokens_per_s * performance.decode_s)
    most = best(list(range(n)), 0.0, 0.0)
    assert found == most == -math.inf or found >= most - 1e-9


@given(seeds, st.integers(9, 14))
@examples(10)
def test_a_plan_with_a_floor_never_gives_fewer_tokens_than_nodes_filled_as_they_come(seed, n):
    # Some hold the model alone, far apart: what would be best left out for its latency is also worth its tokens.
    one = random_pool(seed, num_nodes=n, layers=12, room=(0.4, 1.5))
    members, least = list[int](), 0.0
    for i in range(n):
        members.append(i)
        order = sorted(members, key=lambda j: (-one.nodes[j].capacity.middle, j))
        counts = least_bottleneck(one, order)
        if counts:
            least += one.batch / bottleneck_s(one, order, counts)
        if counts or len(members) == one.num_layers:
            members = []
    assert allocate(one, has_floor=True).performance.tokens_per_s >= least * (1 - 1e-9)


@given(seeds, st.integers(1, 14), st.sampled_from([Goal.BOTH, Goal.THROUGHPUT, Goal.LATENCY]), st.booleans())
@examples(20)
def test_the_search_is_never_worth_less_than_the_seeds_programme(seed, n, goal, equal):
    one = random_pool(seed, num_nodes=n, layers=12, equal=equal)
    found, programme = allocate(one, goal=goal).performance, allocate(one, "dp", goal=goal).performance
    weighing = Weighing.of(goal)
    values = [
        weighing.value(performance.tokens_per_s, performance.tokens_per_s * performance.decode_s)
        if performance.tokens_per_s
        else 0.0
        for performance in (found, programme)
    ]
    assert values[0] >= values[1] - 1e-6


@pytest.mark.long("searches allocations for seconds")
@example(134, 10)
@given(seeds, st.integers(9, 16))
@examples(15)
def test_a_plan_with_a_floor_gives_most_of_the_tokens_of_the_seeds_programme(seed, n):
    one = random_pool(seed, num_nodes=n, layers=12)
    most = allocate(one, "dp", goal=Goal.THROUGHPUT).performance.tokens_per_s
    assert allocate(one, has_floor=True).performance.tokens_per_s >= MID_SHARE * most * (1 - 1e-9)


def test_a_floor_is_not_kept_by_giving_up_regions():
    # Three regions of 10 like nodes, 4 hold the model: 6 pipelines inside regions, 7 as the nodes come.
    far = np.array([[1e-3 if i % 3 == j % 3 else 0.1 for j in range(30)] for i in range(30)])
    np.fill_diagonal(far, 0.0)
    one = NodePool.of([node(f"n{i:02}", room=2) for i in range(30)], 8, 8, far)
    ticks = count()
    found = allocate(one, has_floor=True, time_limit_s=0.0, clock=lambda: float(next(ticks)))
    crossing = [len({int(stage.node_id[1:]) % 3 for stage in stages}) > 1 for stages in found.pipelines]
    assert (len(crossing), sum(crossing)) == (7, 1)


@pytest.mark.long("searches allocations for seconds")
def test_goals_trade_tokens_for_latency_in_their_order():
    one = random_pool(5, num_nodes=24, layers=32)
    plans = [allocate(one, goal=goal).performance for goal in (Goal.THROUGHPUT, Goal.BOTH, Goal.LATENCY)]
    assert plans[0].tokens_per_s >= plans[1].tokens_per_s >= plans[2].tokens_per_s
    assert plans[0].decode_s >= plans[1].decode_s >= plans[2].decode_s


def test_a_search_cut_short_still_answers_and_says_so():
    ticks = count()
    found = allocate(random_pool(1, num_nodes=12, layers=12), time_limit_s=0.0, clock=lambda: float(next(ticks)))
    assert found.pipelines
    assert [reason.token for reason in found.reasons] == ["time-limit"]


def test_pools_short_of_kv_memory_are_searched_in_fewer_moves_and_lose_little():
    """A split that looks for memory takes three others' time: 24 such nodes with 70B took 16 s of a core."""
    roomy = random_pool(1, num_nodes=10, layers=12)
    short = with_memory(roomy, [12 * node.capacity.middle / 11 for node in roomy.nodes])
    value = Weighing.of(Goal.BOTH).value
    worth = []
    for moves in (MOVES, SPLITS_FOR_ROOM * MOVES):
        pipelines, tried, wanted = auto(short, Goal.BOTH, is_over=lambda: False, moves=moves)
        assert tried == wanted == len(HEATS) * moves // SPLITS_FOR_ROOM
        rate, decode_s = score(short, pipelines)
        worth.append(value(rate, rate * decode_s))
    assert worth[0] >= worth[1] - 0.01
    assert auto(roomy, Goal.BOTH, is_over=lambda: False, moves=300)[2] == len(HEATS) * 300


def test_the_search_makes_the_start_better():
    one = random_pool(2, num_nodes=40, layers=24)
    weighing, ticks = Weighing.of(Goal.BOTH), count()
    early = allocate(one, time_limit_s=0.0, clock=lambda: float(next(ticks))).performance
    late = allocate(one, clock=lambda: 0.0).performance
    values = [weighing.value(w.tokens_per_s, w.tokens_per_s * w.decode_s) for w in (early, late)]
    assert values[1] > values[0]


def test_a_pipeline_of_far_more_than_the_mean_latency_makes_a_plan_worse():
    weighing = Weighing(0.25)
    plan = weighing.value(100.0, 100.0 * 0.05)
    assert weighing.value(101.0, 100.0 * 0.05 + 1.0 * 0.24) > plan
    assert weighing.value(101.0, 100.0 * 0.05 + 1.0 * 0.26) < plan


def test_below_the_floor_a_plan_is_worth_less_than_any_other_but_may_be_passed():
    weighing = Weighing(0.25, least_rate=100.0)
    above, below = (100.0, 100.0 * 10.0), (99.0, 99.0 * 1e-3)
    assert weighing.value(*below) < weighing.value(*above)
    assert weighing.passing(*above) == weighing.value(*above) == Weighing(0.25).value(*above)
    assert weighing.passing(98.0, 98.0) < weighing.passing(99.0, 99.0) < Weighing(0.25).value(99.0, 99.0)


def test_the_score_is_the_slowest_stage_and_all_stages_and_hops_of_a_token():
    one = pool(node("a"), node("b", 2e-3, head_s=1e-3), hop_s=5e-3)
    found = score(one, [(Stage("a", 0, 6), Stage("b", 6, 8))])
    assert found.tokens_per_s == pytest.approx(8 / 6e-3)
    assert found.decode_s == pytest.approx(6e-3 + 5e-3 + 10e-3)
    assert score(one, []).tokens_per_s == 0


def test_what_is_illegal_about_a_plan_is_named():
    one = pool(node("a", room=4), node("b", room=4))
    assert faults(one, [(Stage("a", 0, 4), Stage("b", 4, 8))]) == []
    assert "used twice" in faults(one, [(Stage("a", 0, 4), Stage("a", 4, 8))])[0]
    assert "ends at layer 4 of 8" in faults(one, [(Stage("a", 0, 4),)])[0]
    assert "holds 5 layers where 4 fit" in faults(one, [(Stage("a", 0, 5), Stage("b", 5, 8))])[0]
    assert "unknown node c" in faults(one, [(Stage("c", 0, 8),)])[0]
    assert "after 4" in faults(one, [(Stage("a", 0, 4), Stage("b", 3, 8))])[0]


def test_the_bound_of_unequal_layers_and_of_nothing():
    one = random_pool(4, num_nodes=5, layers=6, equal=False, room=(1.5, 1.6))
    assert allocate(one).performance.tokens_per_s <= bound_tokens_per_s(one) < math.inf
    assert bound_tokens_per_s(pool()) == 0.0


@pytest.mark.parametrize("strategy", ["auto", "dp", "greedy"])
def test_nodes_without_a_link_between_them_make_no_pipeline(strategy):
    one = pool(node("a", room=5), node("b", room=5), hop_s=math.inf)
    answer = allocate(one, strategy)
    assert answer.pipelines == ()
    assert [reason.token for reason in answer.reasons] == ["nodes-apart"]
