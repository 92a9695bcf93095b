"""Layers onto the members of one pipeline, in their order: the exact contiguous split with the least bottleneck.

A member holds at least one layer, and at most its capacity as first, middle, last or only stage. The last
member also computes the head. The split is exact; infeasible orders give None.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from strata.serving.planning.pool import NodePool


def capacities(pool: NodePool, members: Sequence[int]) -> list[int]:
    """Return the most layers each member holds at its place, no more than leaves one for each other."""
    nodes, most = pool.nodes, pool.num_layers - len(members) + 1
    if len(members) == 1:
        return [min(most, nodes[members[0]].capacity.only)]
    caps = [min(most, nodes[i].capacity.middle) for i in members]
    caps[0] = min(most, nodes[members[0]].capacity.first)
    caps[-1] = min(most, nodes[members[-1]].capacity.last)
    return caps


def least_bottleneck(pool: NodePool, members: Sequence[int]) -> list[int] | None:
    """Return the number of layers of each member that makes the slowest stage least."""
    caps = capacities(pool, members)
    if not members or min(caps) < 1 or sum(caps) < pool.num_layers:
        return None
    if pool.has_equal_layers:
        head_s = pool.nodes[members[-1]].head_s
        return fill_equal(pool.num_layers, [pool.layer_s[i] for i in members], caps, head_s)
    return _parametric(pool, members, caps)


def fill_equal(num_layers: int, layer_s: list[float], caps: list[int], head_s: float) -> list[int]:
    """Return the least-bottleneck numbers of layers, all layers alike; `sum(caps) >= num_layers` holds.

    The bottleneck of fractional layers is found first: no whole split is below it. Every member takes what
    fits below; the few layers that are left go, one by one, where the stage they make is the shortest.
    """
    last = len(caps) - 1
    speed = [1.0 / s if s > 0 else 1e18 for s in layer_s]
    free, left, time = list(range(last + 1)), num_layers, 0.0
    while free:
        # Summed anew each time: of very unlike speeds, differences would leave nothing.
        head = head_s * speed[last] if free[-1] == last else 0.0
        time = (left + head) / sum(speed[j] for j in free)
        full = [j for j in free if (time - head_s if j == last else time) * speed[j] > caps[j]]
        if not full:
            break
        for j in full:
            free.remove(j)
            left -= caps[j]
    counts = list(caps)
    for j in free:
        fits = int((time - head_s if j == last else time) * speed[j] + 1e-9)
        counts[j] = fits if fits > 1 else 1
    missing = num_layers - sum(counts)
    if missing > 0:
        ahead = [
            (count + 1) * s if count < cap else math.inf
            for count, s, cap in zip(counts, layer_s, caps, strict=True)
        ]
        ahead[last] += head_s
    while missing > 0:
        j = ahead.index(min(ahead))
        counts[j] += 1
        ahead[j] = (
            (counts[j] + 1) * layer_s[j] + (head_s if j == last else 0.0) if counts[j] < caps[j] else math.inf
        )
        missing -= 1
    while missing < 0:
        best = max(
            (j for j in range(last + 1) if counts[j] > 1),
            key=lambda j: counts[j] * layer_s[j] + (head_s if j == last else 0.0),
        )
        counts[best] -= 1
        missing += 1
    return counts


def best_split(pool: NodePool, members: Sequence[int]) -> list[int] | None:
    """Return the split of the least bottleneck, or one of more tokens/s where memory keeps too few in flight."""
    counts = least_bottleneck(pool, members)
    return counts and roomier(pool, members, counts)


def roomier(pool: NodePool, members: Sequence[int], counts: list[int]) -> list[int]:
    """Return the split of the most tokens/s on the way to the one that keeps the most sequences in flight.

    Layer by layer, the tightest stage gives one away to the stage that has most room after it. Where the sequences
    in flight do not bound the tokens/s, that is where it begins.
    """
    if pool.kv is None or len(members) < 2:
        return counts
    kv, last = pool.kv, len(members) - 1
    caps, hops_s, best, most = capacities(pool, members), pool.cycle_s(list(members)), counts, 0.0
    times, slots = stages_s(pool, members, counts), kv.slots_by_stage(members, counts)

    def one_more(j: int) -> float:
        count = counts[j]
        return slots[j] * count / (count + 1) - kv.lost_slots(count + 1) if count < caps[j] else -math.inf

    more = [one_more(j) for j in range(last + 1)]
    for _ in range(pool.num_layers):
        slowest_s, decode_s = max(times), sum(times) + hops_s
        rate = pool.rate(slowest_s=slowest_s, decode_s=decode_s, slots=kv.slots(slots))
        if rate > most * (1 + 1e-9):
            best, most = counts, rate
        if rate * slowest_s >= pool.batch * (1 - 1e-9):
            break
        tightest = slots.index(min(slots))
        more[tightest] = -math.inf
        taker = more.index(max(more))
        if more[taker] <= slots[tightest] or counts[tightest] < 2:
            break
        counts = [count - (j == tightest) + (j == taker) for j, count in enumerate(counts)]
        if not pool.has_equal_room:
            times, slots = stages_s(pool, members, counts), kv.slots_by_stage(members, counts)
            more = [one_more(j) for j in range(last + 1)]
            continue
        for j in (tightest, taker):  # what the others have is as it was, wherever their layers begin now
            node = pool.nodes[members[j]]
            times[j] = node.layers_s(0, counts[j]) + (node.head_s if j == last else 0.0)
            slots[j] = kv.stage_slots(members[j], 0, counts[j], is_first=j == 0, is_last=j == last)
            more[j] = one_more(j)
    return best


def _parametric(pool: NodePool, members: Sequence[int], caps: list[int]) -> list[int] | None:
    """Bisect the bottleneck; every probe moves to a time that some stage really takes, so it ends exactly."""
    low, high = 0.0, math.inf
    best = _pack(pool, members, caps, math.inf)[0]
    if best is None:
        return None
    high = bottleneck_s(pool, members, best)
    while True:
        middle = (low + high) / 2
        counts, next_s = _pack(pool, members, caps, middle)
        if counts is not None:
            reached = bottleneck_s(pool, members, counts)
            if reached >= high:  # rounding alone
                return best
            best, high = counts, reached
        elif next_s >= high:
            return best
        else:
            # Nothing fits below next_s; does it fit at next_s?
            counts, _ = _pack(pool, members, caps, next_s)
            if counts is not None:
                return counts
            low = next_s


def _pack(
    pool: NodePool, members: Sequence[int], caps: list[int], limit_s: float
) -> tuple[list[int] | None, float]:
    """Give each member in turn all that fits below a limit: the counts, or the least limit that changes them."""
    first, counts, next_s, L, last = 0, [], math.inf, pool.num_layers, len(members) - 1
    for j, i in enumerate(members):
        node = pool.nodes[i]
        head_s = node.head_s if j == last else 0.0
        most = min(first + caps[j], L - (last - j))
        reach = node.prefix_s[first] + limit_s - head_s
        end = min(most, bisect_right(node.prefix_s, reach * (1 + 1e-12)) - 1)
        if end < most:
            next_s = min(next_s, node.layers_s(first, max(end, first) + 1) + head_s)
        if end <= first:
            # Others took so much that the next layer is too long for this one: less may have been more.
            return _reach(pool, members, caps, limit_s)
        counts.append(end - first)
        first = end
    return (counts, next_s) if first == L else (None, next_s)


def _reach(
    pool: NodePool, members: Sequence[int], caps: list[int], limit_s: float
) -> tuple[list[int] | None, float]:
    """The same exactly: which ends every member can reach. Of all starts, the last before an end is the best."""
    L, last, next_s = pool.num_layers, len(members) - 1, math.inf
    starts, came = [0], list[dict[int, int]]()
    for j, i in enumerate(members):
        node, begins = pool.nodes[i], dict[int, int]()
        head_s = node.head_s if j == last else 0.0
        at = 0
        for end in range(starts[0] + 1, L - (last - j) + 1):
            while at + 1 < len(starts) and starts[at + 1] < end:
                at += 1
            if end - starts[at] > caps[j]:
                continue
            time = node.layers_s(starts[at], end) + head_s
            if time <= limit_s * (1 + 1e-12):
                begins[end] = starts[at]
            else:
                next_s = min(next_s, time)
        if not begins:
            return None, next_s
        came.append(begins)
        starts = list(begins)
    if L not in came[-1]:
        return None, next_s
    counts, end = [], L
    for begins in reversed(came):
        counts.append(end - begins[end])
        end = begins[end]
    return counts[::-1], next_s


def stages_s(pool: NodePool, members: Sequence[int], counts: Sequence[int]) -> list[float]:
    """Return the time of each stage, the head with the last."""
    first, times = 0, []
    for i, count in zip(members, counts, strict=True):
        times.append(pool.nodes[i].layers_s(first, first + count))
        first += count
    times[-1] += pool.nodes[members[-1]].head_s
    return times


def bottleneck_s(pool: NodePool, members: Sequence[int], counts: Sequence[int]) -> float:
    """Return the time of the slowest stage."""
    return max(stages_s(pool, members, counts))
