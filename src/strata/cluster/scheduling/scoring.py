"""The score of a placement, in [0, 1]: what the router maximises, and what brute force is measured by.

score = W_NEAR·nearness + W_WORTH·worth + W_TIDY·tidy + W_TIGHT·tight + W_FIT·fit, each a mean over the pods:

* nearness: 1 in one node, 2/3 in one RDMA group, 1/3 in one rack, 0 across racks; 1 where the job does not mind
* worth: of the devices of a pod together (`shape.py`: slowest pair, whole boards, one NUMA node)
* tidy: 1 for a pod that uses up a node others have begun, 0 for the one that breaks open a whole node
* tight: how full the node is afterwards
* fit: how much of the devices was asked for, so that a big card is not given to a small job

A fraction's tidy is 1 on a device that is shared already, 1/2 on a fresh device of a begun node, 0 on a
whole node's; its tight is how full the device is afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.cluster.scheduling.index import Index, RowKind

W_NEAR: Final = 0.40
W_WORTH: Final = 0.25
W_TIDY: Final = 0.20
W_TIGHT: Final = 0.05
W_FIT: Final = 0.10

NEARNESS: Final[Mapping[str, float]] = {"node": 1.0, "rdma": 2 / 3, "rack": 1 / 3, "any": 0.0}
LEVELS: Final = tuple(NEARNESS)
"""From the nearest to the farthest."""

LEVEL_BYTES_PER_S: Final[Mapping[str, float]] = {"rdma": 25e9, "rack": 12.5e9, "any": 3e9}
"""One direction between devices of different nodes, by what the nodes share; assumed."""


def values(index: Index, count: int) -> Floats:
    """Return what k pods of `count` whole devices are worth on a row of each kind, [kinds, most pods + 1].

    Column k is W_WORTH·Σworth + W_TIDY·Σtidy + W_TIGHT·Σtight over the k pods; -inf where k do not fit.
    """
    kinds, width = index.kinds, index.free_bytes.shape[1] // count + 1
    known = kinds.tables.get(count)
    if known is None or len(known) < len(kinds.kinds):
        old = np.empty((0, width)) if known is None else known
        new = [_value(index, kind, count, width) for kind in kinds.kinds[len(old) :]]
        known = kinds.tables[count] = np.vstack([old, *new])
    return known


def _value(index: Index, kind: RowKind, count: int, width: int) -> Floats:
    shape, free, total = index.kinds.shapes[kind.shape], kind.free.bit_count(), kind.usable.bit_count()
    value = np.full(width, -np.inf)
    value[0] = 0.0
    is_whole = kind.free == kind.usable
    for pods in range(1, free // count + 1):
        cut = shape.cut(kind.free, count, pods)
        assert cut is not None, "so many pods fit"
        tidy = pods - is_whole
        tight = pods * (1 - (free - pods * count) / total)
        value[pods] = W_WORTH * cut.worth + W_TIDY * tidy + W_TIGHT * tight
    return value
