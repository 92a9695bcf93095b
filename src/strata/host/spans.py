"""Stretches of time that do not overlap, and how much of another time lies within them."""

from __future__ import annotations

import numpy as np

from strata.host.trace.events import Ints


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
