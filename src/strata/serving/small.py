"""Small pools, exactly: every set of nodes in its best orders, and the best disjoint sets among them.

The value of a plan is not a sum over its pipelines, but at fixed prices of rate and weight it is: the prices
of the best plan so far find a better one, until they find it again.
"""

from __future__ import annotations

from strata.serving.appraisal import Appraiser, Ring
from strata.serving.goal import Weighing

MOST_NODES = 8
MAX_ROUNDS = 8


def best_small(appraiser: Appraiser, weighing: Weighing) -> list[Ring]:
    """Return the best rings of a pool of at most MOST_NODES nodes; O(3^N) sums a round."""
    n = len(appraiser.pool.nodes)
    sets = ([i for i in range(n) if mask >> i & 1] for mask in range(1, 1 << n))
    orders = [list[Ring](), *(appraiser.orders(members) for members in sets)]
    best: list[Ring] = []
    best_value, prices = float("-inf"), (1.0, 0.0)
    for _ in range(MAX_ROUNDS):
        rings = _packing(orders, *prices)
        sums = sum(ring.rate for ring in rings), sum(ring.weight for ring in rings)
        value = weighing.value(*sums)
        if value <= best_value + 1e-12:
            break
        best, best_value, prices = rings, value, weighing.prices(*sums)
    return best


def _packing(orders: list[list[Ring]], rate_price: float, weight_price: float) -> list[Ring]:
    worth: list[float] = [0.0]
    chosen: list[Ring | None] = [None]
    for rings in orders[1:]:
        ring = max(rings, key=lambda r: r.rate * rate_price - r.weight * weight_price, default=None)
        chosen.append(ring)
        worth.append(ring.rate * rate_price - ring.weight * weight_price if ring else 0.0)
    best, part_of = [0.0] * len(orders), [0] * len(orders)
    for mask in range(1, len(orders)):
        low = mask & -mask
        rest = mask ^ low
        best[mask], part = best[rest], rest
        while True:
            taken = part | low
            if worth[taken] > 0 and worth[taken] + best[mask ^ taken] > best[mask]:
                best[mask], part_of[mask] = worth[taken] + best[mask ^ taken], taken
            if part == 0:
                break
            part = (part - 1) & rest
    found, mask = [], len(orders) - 1
    while mask:
        ring = chosen[part_of[mask]]
        if ring:
            found.append(ring)
        mask ^= part_of[mask] or mask & -mask
    return found
