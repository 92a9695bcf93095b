"""What a ring of nodes is worth as a pipeline, fast: the search asks tens of thousands of times."""

from __future__ import annotations

import math
from typing import NamedTuple

from strata.serving.planning.order import best_path, best_ring
from strata.serving.planning.pool import NodePool
from strata.serving.planning.split import best_split, fill_equal, roomier, stages_s

EVERY_END = 12
"""Up to so many members every pair of ends is tried; of more, those that are neighbours in the ring."""


class Ring(NamedTuple):
    """Members in the order of their stages; tokens/s, and the seconds of decoding in a second (their product).

    Rate and weight of a plan are the sums over its rings; its mean decode time is weight / rate.
    """

    members: list[int]
    rate: float
    weight: float


class RingEvaluator:
    """Splits and values rings of one pool; remembers what it has seen. `for_goals`: only served tokens count."""

    def __init__(self, pool: NodePool, *, for_goals: bool = False) -> None:
        self.pool, self._service = pool, pool.service if for_goals else None
        nodes = pool.nodes
        self.first_fills_s = [n.capacity.first * s for n, s in zip(nodes, pool.layer_s, strict=True)]
        self.fills_s = [n.capacity.middle * s for n, s in zip(nodes, pool.layer_s, strict=True)]
        self.last_fills_s = [n.capacity.last * s + n.head_s for n, s in zip(nodes, pool.layer_s, strict=True)]
        self._first = [n.capacity.first for n in nodes]
        self._middle = [n.capacity.middle for n in nodes]
        self._last = [n.capacity.last for n in nodes]
        self._only = [n.capacity.only for n in nodes]
        self._head_s = [n.head_s for n in nodes]
        self._seen: dict[tuple[int, ...], Ring | None] = {}

    def evaluate(self, members: list[int]) -> Ring | None:
        """Return the ring, cut where its ends are least likely to be short of room; None where nothing fits."""
        key = tuple(members)
        if key in self._seen:
            return self._seen[key]
        if len(self._seen) > 200_000:
            self._seen.clear()
        ring = self._seen[key] = self.value(self._cut(members))
        return ring

    def polish(self, members: list[int], rate_price: float, weight_price: float) -> Ring | None:
        """Return the best order and cut of the members at these prices of rate and weight."""
        rings = self.orders(members)
        values = [ring.rate * rate_price - ring.weight * weight_price for ring in rings]
        if not self.pool.held or not rings:
            return max(zip(values, rings, strict=True), key=lambda pair: pair[0], default=(0.0, None))[1]
        least = max(values) - 1e-9 * abs(max(values))
        return min((r for r, v in zip(rings, values, strict=True) if v >= least), key=self._moved)

    def _moved(self, ring: Ring) -> int:
        """Return how many layers of a ring its nodes do not hold."""
        pool, first, moved = self.pool, 0, 0
        for i, count in zip(ring.members, best_split(pool, ring.members) or [], strict=True):
            held_first, held_end = pool.held.get(pool.nodes[i].id, (0, 0))
            moved += count - max(0, min(held_end, first + count) - max(held_first, first))
            first += count
        return moved

    def orders(self, members: list[int]) -> list[Ring]:
        """Return the members with each choice of the two ends, in the order of the least hops (7 or more: nearly).

        With equal layers nothing but the ends changes what fits, so the best order is among them.
        """
        if len(members) < 3:
            rings = [self.value(members), self.value(members[::-1])]
            return [ring for ring in rings if ring]
        ring = best_ring(self.pool, members)
        if len(ring) > EVERY_END:
            paths = (ring[at:] + ring[:at] for at in range(len(ring)))
        else:
            paths = (best_path(self.pool, ring, a, b) for a in ring for b in ring if a != b)
        return [evaluated for path in paths if (evaluated := self.value(path))]

    def _cut(self, ring: list[int]) -> list[int]:
        k = len(ring)
        if k < 2:
            return ring
        first_s, last_s = self.first_fills_s, self.last_fills_s
        best, at, before = -1.0, 0, ring[-1]
        for j, i in enumerate(ring):
            room = min(last_s[before], first_s[i])
            if room > best:
                best, at = room, j
            before = i
        return ring[at:] + ring[:at] if at else ring

    def value(self, members: list[int]) -> Ring | None:
        """Return the ring cut where it stands; None where the model does not fit."""
        pool, L, k = self.pool, self.pool.num_layers, len(members)
        if not pool.has_equal_layers:
            counts = best_split(pool, members)
            if counts is None:
                return None
            times = stages_s(pool, members, counts)
            return self._ring(members, counts, times)
        if k == 0 or k > L:
            return None
        if k == 1:
            node = members[0]
            if self._only[node] < L:
                return None
            return self._ring(members, [L], [L * pool.layer_s[node] + self._head_s[node]])
        middle = self._middle
        caps = [middle[i] for i in members]
        caps[0], caps[-1] = self._first[members[0]], self._last[members[-1]]
        if sum(caps) < L or min(caps) < 1:
            return None
        most = L - k + 1
        if max(caps) > most:
            caps = [min(cap, most) for cap in caps]
            if sum(caps) < L:
                return None
        layer_s = [pool.layer_s[i] for i in members]
        head_s = self._head_s[members[-1]]
        counts = fill_equal(L, layer_s, caps, head_s)
        times = [c * s for c, s in zip(counts, layer_s, strict=True)]
        times[-1] += head_s
        return self._ring(members, counts, times)

    def _ring(
        self, members: list[int], counts: list[int], times_s: list[float], *, is_roomiest: bool = False
    ) -> Ring | None:
        pool, slowest_s, stages_sum_s = self.pool, max(times_s), sum(times_s)
        decode_s = stages_sum_s + pool.cycle_s(members)
        if decode_s == math.inf:  # No link joins two of them.
            return None
        slots = pool.slots(members, counts)
        rate = pool.rate(slowest_s=slowest_s, decode_s=decode_s, slots=slots)
        if (
            not is_roomiest
            and rate * slowest_s < pool.batch * (1 - 1e-9)
            and (other := roomier(pool, members, counts)) != counts
        ):
            return self._ring(members, other, stages_s(pool, members, other), is_roomiest=True)
        if self._service is not None:
            rate = self._service.rate(
                members, counts, batch=pool.batch, steps_s=times_s, cycle_s=decode_s - stages_sum_s, slots=slots
            )
        return Ring(members, rate, rate * decode_s)
