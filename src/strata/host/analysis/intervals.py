"""Stretches of time that do not overlap, and how much of another time lies within them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.arrays import Ints

PAIRS: Final = 2_000_000
"""Overlaps looked at in one go: bounds the memory of long times beside many short stretches."""


def within(start: Ints, length: Ints, begin: Ints, end: Ints) -> Ints:
    """Return how much of each time from `begin` to `end` lies within stretches, sorted and not overlapping."""
    if not len(start):
        return np.zeros(len(begin), np.int64)
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(length)])

    def covered(at: Ints) -> Ints:
        k = np.searchsorted(start, at, side="right") - 1
        last = np.maximum(k, 0)
        total: Ints = np.where(k < 0, 0, before[last] + np.minimum(at - start[last], length[last]))
        return total

    return covered(end) - covered(begin)


def union(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the stretches that any of some cover: their starts and lengths, sorted, not overlapping."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.concatenate([np.ones(min(len(start), 1), bool), start[1:] > end[:-1]]))
    last = np.concatenate([first[1:], np.array([len(end)], np.intp)])[: len(first)] - 1
    return start[first], end[last] - start[first]


def ranges(first: NDArray[np.intp], last: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the numbers from each `first` up to its `last`, without it, and of which of them each is."""
    count = np.maximum(last - first, 0)
    which = np.repeat(np.arange(len(first)), count)
    return np.arange(len(which)) + (first - np.cumsum(count) + count)[which], which


def overlaps(
    start: Ints, stop: Ints, begin: Ints, end: Ints
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], Ints]]:
    """Yield which times overlap which stretches (sorted, apart), and for how long, in bounded portions."""
    first = np.searchsorted(stop, begin, side="right")
    last = np.searchsorted(start, end, side="left")
    total = np.cumsum(np.maximum(last - first, 0))
    at = 0
    while at < len(begin):
        done = int(total[at - 1]) if at else 0
        to = max(int(np.searchsorted(total, done + PAIRS)), at + 1)
        stretch, which = ranges(first[at:to], last[at:to])
        which = which + at
        length = np.minimum(end[which], stop[stretch]) - np.maximum(begin[which], start[stretch])
        yield which, stretch, length
        at = to
