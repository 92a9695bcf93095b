"""The order in which a pipeline visits domains: shortest Hamiltonian paths over every subset at once.

Held & Karp 1962 (dynamic programming over (visited, last)), vectorised over all subsets of one size. A pair
of domains costs the same in either direction of the pipeline, because activations go one way and gradients
the other; so all matrices here are symmetric, and a path is as good as its reverse.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise, permutations
from typing import Final, Literal

import numpy as np

from strata.arrays import Floats, Ints
from strata.fleet.fleet import Fleet

EXACT_DOMAINS: Final = 14
"""Up to here all 2^K subsets are tabulated (K = 14: 16,384 subsets × 14 ends, tens of milliseconds)."""


@dataclass(frozen=True)
class PairCosts:
    """What joining two domains costs, both directions together; inf where a link is missing.

    slowness: the larger of 1/B over the two directions [s/B]; slowness_sum: both [s/B];
    latency_sum: both one-way latencies [s]; price_sum: both prices [USD/B].
    """

    slowness: Floats
    slowness_sum: Floats
    latency_sum: Floats
    price_sum: Floats

    @classmethod
    def of(cls, fleet: Fleet, message_bytes: float) -> PairCosts:
        """Return the costs for messages of one size (a link's bandwidth may depend on it)."""
        count = len(fleet.domains)
        slow = np.full((count, count), np.inf)
        sending_s = (link.serialisation_s(message_bytes) for link in fleet.links.values())
        slow[fleet.pairs] = np.fromiter(sending_s, float, len(fleet.links)) / message_bytes
        latency, price = fleet.latency_s(), fleet.price_usd_per_byte()
        missing = np.isinf(slow) | np.isinf(slow.T)
        np.fill_diagonal(missing, val=False)
        np.fill_diagonal(slow, 0.0)

        def both(matrix: Floats) -> Floats:
            return np.where(missing, np.inf, matrix + matrix.T)

        return cls(np.where(missing, np.inf, np.maximum(slow, slow.T)), both(slow), both(latency), both(price))


def path_table(pair: Floats, combine: Literal["sum", "max"]) -> Floats:
    """Return dp[mask, last]: the least cost of a path over exactly `mask` that ends at `last`; inf if none.

    pair: symmetric costs [K, K]. `combine` adds the pairs of a path or takes the worst of them.
    """
    count = len(pair)
    table = np.full((1 << count, count), np.inf)
    for last in range(count):
        table[1 << last, last] = 0.0
    for size in range(2, count + 1):
        masks = np.array([sum(1 << i for i in group) for group in combinations(range(count), size)])
        for last in range(count):
            ends = masks[masks >> last & 1 == 1]
            before = table[ends ^ (1 << last)]  # [masks, previous]
            step = before + pair[:, last] if combine == "sum" else np.maximum(before, pair[:, last])
            table[ends, last] = step.min(axis=1)
    return table


def best_path(pair: Floats, members: tuple[int, ...]) -> tuple[tuple[int, ...], float]:
    """Return the cheapest order of some domains by the sum of `pair`, and its cost (inf: not connected)."""
    if len(members) == 1:
        return members, 0.0
    inside = pair[np.ix_(members, members)]
    if len(members) > EXACT_DOMAINS:
        order, cost = _greedy_path(inside)
    else:
        table = path_table(inside, "sum")
        mask = (1 << len(members)) - 1
        last = int(np.argmin(table[mask]))
        cost = float(table[mask, last])
        order = [last]
        while mask & (mask - 1) and np.isfinite(cost):
            mask ^= 1 << order[-1]
            order.append(int(np.argmin(table[mask] + inside[:, order[-1]])))
        if not np.isfinite(cost):
            order = list(range(len(members)))
    return tuple(members[i] for i in order), cost


def best_route(
    costs: PairCosts,
    members: tuple[int, ...],
    *,
    message_bytes: float,
    data_parallel: int,
    period_s: float,
    microbatches: int,
) -> tuple[tuple[int, ...], float]:
    """Return the order that minimises Σ round trips + (M-1) max(period, slowest link), and that value.

    Exact: for each possible slowest link the shortest path over links no slower (at most EXACT_DOMAINS
    members; above that a nearest-neighbour path improved by 2-opt).
    """
    if len(members) == 1:
        return members, (microbatches - 1) * period_s
    load = message_bytes * data_parallel
    total = load * costs.slowness_sum + costs.latency_sum
    serial = load * costs.slowness
    inside = serial[np.ix_(members, members)]
    levels = np.unique(inside[np.isfinite(inside) & (inside > period_s)])
    best, best_cost = members, np.inf
    for level in np.concatenate([[period_s], levels]):
        if (microbatches - 1) * level >= best_cost:
            break
        order, cost = best_path(np.where(serial <= level, total, np.inf), members)
        cost += (microbatches - 1) * max(period_s, float(level))
        if cost < best_cost:
            best, best_cost = order, cost
    return best, best_cost


def efficient_routes(costs: PairCosts, members: tuple[int, ...], *, load_bytes: float) -> list[tuple[int, ...]]:
    """Return the orders no other order beats in (slowest link, Σ round trips, Σ price), one of each kind.

    By enumeration: meant for at most 8 members (20,160 orders up to reversal).
    """
    orders = np.array([order for order in permutations(members) if order[0] <= order[-1]])
    here, there = orders[:, :-1], orders[:, 1:]
    with np.errstate(invalid="ignore"):
        serial = load_bytes * costs.slowness[here, there]
        rounds = load_bytes * costs.slowness_sum[here, there] + costs.latency_sum[here, there]
    values = np.stack(
        [serial.max(axis=1, initial=0.0), rounds.sum(axis=1), costs.price_sum[here, there].sum(axis=1)], axis=1
    )
    connected = np.isfinite(values).all(axis=1)
    orders, values = orders[connected], values[connected]
    return [tuple(int(i) for i in orders[k]) for k in efficient(values)]


def efficient(values: Floats) -> Ints:
    """Return the positions of rows of `values` [N, D] that no other row dominates (less is better).

    Of equal rows the first is kept.
    """
    order = np.lexsort(values.T[::-1])
    kept: list[int] = []
    for position in order:
        row = values[position]
        if not kept or not (values[kept] <= row).all(axis=1).any():
            kept.append(int(position))
    return np.array(sorted(kept), dtype=np.int64)


def _greedy_path(pair: Floats) -> tuple[list[int], float]:
    """Return a short path over all nodes: nearest neighbour from every start, then 2-opt."""
    count = len(pair)

    def cost(order: list[int]) -> float:
        return float(sum(pair[a, b] for a, b in pairwise(order)))

    best: list[int] = list(range(count))
    for start in range(count):
        order, left = [start], set(range(count)) - {start}
        while left:
            nearest = min(left, key=lambda node: (pair[order[-1], node], node))
            order.append(nearest)
            left.remove(nearest)
        if cost(order) < cost(best) or not np.isfinite(cost(best)):
            best = order
    improved = True
    while improved:
        improved = False
        for i in range(count - 1):
            for j in range(i + 1, count):
                other = best[:i] + best[i : j + 1][::-1] + best[j + 1 :]
                if cost(other) < cost(best) - 1e-15:
                    best, improved = other, True
    return best, cost(best)
