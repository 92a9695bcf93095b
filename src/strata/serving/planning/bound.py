"""What no plan can exceed: an upper bound on tokens/s, so that the gap which is reported is honest.

Every pool: a pipeline of rate r spends r times the work of L layers and one head, and a node offers one second a
second. Work is counted in prices, one a layer; a node is worth at most its best price a second. The fluid
bound, with the head in it.

Small pools: all sets of nodes, each with its least bottleneck, and the best disjoint ones among them by an
integer programme (HiGHS). It knows memory and whole layers as well, and is the optimum itself.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np

from strata.serving.planning.pool import NodePool
from strata.serving.planning.split import bottleneck_s, least_bottleneck

ENUMERATED_NODES = 8
"""Up to so many nodes all their sets are looked at."""


def bound_tokens_per_s(pool: NodePool) -> float:
    """Return an upper bound on the tokens/s of any plan; 0 for an empty pool."""
    fluid = fluid_bound(pool)
    if 0 < len(pool.nodes) <= ENUMERATED_NODES and pool.has_equal_layers and math.isfinite(fluid):
        return min(fluid, _packing_bound(pool))
    return fluid


def fluid_bound(pool: NodePool) -> float:
    """Return the bound that ignores memory and counts layers as divisible; infinite where work takes no time."""
    if not pool.nodes:
        return 0.0
    times = np.diff(np.array([node.prefix_s for node in pool.nodes]), axis=1)
    if (times <= 0).any():
        return math.inf
    prices = np.exp(np.log(times).mean(axis=0))
    per_second = (prices / times).max(axis=1)
    heads = np.array([node.head_s for node in pool.nodes]) * per_second
    return float(pool.batch * per_second.sum() / (prices.sum() + heads.min()))


def _packing_bound(pool: NodePool) -> float:
    sets, rates = [], []
    for size in range(1, len(pool.nodes) + 1):
        for members in combinations(range(len(pool.nodes)), size):
            least = _least_bottleneck_s(pool, members)
            if least < math.inf:
                sets.append(members)
                rates.append(pool.batch / least)
    return _best_packing(len(pool.nodes), sets, rates)


def _least_bottleneck_s(pool: NodePool, members: tuple[int, ...]) -> float:
    """Return the least bottleneck over all orders: only who is first and who is last matters."""
    if len(members) == 1:
        node = pool.nodes[members[0]]
        return (
            node.layers_s(0, pool.num_layers) + node.head_s if node.capacity.only >= pool.num_layers else math.inf
        )
    least = math.inf
    for last in members:
        others = [i for i in members if i != last]
        for first in others:
            order = [first, *(i for i in others if i != first), last]
            counts = least_bottleneck(pool, order)
            if counts is not None:
                least = min(least, bottleneck_s(pool, order, counts))
    return least


def _best_packing(num_nodes: int, sets: list[tuple[int, ...]], rates: list[float]) -> float:
    """Return the greatest sum of rates of disjoint sets, or HiGHS's bound on it."""
    import highspy

    if not sets:
        return 0.0
    solver = highspy.Highs()
    solver.silent()
    scale = max(rates)
    chosen = [solver.addBinary() for _ in sets]
    for node in range(num_nodes):
        using = [x for x, members in zip(chosen, sets, strict=True) if node in members]
        if using:
            solver.addConstr(solver.qsum(using) <= 1)
    solver.maximize(solver.qsum(x * (rate / scale) for x, rate in zip(chosen, rates, strict=True)))
    return float(solver.getInfo().mip_dual_bound) * scale * (1 + 1e-9)
