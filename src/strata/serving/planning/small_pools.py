"""Small pools, exactly: every set of nodes in its best orders, and the best disjoint sets among them.

The value of a plan is not a sum over its pipelines, but its rate and weight are, and it grows with the one and
falls with the other: of all plans for a set of nodes, only those that no other beats in both need be kept.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from strata.serving.planning.evaluation import Ring, RingEvaluator

MOST_NODES = 8
SAME = 1e-9
"""Relative differences of weights below this are rounding."""


class PartialPlan(NamedTuple):
    """Sums of a plan, its last ring, and the plan of the others."""

    rate: float
    weight: float
    ring: Ring | None = None
    others: PartialPlan | None = None

    def rings(self) -> list[Ring]:
        """Return its pipelines."""
        if self.ring is None or self.others is None:
            return []
        return [self.ring, *self.others.rings()]


def undominated_plans(evaluator: RingEvaluator) -> list[PartialPlan]:
    """Return the plans of a pool of at most MOST_NODES nodes that no other beats in both, by falling rate.

    The last is the empty one. O(3^N) sums.
    """
    n = len(evaluator.pool.nodes)
    empty = PartialPlan(0.0, 0.0)
    singles, plans = [list[PartialPlan]()], [[empty]]
    for mask in range(1, 1 << n):
        rings = evaluator.orders([i for i in range(n) if mask >> i & 1])
        singles.append(_undominated([PartialPlan(ring.rate, ring.weight, ring, empty) for ring in rings]))
        low = mask & -mask
        part = rest = mask ^ low
        candidates = list(plans[rest])
        while True:
            taken = part | low
            candidates += (
                PartialPlan(others.rate + single.rate, others.weight + single.weight, single.ring, others)
                for single in singles[taken]
                for others in plans[mask ^ taken]
            )
            if part == 0:
                break
            part = (part - 1) & rest
        plans.append(_undominated(candidates))
    return plans[-1]


def _undominated(plans: list[PartialPlan]) -> list[PartialPlan]:
    plans.sort(key=lambda plan: (-plan.rate, plan.weight))
    kept, least = list[PartialPlan](), math.inf
    for plan in plans:
        if plan.weight < least * (1 - SAME):
            kept.append(plan)
            least = plan.weight
    return kept
