from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.training.plan.exact.routes import (
    PairCosts,
    best_path,
    best_route,
    efficient,
    efficient_routes,
    path_table,
)
from tests.support.builders import domain, fleet, link

LOAD = 1e6


@st.composite
def symmetric(draw, low: int = 2, high: int = 6):
    """Symmetric costs of small integers (many ties), some links missing."""
    count = draw(st.integers(low, high))
    matrix = np.zeros((count, count))
    for i in range(count):
        for j in range(i):
            matrix[i, j] = matrix[j, i] = draw(st.sampled_from([0.0, 1.0, 2.0, 3.0, 5.0, np.inf]))
    return matrix


@st.composite
def pair_costs(draw):
    slowness = draw(symmetric())
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    extra = rng.integers(0, 4, (2, *slowness.shape)).astype(float)
    missing = np.isinf(slowness)
    latency, price = (np.where(missing, np.inf, each + each.T) for each in extra)
    return PairCosts(slowness * 1e-6, slowness * 1.5e-6, latency, price)


def path_cost(pair, order, combine=sum) -> float:
    return combine([pair[a, b] for a, b in pairwise(order)] or [0.0])


@given(symmetric(), st.sampled_from(["sum", "max"]))
def test_the_table_holds_the_least_path_over_every_subset_to_every_end(pair, combine):
    table, fold = path_table(pair, combine), {"sum": sum, "max": max}[combine]
    for mask in range(1, 1 << len(pair)):
        inside = [i for i in range(len(pair)) if mask >> i & 1]
        for last in range(len(pair)):
            costs = [path_cost(pair, order, fold) for order in permutations(inside) if order[-1] == last]
            assert table[mask, last] == min(costs, default=np.inf)


@given(symmetric())
def test_the_best_path_is_no_longer_than_any_permutation(pair):
    members = tuple(range(len(pair)))
    order, cost = best_path(pair, members)
    assert sorted(order) == list(members)
    assert cost == min(path_cost(pair, each) for each in permutations(members))
    if np.isfinite(cost):
        assert path_cost(pair, order) == cost


@given(pair_costs(), st.sampled_from([0.0, 1.0, 2.5, 9.0]), st.sampled_from([1, 2, 8]), st.sampled_from([1, 3]))
def test_the_best_route_weighs_its_round_trips_against_its_slowest_link(costs, period_s, batches, degree):
    members = tuple(range(len(costs.slowness)))

    def value(order) -> float:
        load = LOAD * degree
        trips = sum(load * costs.slowness_sum[a, b] + costs.latency_sum[a, b] for a, b in pairwise(order))
        slowest = max(load * costs.slowness[a, b] for a, b in pairwise(order))
        return trips + (max(period_s, slowest) * (batches - 1) if batches > 1 else 0.0)

    order, cost = best_route(
        costs,
        members,
        message_bytes=LOAD,
        data_parallel=degree,
        period_s=period_s,
        microbatches=batches,
    )
    best = min(value(each) for each in permutations(members))
    assert cost == pytest.approx(best)
    assert value(order) == pytest.approx(best) or np.isinf(best)


@given(pair_costs())
def test_the_efficient_orders_are_exactly_those_no_other_dominates(costs):
    members = tuple(range(len(costs.slowness)))

    def vector(order) -> tuple[float, float, float]:
        hops = list(pairwise(order))
        return (
            max(LOAD * costs.slowness[a, b] for a, b in hops),
            sum(LOAD * costs.slowness_sum[a, b] + costs.latency_sum[a, b] for a, b in hops),
            sum(costs.price_sum[a, b] for a, b in hops),
        )

    every = (
        np.array([v for v in map(vector, permutations(members)) if np.isfinite(v).all()]).reshape(-1, 3).round(9)
    )
    found = np.array([vector(order) for order in efficient_routes(costs, members, load_bytes=LOAD)]).reshape(-1, 3)
    assert {tuple(row) for row in found.round(9)} == {tuple(row) for row in non_dominated(every)}


@given(st.lists(st.tuples(*[st.integers(0, 4).map(float)] * 3), max_size=12))
def test_efficient_keeps_the_non_dominated_rows_each_once(rows):
    values = np.array(rows).reshape(-1, 3)
    kept = values[efficient(values)]
    assert sorted(map(tuple, kept)) == sorted({tuple(row) for row in non_dominated(values)})


def non_dominated(values):
    return [row for row in values if not any((other <= row).all() and (other < row).any() for other in values)]


def test_a_link_in_one_direction_only_joins_nothing():
    one_way = link("a", "b", 5, 30)[:1]
    costs = PairCosts.of(fleet(domain("a"), domain("b"), links=one_way), 1e6)
    assert np.isinf(costs.slowness[0, 1])
    assert np.isinf(costs.latency_sum[1, 0])


def test_more_domains_than_can_be_tabulated_still_get_a_connected_path():
    count = 16
    ring = np.abs(np.subtract.outer(np.arange(count), np.arange(count))).astype(float)
    order, cost = best_path(ring, tuple(range(count)))
    assert sorted(order) == list(range(count))
    assert cost == count - 1
