"""Where fractions of devices go: onto shared devices first, then onto begun nodes, then onto whole nodes.

Every pod of the gang takes as much of one device, so filling devices one pod after the other finds room for the
gang whenever there is room.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from strata.arrays import Floats, Ints
from strata.cluster.scheduling.host import NOTHING, PodRequests
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.scoring import W_TIDY, W_TIGHT, W_WORTH

_SLACK = 1e-9
_BEGUN = 0.5


class Spot(NamedTuple):
    """One pod's row and device of the row."""

    row: int
    device: int


class Spots(NamedTuple):
    """A gang's spots, the sum of their values, and how near they are."""

    spots: tuple[Spot, ...]
    value: float
    level: str


def fraction_values(index: Index, rows: Ints, *, memory_bytes: float, cores_share: float) -> Floats:
    """Return what one pod is worth on each device of some rows [rows, D]; -inf where it does not fit."""
    sizes = index.sizes[rows]
    return _values(index.free_bytes[rows], index.free_share[rows], sizes, memory_bytes, cores_share)


def _values(free_bytes: Floats, free_share: Floats, sizes: Floats, memory: float, share: float) -> Floats:
    there = free_share >= 0
    fits = there & (free_bytes >= memory * (1 - _SLACK)) & (free_share >= share - _SLACK) & (free_bytes > 0)
    is_fresh = there & (free_share >= 1 - _SLACK) & (free_bytes >= sizes * (1 - _SLACK))
    is_whole_node = np.all(is_fresh | ~there, axis=1, keepdims=True)
    tidy = np.where(is_fresh, np.where(is_whole_node, 0.0, _BEGUN), 1.0)
    tight = 1 - (free_bytes - memory) / sizes
    return np.where(fits, W_WORTH + W_TIDY * tidy + W_TIGHT * tight, -np.inf)


def place_fractions(
    index: Index,
    rows: Ints,
    *,
    memory_bytes: float,
    cores_share: float,
    pods: int,
    farthest: str = "any",
    requests: PodRequests = NOTHING,
) -> Spots | None:
    """Return spots for all pods within the farthest level, or None where they do not fit."""
    room = index.capacity(rows, requests)
    rows, room = rows[room > 0], room[room > 0]
    if not len(rows):
        return None
    if farthest == "any" or pods == 1:
        return _fill(index, rows, room, memory_bytes, cores_share, pods, farthest if pods > 1 else "node")
    group = index.groups[farthest][rows]
    candidates = (
        _fill(index, rows[group == g], room[group == g], memory_bytes, cores_share, pods, farthest)
        for g in np.unique(group)
    )
    return max((spots for spots in candidates if spots is not None), key=lambda spots: spots.value, default=None)


def _fill(
    index: Index, rows: Ints, room: Ints, memory: float, share: float, pods: int, level: str
) -> Spots | None:
    """room: for how many pods each row's node has capacity, whatever its devices."""
    room = room.copy()
    free_bytes, free_share, sizes = index.free_bytes[rows], index.free_share[rows], index.sizes[rows]
    value = _values(free_bytes, free_share, sizes, memory, share)
    spots, total = [], 0.0
    for _ in range(pods):
        row, device = np.unravel_index(np.argmax(value), value.shape)
        if value[row, device] == -np.inf:
            return None
        total += float(value[row, device])
        spots.append(Spot(int(rows[row]), int(device)))
        free_bytes[row, device] -= memory
        free_share[row, device] -= share
        row_slice = slice(int(row), int(row) + 1)
        value[row_slice] = _values(free_bytes[row_slice], free_share[row_slice], sizes[row_slice], memory, share)
        room[row] -= 1
        if room[row] == 0:
            value[row_slice] = -np.inf
    return Spots(tuple(spots), total, level)
