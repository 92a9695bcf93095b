"""Nodes in a fixed order into consecutive pipelines: the best cuts, by dynamic programming."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strata.serving.planning.evaluation import Ring

MOST_SPARE = 10


def best_cuts(
    evaluate: Callable[[list[int]], Ring | None],
    order: Sequence[int],
    *,
    rate_price: float,
    weight_price: float,
    longest: int,
    is_thrifty: bool = True,
) -> list[Ring]:
    """Return the pipelines of consecutive nodes that are worth the most; a node may be left out between them.

    Every run of at most `longest` nodes is split exactly: O(len(order) * longest) splits. A thrifty caller
    leaves out runs of more than twice the nodes that their start needs, or MOST_SPARE more.
    """
    n = len(order)
    best = [0.0] * (n + 1)
    last: list[Ring | None] = [None] * (n + 1)
    begins = [list[tuple[int, Ring, float]]() for _ in range(n + 1)]
    for start in range(n):
        shortest = 0
        for end in range(start + 1, min(start + longest, n) + 1):
            if is_thrifty and shortest and end - start > shortest + min(shortest + 1, MOST_SPARE):
                break
            ring = evaluate(list(order[start:end]))
            if ring is None:
                continue
            shortest = shortest or end - start
            begins[end].append((start, ring, ring.rate * rate_price - ring.weight * weight_price))
    came = [0] * (n + 1)
    for end in range(1, n + 1):
        best[end], came[end] = best[end - 1], end - 1
        for start, ring, value in begins[end]:
            if best[start] + value > best[end]:
                best[end], last[end], came[end] = best[start] + value, ring, start
    rings, end = [], n
    while end > 0:
        ring = last[end]
        if ring is not None:
            rings.append(ring)
        end = came[end]
    return rings[::-1]
