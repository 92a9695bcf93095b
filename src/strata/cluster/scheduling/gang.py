"""Where a gang of whole devices goes: the best rows of one model, level by level.

Within a group of rows the best split of P pods is found exactly, by dynamic programming over the rows that can
matter: a best answer uses at most P rows, so for each number k of pods on one row only the P rows best at k count.
Of more groups than `_MOST_GROUPS` those with the best bound are looked at.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from strata.arrays import Floats, Ints
from strata.cluster.scheduling.host import NOTHING, PodRequests
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.scoring import LEVELS, NEARNESS, W_NEAR, values

_MOST_GROUPS: Final = 16
_MOST_EXACT: Final = 256
"""Pods split exactly; of a larger gang the rest fills rows whole, the best per pod first."""


class GangSplit(NamedTuple):
    """How many pods each row gets, the sum of their values, and how near they are."""

    pods: tuple[tuple[int, int], ...]
    value: float
    level: str


def split_gang(
    index: Index,
    rows: Ints,
    *,
    count: int,
    pods: int,
    farthest: str = "any",
    does_mind: bool = True,
    requests: PodRequests = NOTHING,
) -> GangSplit | None:
    """Return the best split of `pods` pods of `count` devices over `rows`, or None where they do not fit.

    farthest: the level the gang must stay within. does_mind: nearness counts. requests: of each pod, of its node.
    """
    value = values(index, count)[index.kind[rows]]  # [rows, k]
    fits = value.shape[1] > 1
    capacity = index.capacity(rows, requests)
    able = np.flatnonzero((value[:, 1] > -np.inf) & (capacity > 0)) if fits else np.empty(0, dtype=np.int64)
    if not len(able):
        return None
    rows, value, capacity = rows[able], value[able], capacity[able]
    if pods == 1:
        best = int(np.argmax(value[:, 1]))
        return GangSplit(((int(rows[best]), 1),), float(value[best, 1]), "node")
    for k in range(2, value.shape[1]):
        value[capacity < k, k] = -np.inf
    levels = LEVELS[: LEVELS.index(farthest) + 1] if does_mind or farthest != "any" else ("any",)
    best_pod = float((value[:, 1:] / np.arange(1, value.shape[1])).max())
    best_split: GangSplit | None = None
    best_score = -np.inf
    for level in levels:
        near = W_NEAR * (NEARNESS[level] if does_mind else 1.0)
        if near + best_pod <= best_score:
            break
        split = _at(index, rows, value, pods=pods, level=level)
        if split is not None and near + split.value / pods > best_score + 1e-12:
            best_split, best_score = split, near + split.value / pods
    return best_split


def _at(index: Index, rows: Ints, value: Floats, *, pods: int, level: str) -> GangSplit | None:
    if level == "node":
        if value.shape[1] <= pods:
            return None
        best = int(np.argmax(value[:, pods]))
        worth = float(value[best, pods])
        return GangSplit(((int(rows[best]), pods),), worth, level) if worth > -np.inf else None
    room = np.isfinite(value[:, 1:]).sum(axis=1)
    if level == "any":
        if room.sum() < pods:
            return None
        return _within(rows, value, pods, level)
    group = index.groups[level][rows]
    per_group = np.bincount(group, weights=room)
    candidates = np.flatnonzero(per_group >= pods)
    if not len(candidates):
        return None
    bound = np.full(len(per_group), -np.inf)
    np.maximum.at(bound, group, (value[:, 1:] / np.arange(1, value.shape[1])).max(axis=1))
    # Of groups that promise as much, the one with the least room is filled first.
    order = candidates[np.lexsort((per_group[candidates], -bound[candidates]))]
    best_split: GangSplit | None = None
    for number in order[:_MOST_GROUPS]:
        if best_split is not None and best_split.value >= pods * bound[number] - 1e-12:
            break
        of_group = np.flatnonzero(group == number)
        split = _within(rows[of_group], value[of_group], pods, level)
        if best_split is None or split.value > best_split.value + 1e-12:
            best_split = split
    return best_split


def _within(rows: Ints, value: Floats, pods: int, level: str) -> GangSplit:
    """Return the best split over some rows that have room for all pods."""
    if pods > _MOST_EXACT:
        return _by_rows(rows, value, pods, level)
    chosen = _that_matter(value, pods)
    value = value[chosen, : pods + 1]
    most = value.shape[1] - 1
    best = np.full(pods + 1, -np.inf)
    best[0] = 0.0
    taken = np.zeros((len(chosen), pods + 1), dtype=np.int16)
    for position in range(len(chosen)):
        grown = best.copy()
        for k in range(1, most + 1):
            worth = value[position, k]
            if worth == -np.inf:
                break
            shifted = best[: pods + 1 - k] + worth
            better = shifted > grown[k:] + 1e-12
            grown[k:][better] = shifted[better]
            taken[position, k:][better] = k
        best = grown
    left, split = pods, []
    for position in range(len(chosen) - 1, -1, -1):
        if k := int(taken[position, left]):
            split.append((int(rows[chosen[position]]), k))
            left -= k
    assert left == 0, "the rows have room for all pods"
    return GangSplit(tuple(sorted(split)), float(best[pods]), level)


def _by_rows(rows: Ints, value: Floats, pods: int, level: str) -> GangSplit:
    room = np.isfinite(value[:, 1:]).sum(axis=1)
    full = value[np.arange(len(rows)), room]
    order = np.argsort(-full / room, kind="stable")
    filled = int(np.searchsorted(np.cumsum(room[order]), pods - _MOST_EXACT)) + 1
    first, rest = order[:filled], np.sort(order[filled:])
    last = _within(rows[rest], value[rest], pods - int(room[first].sum()), level)
    split = [(int(rows[position]), int(room[position])) for position in first]
    return GangSplit(tuple(sorted([*split, *last.pods])), float(full[first].sum()) + last.value, level)


def _that_matter(value: Floats, pods: int) -> Ints:
    if len(value) <= pods:
        return np.arange(len(value))
    marked = np.zeros(len(value), dtype=bool)
    for k in range(1, min(value.shape[1] - 1, pods) + 1):
        marked[np.argpartition(-value[:, k], pods - 1)[:pods]] = True
    return np.flatnonzero(marked)
