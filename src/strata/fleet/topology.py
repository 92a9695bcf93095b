"""Which devices of one node to take together: the subset whose slowest pair is fastest.

A ring or a tree over some devices runs at the pace of its slowest hop, so the worst pair counts first and the
sum over pairs only breaks ties. Letters below: n devices of the node, c of them asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats

_ENUMERABLE: Final = 50_000
"""Subsets few enough to look at all at once (16 devices have at most 12,870 of one size): about 15 ms."""

_MAX_VISITS: Final = 20_000
"""Search steps, per search, past which a larger node gets a good subset instead of a proven best one."""


@dataclass(frozen=True, slots=True)
class Subset:
    """Devices to take together, ascending.

    worst_pair_bandwidth: bytes/s between the two that are furthest apart; inf for a single device.
    """

    devices: tuple[int, ...]
    worst_pair_bandwidth: float


def best_subset(bandwidth: Floats, free: Sequence[int], count: int) -> Subset | None:
    """Return the best `count` of the `free` devices, or None where there are not so many.

    `bandwidth[i, j]` is what two devices of the node share [bytes/s], shape [n, n], symmetric; the diagonal is
    not looked at. Best is: worst pair fastest, then largest sum over pairs, then lowest indices. Exact for nodes
    of up to 16 devices; in larger ones a search that becomes too long ends with a good subset.
    """
    assert count > 0, "a subset has at least one device"
    assert np.array_equal(bandwidth, bandwidth.T), "bandwidth between two devices has one value"
    devices = np.unique(np.asarray(free, dtype=int))
    if count > len(devices):
        return None
    if count == 1:
        return Subset((int(devices[0]),), math.inf)
    among = bandwidth[np.ix_(devices, devices)]
    chosen = (_enumerate if math.comb(len(devices), count) <= _ENUMERABLE else _search)(among, count)
    pairs = among[np.ix_(chosen, chosen)][np.triu_indices(count, 1)]
    return Subset(tuple(int(devices[i]) for i in chosen), float(pairs.min()))


def _enumerate(bandwidth: Floats, count: int) -> list[int]:
    subsets = np.array(list(combinations(range(len(bandwidth)), count)))  # [subsets, c], lowest indices first
    worst, total = np.full(len(subsets), np.inf), np.zeros(len(subsets))
    for i, j in combinations(range(count), 2):
        pair = bandwidth[subsets[:, i], subsets[:, j]]
        worst = np.minimum(worst, pair)
        total += pair
    best = np.flatnonzero(worst == worst.max())
    return [int(device) for device in subsets[best[np.argmax(total[best])]]]


def _search(bandwidth: Floats, count: int) -> list[int]:
    """Find the highest level at which `count` devices are all joined, then the best sum among those."""
    levels = np.unique(bandwidth[np.triu_indices(len(bandwidth), 1)])
    # At the lowest level everything is joined: a clique is known from the start.
    low, high, clique = 0, len(levels) - 1, list(range(count))
    while low < high:
        middle = (low + high + 1) // 2
        members = _clique(_neighbours(bandwidth >= levels[middle]), count)
        if members is None:
            high = middle - 1
        else:
            low, clique = middle, members
    joined = np.where(bandwidth >= levels[low], bandwidth, -np.inf)
    np.fill_diagonal(joined, -np.inf)
    return _heaviest(joined, clique)


def _neighbours(joined: Bools) -> list[int]:
    """Return the neighbours of each device as the bits of an integer."""
    return [sum(1 << int(j) for j in np.flatnonzero(row) if j != i) for i, row in enumerate(joined)]


def _clique(neighbours: list[int], count: int) -> list[int] | None:
    """Return `count` devices all joined to each other, or None where the search finds none."""
    visits = 0

    def extend(chosen: list[int], candidates: int) -> list[int] | None:
        nonlocal visits
        if len(chosen) == count:
            return chosen
        while len(chosen) + candidates.bit_count() >= count and visits < _MAX_VISITS:
            visits += 1
            lowest = candidates & -candidates
            device = lowest.bit_length() - 1
            candidates ^= lowest
            if clique := extend([*chosen, device], candidates & neighbours[device]):
                return clique
        return None

    return extend([], (1 << len(neighbours)) - 1)


def _heaviest(joined: Floats, clique: list[int]) -> list[int]:
    """Return the clique of the same size with the largest sum, by branch and bound.

    `joined` is the bandwidth, -inf where a pair is too slow.
    """
    count, visits = len(clique), 0
    starts = [clique, *(_greedy(joined, first, count) for first in range(len(joined)))]
    best_total, best = max(((_total(joined, start), start) for start in starts), key=lambda pair: pair[0])

    def extend(chosen: list[int], candidates: list[int], total: float) -> None:
        nonlocal visits, best, best_total
        missing = count - len(chosen)
        if missing == 0:
            if total > best_total or (total == best_total and chosen < best):
                best, best_total = chosen, total
            return
        for position in range(len(candidates) - missing + 1):
            if visits >= _MAX_VISITS:
                return
            visits += 1
            device, rest = candidates[position], candidates[position:]
            grown = [*chosen, device]
            bound = total + _bound(joined, chosen, rest, missing)
            # Later rounds only leave more devices out of `rest`, so what this bound rules out stays ruled out.
            if bound < best_total or (bound == best_total and grown > best[: len(grown)]):
                return
            following = [other for other in rest[1:] if joined[device, other] > -np.inf]
            extend(grown, following, total + float(joined[device, chosen].sum()))

    extend([], list(range(len(joined))), 0.0)
    return best


def _total(joined: Floats, chosen: list[int]) -> float:
    return float(joined[np.ix_(chosen, chosen)][np.triu_indices(len(chosen), 1)].sum())


def _greedy(joined: Floats, first: int, count: int) -> list[int]:
    """Return `first` and what then adds most each time; its total is -inf where that leads nowhere."""
    chosen, gain = [first], joined[first].copy()
    while len(chosen) < count:
        chosen.append(int(np.argmax(gain)))
        gain += joined[chosen[-1]]  # -inf on the diagonal: a device is taken once
    return sorted(chosen)


def _bound(joined: Floats, chosen: list[int], candidates: list[int], missing: int) -> float:
    """Return what `missing` of the candidates add at most: links to `chosen` and half of their fastest others."""
    fastest = np.sort(joined[np.ix_(candidates, candidates)], axis=1)[:, len(candidates) - missing + 1 :]
    promise = joined[np.ix_(candidates, chosen)].sum(axis=1) + fastest.sum(axis=1) / 2
    return float(np.sort(promise)[len(candidates) - missing :].sum())
