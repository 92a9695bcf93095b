"""Exact min-max split of consecutive layers over stages of unequal speed, under memory caps.

For a given limit on the stage time, giving each stage as many layers as it may hold is optimal, because
what a stage may hold only shrinks with the layers it starts at (Pinar & Aykanat 2004, "Fast optimal load
balancing algorithms for 1D partitioning", §3: probe). The least limit is found by bisection over probes. Every
stage needs a layer, so where a weak stage would be left without one, all places to cut are searched.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from strata.arrays import Floats
from strata.simulate.layer_shares import least_shares

Room = Callable[[int, int], int]
"""room(stage, first_layer): the most layers from there on that the stage can hold in memory."""


def split(prefixes: Sequence[Floats], room: Room | None = None) -> tuple[int, ...] | None:
    """Return the number of layers of each stage that minimises the slowest stage, or None if none fits.

    prefixes: per stage, prefix sums [L + 1] of the layers' times on that stage. Every stage gets at least
    one layer. Among optimal splits the earlier stages are fuller, which shortens the pipeline's drain.
    """
    stages, layers = len(prefixes), len(prefixes[0]) - 1
    if stages > layers:
        return None
    lists = {id(prefix): prefix.tolist() for prefix in prefixes}
    sums = [lists[id(prefix)] for prefix in prefixes]
    best, _ = _probe(sums, float("inf"), room)
    if best is None:
        return None
    low, high = _floor(prefixes), _slowest(sums, best)
    # A probe lands on the exact value of a split, or tells the next value that could be one: this ends quickly.
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        candidate, possible = _probe(sums, middle, room)
        if candidate is None:
            low = max(middle, possible)
        else:
            best, high = candidate, _slowest(sums, candidate)
    return best


def _floor(prefixes: Sequence[Floats]) -> float:
    """Return a bound below every split: all work shared by all stages at their own speed."""
    kinds = {id(prefix): prefix for prefix in prefixes}
    shares = dict(zip(kinds, least_shares(np.diff(list(kinds.values()))), strict=True))
    return float(1.0 / sum(1.0 / max(shares[id(prefix)], 1e-300) for prefix in prefixes))


def _slowest(sums: Sequence[list[float]], counts: Sequence[int]) -> float:
    first, slowest = 0, 0.0
    for prefix, count in zip(sums, counts, strict=True):
        slowest = max(slowest, prefix[first + count] - prefix[first])
        first += count
    return slowest


def _probe(sums: Sequence[list[float]], limit: float, room: Room | None) -> tuple[tuple[int, ...] | None, float]:
    """Return the fullest split whose stages take at most `limit`, or None and the least limit that may do."""
    stages, layers = len(sums), len(sums[0]) - 1
    slack, possible = limit * (1 + 1e-12), float("inf")

    def end(stage: int, first: int) -> int:
        nonlocal possible
        prefix = sums[stage]
        last = bisect_right(prefix, prefix[first] + slack) - 1
        if last < layers:
            possible = min(possible, prefix[last + 1] - prefix[first])
        last = min(last, layers - (stages - 1 - stage))
        return min(last, first + room(stage, first)) if room is not None and last > first else last

    first, counts = 0, []
    for stage in range(stages):
        last = end(stage, first)
        if last <= first:
            # A weaker stage cannot take the layer it meets; a later one may, if those before it take fewer.
            later = any(end(other, first) > first for other in range(stage + 1, stages))
            return _search(stages, layers, end) if later else None, possible
        counts.append(last - first)
        first = last
    return (tuple(counts) if first == layers else None), possible


def _search(stages: int, layers: int, end: Callable[[int, int], int]) -> tuple[int, ...] | None:
    """Return a split whose stage i ends at most at end(i, first), the earlier stages fuller, or None."""
    reached = [{0}]
    ends: list[dict[int, int]] = []
    for stage in range(stages):
        ends.append({first: end(stage, first) for first in reached[-1]})
        reached.append({last for first, most in ends[-1].items() for last in range(first + 1, most + 1)})
    if layers not in reached[-1]:
        return None
    cuts = [layers]
    for most in reversed(ends):
        cuts.append(max(first for first, last in most.items() if first < cuts[-1] <= last))
    return tuple(b - a for a, b in pairwise(reversed(cuts)))
