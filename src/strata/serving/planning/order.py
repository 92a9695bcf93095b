"""The order of a pipeline's members: the cheapest ring of hops, the closing one counted."""

from __future__ import annotations

import math
from itertools import pairwise, permutations

from strata.serving.planning.pool import NodePool

EXACT_MEMBERS = 9
"""Up to so many members the ring is exact (dynamic programming over subsets)."""


def best_ring(pool: NodePool, members: list[int]) -> list[int]:
    """Return the members in the order of the cheapest ring found; where it is cut is the caller's choice."""
    k = len(members)
    if k < 3:
        return list(members)
    if k <= 4:
        rings = ([members[0], *rest] for rest in permutations(members[1:]))
        return min(rings, key=pool.cycle_s)
    if k <= EXACT_MEMBERS:
        return _subsets(pool, members)
    return _two_opt(pool, members) if k <= IMPROVED_MEMBERS else list(members)


IMPROVED_MEMBERS = 40
"""Longer rings stay as they are: the passes of 2-opt grow with the cube of the members."""
EXACT_INNER = 4
"""Up to so many members between two ends are tried in every order."""


def best_path(pool: NodePool, ring: list[int], first: int, last: int) -> list[int]:
    """Return the ring's members between two ends in the order of the least hops; many stay in the ring's."""
    at = ring.index(first)
    inner = [i for i in ring[at + 1 :] + ring[:at] if i != last]
    if inner and len(inner) <= EXACT_INNER and ring[at - 1] != last:
        hops = pool.hops
        return min(
            ([first, *between, last] for between in permutations(inner)),
            key=lambda path: sum(hops[a][b] for a, b in pairwise(path)),
        )
    return [first, *inner, last]


def _subsets(pool: NodePool, members: list[int]) -> list[int]:
    hops, start, rest = pool.hops, members[0], members[1:]
    n = len(rest)
    best = {(1 << j, j): (hops[start][rest[j]], -1) for j in range(n)}
    for visited in range(1, 1 << n):
        for j in range(n):
            if not visited >> j & 1 or visited == 1 << j:
                continue
            before = visited ^ 1 << j
            best[visited, j] = min(
                (best[before, i][0] + hops[rest[i]][rest[j]], i) for i in range(n) if before >> i & 1
            )
    visited = (1 << n) - 1
    at = min(range(n), key=lambda j: best[visited, j][0] + hops[rest[j]][start])
    ring = []
    while at >= 0:
        ring.append(rest[at])
        visited, at = visited ^ 1 << at, best[visited, at][1]
    return [start, *reversed(ring)]


def _two_opt(pool: NodePool, members: list[int]) -> list[int]:
    """Turn parts of the ring round, and move single members, while that makes it cheaper."""
    ring, cost, k = list(members), pool.cycle_s(members), len(members)
    improved = True
    while improved:
        improved = False
        for a in range(k):
            for b in range(k):
                if a < b:
                    other = ring[:a] + ring[a : b + 1][::-1] + ring[b + 1 :]
                elif a > b:
                    other = ring[:a] + ring[a + 1 :]
                    other.insert(b, ring[a])
                else:
                    continue
                new = pool.cycle_s(other)
                if new < cost - 1e-12:
                    ring, cost, improved = other, new, True
    return ring


def insertion(hops: list[list[float]], ring: list[int], node: int) -> tuple[float, int]:
    """Return the least that adding a node to a ring costs, and the position it then has."""
    if not ring:
        return 0.0, 0
    least, position, before = math.inf, 0, ring[-1]
    to = hops[node]
    for at, after in enumerate(ring):
        added = hops[before][node] + to[after] - hops[before][after]
        if added < least:
            least, position = added, at
        before = after
    return least, position
