"""Exact min-max split of consecutive layers over stages of unequal speed, under memory caps.

For a given limit on the stage time, giving each stage as many layers as it may hold is optimal, because
what a stage may hold only shrinks with the layers it starts at (Pinar & Aykanat 2004, "Fast optimal load
balancing algorithms for 1D partitioning", §3: probe). The least limit is found by bisection over probes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

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
    best = _probe(sums, float("inf"), room)
    if best is None:
        return None
    low, high = _floor(prefixes), _slowest(sums, best)
    # Each probe either halves the interval or lands on the exact value of a split, so this ends quickly.
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        found = _probe(sums, middle, room)
        if found is None:
            low = middle
        else:
            best, high = found, _slowest(sums, found)
    return best


def least_shares(work: Floats) -> Floats:
    """Return one number W_i a row of `work` [N, L] such that Σ (time spent in row i) / W_i >= 1.

    However the L layers are handed out over the rows. Rows that differ by one factor get their sums; where
    factors differ from layer to layer, W_i is the least multiple of what every layer takes at its best.
    """
    best = work.min(axis=0)
    ratio = np.divide(work, best, out=np.full_like(work, np.inf), where=best != 0).min(axis=1)
    return np.asarray(best.sum() * np.where(np.isfinite(ratio), ratio, 0.0))


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


def _probe(sums: Sequence[list[float]], limit: float, room: Room | None) -> tuple[int, ...] | None:
    stages, layers = len(sums), len(sums[0]) - 1
    first, counts = 0, []
    for stage, prefix in enumerate(sums):
        most = bisect_right(prefix, prefix[first] + limit * (1 + 1e-12)) - 1 - first
        most = min(most, layers - (stages - 1 - stage) - first)
        if room is not None and most > 0:
            most = min(most, room(stage, first))
        if most < 1:
            return None
        counts.append(most)
        first += most
    return tuple(counts) if first == layers else None
