"""Time of gradient sums, in a domain and across domains, and of DiLoCo's rarer ones.

The elementwise forms take numbers or arrays of any library. Letters: D members, g bytes summed, B bandwidth
[bytes/s], L one-way latency [s]. Links between pairs of members are taken as independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, permutations
from typing import Any, Final

import numpy as np

from strata.arrays import Floats, Ints

Elementwise = Any

# (H, eta): the author's assumption, fitted to nothing.
_TOKEN_PENALTY: Final = ((1, 1.0), (8, 1.005), (32, 1.02), (128, 1.06), (500, 1.10))

_EXACT_RING_MEMBERS: Final = 9  # 8! = 40 320 orders, a few milliseconds


def ring_s(
    size_bytes: Elementwise,
    *,
    members: Elementwise,
    bandwidth_bytes_per_s: Elementwise,
    latency_s: Elementwise,
) -> Elementwise:
    """Return 2 (D-1)/D g/B + 2 (D-1) L: a ring all-reduce whose slowest link has B, whose longest has L.

    A reduce-scatter and an all-gather, which take equally long (Thakur, Rabenseifner, Gropp 2005, §4.1).
    """
    half_s = (members - 1) * (size_bytes / members / bandwidth_bytes_per_s + latency_s)
    return 2 * half_s


def tensor_parallel_s(
    size_bytes: float | Floats,
    *,
    ranks: float | Ints,
    bandwidth_bytes_per_s: float | Floats,
    latency_s: float | Floats,
) -> Floats:
    """Return the time of one all-reduce between the devices of a tensor-parallel group, 0 for one device [...].

    The faster of a ring and of one exchange, in which every rank reads what all others hold and sums by itself,
    (D-1) g/B + L: a ring moves fewer bytes, the exchange waits once, as serving engines have it for the small
    messages of decoding (vLLM pull request 2192; the one-shot kernel of TensorRT-LLM).
    """
    ring = ring_s(size_bytes, members=ranks, bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=latency_s)
    exchange = (np.asarray(ranks) - 1) * size_bytes / bandwidth_bytes_per_s + latency_s
    return np.where(np.asarray(ranks) > 1, np.minimum(ring, exchange), 0.0)


@dataclass(frozen=True, slots=True)
class AllReduce:
    """One all-reduce between D domains: `algorithm` is none (D = 1), ring, direct or star.

    bytes_sent  [D, D]  bytes from member to member, row sends to column: what egress is billed on
    most_bytes_per_s  [D, D]  what the members' uplinks leave one pair, others using them meanwhile
    """

    algorithm: str
    time_s: float
    bytes_sent: Floats
    most_bytes_per_s: Floats


def best_all_reduce(
    size_bytes: float,
    bandwidth_bytes_per_s: Floats,
    latency_s: Floats,
    uplink_bytes_per_s: Floats | None = None,
) -> AllReduce:
    """Return the fastest of ring, direct and star between the D members of these [D, D] matrices.

    A missing link has bandwidth 0; the diagonal is not read. `uplink_bytes_per_s` [D] bounds what a member sends,
    and what it receives, over all its links at once: a ring uses it for one message at a time, direct exchange and
    the hub of a star for D - 1. `time_s` is inf where every algorithm lacks a link.
    """
    members = len(bandwidth_bytes_per_s)
    uplinks = np.full(members, math.inf) if uplink_bytes_per_s is None else uplink_bytes_per_s
    if members == 1:
        return AllReduce("none", 0.0, np.zeros((1, 1)), np.full((1, 1), math.inf))
    away = ~np.eye(members, dtype=bool)
    seconds_per_byte = np.zeros((members, members))
    np.divide(1.0, bandwidth_bytes_per_s, out=seconds_per_byte, where=away & (bandwidth_bytes_per_s > 0))
    seconds_per_byte[away & (bandwidth_bytes_per_s <= 0)] = math.inf
    latency = np.where(away, latency_s, 0.0)
    most = np.minimum(uplinks[:, None], uplinks)

    def within(limit: Floats) -> Floats:
        return np.maximum(seconds_per_byte, np.where(away, 1 / limit, 0.0))

    shared = most / (members - 1)
    options = [replace(_direct(size_bytes, within(shared), latency), most_bytes_per_s=shared)]
    star = _star(size_bytes, within(most), latency)
    if np.isfinite(uplinks).any():
        star = min((_around(size_bytes, hub, within, uplinks, latency) for hub in range(members)), key=_time)
    fastest = min(*options, star, key=_time)
    alone = within(most)
    if _ring_at_best_s(size_bytes, alone, latency) > fastest.time_s:
        return fastest  # the search for the best ring is what takes time here
    return min(replace(_ring(size_bytes, alone, latency), most_bytes_per_s=most), fastest, key=_time)


def _time(option: AllReduce) -> float:
    return option.time_s


def _around(
    size_bytes: float, hub: int, within: Callable[[Floats], Floats], uplinks: Floats, latency: Floats
) -> AllReduce:
    """Return the star around one hub, whose uplink all others share."""
    limit = uplinks.copy()
    limit[hub] /= len(uplinks) - 1
    limit = np.minimum(limit[:, None], limit)
    return replace(_star(size_bytes, within(limit), latency, hub=hub), most_bytes_per_s=limit)


def _ring_at_best_s(size_bytes: float, seconds_per_byte: Floats, latency: Floats) -> float:
    """Return what no ring can beat: every member sends over its best link, and receives over its best."""
    members, none = len(latency), np.diag(np.full(len(latency), math.inf))
    slowest, longest = (
        max(float((matrix + none).min(axis=0).max()), float((matrix + none).min(axis=1).max()))
        for matrix in (seconds_per_byte, latency)
    )
    # A hair less: rounding must not rule out a ring that is exactly as fast.
    return 2 * (members - 1) * (size_bytes / members * slowest + longest) * (1 - 1e-12)


def _ring(size_bytes: float, seconds_per_byte: Floats, latency: Floats) -> AllReduce:
    order, time_s = best_ring(size_bytes, seconds_per_byte, latency)
    members = len(order)
    sent = np.zeros((members, members))
    for here, there in pairwise((*order, order[0])):
        sent[here, there] = 2 * (members - 1) / members * size_bytes
    return AllReduce("ring", time_s, sent, np.full((members, members), math.inf))


def _direct(size_bytes: float, seconds_per_byte: Floats, latency: Floats) -> AllReduce:
    """2 [g / Σ_i min_j B_ij + max L]: member i sums the chunk g_i and sends it to all.

    Chunks in proportion to each member's slowest link, in or out, let all members end together.
    """
    slowest = np.maximum(seconds_per_byte, seconds_per_byte.T).max(axis=1)
    if not np.isfinite(slowest).all():
        return AllReduce("direct", math.inf, np.zeros_like(latency), np.zeros_like(latency))
    rate = 1 / np.maximum(slowest, 1e-30)  # a link that costs nothing carries all
    chunk = size_bytes * rate / rate.sum()
    sent = np.add.outer(chunk, chunk)
    np.fill_diagonal(sent, 0.0)
    time_s = 2 * float(np.max(chunk * slowest) + latency.max())
    return AllReduce("direct", time_s, sent, np.full_like(latency, math.inf))


def _star(size_bytes: float, seconds_per_byte: Floats, latency: Floats, *, hub: int | None = None) -> AllReduce:
    """All send everything to the hub, which sends the sum back: max_i (g/B_ih + L_ih), there and back."""
    message_s = size_bytes * seconds_per_byte + latency
    time_s = message_s.max(axis=0) + message_s.max(axis=1)
    hub = int(np.argmin(time_s)) if hub is None else hub
    sent = np.zeros_like(latency)
    sent[:, hub] = sent[hub, :] = size_bytes
    sent[hub, hub] = 0.0
    return AllReduce("star", float(time_s[hub]), sent, np.full_like(latency, math.inf))


def best_ring(size_bytes: float, seconds_per_byte: Floats, latency: Floats) -> tuple[tuple[int, ...], float]:
    """Return the order of members whose ring all-reduce is fastest, and its time [s].

    A bottleneck travelling-salesman problem: exact to 9 members, beyond that nearest neighbours from every
    start, improved by exchanging two members until nothing helps.
    """
    members = len(latency)

    def times(orders: Ints) -> Floats:
        after = np.roll(orders, -1, axis=1)
        slowest, longest = seconds_per_byte[orders, after].max(axis=1), latency[orders, after].max(axis=1)
        return np.asarray(2 * (members - 1) * (size_bytes / members * slowest + longest))

    if members <= _EXACT_RING_MEMBERS:
        orders = _all_orders(members)
        costs = times(orders)
    else:
        orders = _nearest_neighbours(size_bytes / members * seconds_per_byte + latency)
        costs = times(orders)
        improved = True
        while improved:
            best = orders[int(np.argmin(costs))]
            orders, reached = _exchanges(best), float(costs.min())
            costs = times(orders)  # the first of them is `best` itself
            improved = float(costs.min()) < reached
    choice = int(np.argmin(costs))
    return tuple(int(member) for member in orders[choice]), float(costs[choice])


@lru_cache(maxsize=_EXACT_RING_MEMBERS)
def _all_orders(members: int) -> Ints:
    return np.array([(0, *rest) for rest in permutations(range(1, members))])


def _nearest_neighbours(message_s: Floats) -> Ints:
    members = len(message_s)
    orders = []
    for start in range(members):
        order, left = [start], set(range(members)) - {start}
        while left:
            order.append(min(left, key=lambda member: (message_s[order[-1], member], member)))
            left.remove(order[-1])
        orders.append(order)
    return np.array(orders)


def _exchanges(order: Ints) -> Ints:
    left, right = np.triu_indices(len(order), k=1)
    swapped = np.tile(order, (len(left) + 1, 1))
    row = np.arange(1, len(left) + 1)
    swapped[row, left], swapped[row, right] = order[right], order[left]
    return swapped


def eta(local_steps: float) -> float:
    """Return how many times more tokens DiLoCo with H local steps needs for the same loss: **assumed**.

    Linear in log2 H between the points of a declared table, and on beyond its end, so that H never grows for
    free.
    """
    points, penalties = zip(*_TOKEN_PENALTY, strict=True)
    where = [math.log2(point) for point in points]
    x = math.log2(local_steps)
    end_slope = (penalties[-1] - penalties[-2]) / (where[-1] - where[-2])
    return float(np.interp(x, where, penalties)) + end_slope * max(0.0, x - where[-1])


def diloco_s(local_s: Elementwise, exposed_s: Elementwise, *, local_steps: int) -> Elementwise:
    """Return eta(H) T + T_exposed / H: the step time of DiLoCo (arXiv 2311.08105), its token penalty included.

    T is the step inside a domain, T_exposed what of the sum between domains nothing hides.
    """
    return local_s * eta(local_steps) + 1 / local_steps * exposed_s
