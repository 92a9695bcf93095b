"""Bounded structures, handed out best first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from strata.arrays import Ints
from strata.evaluation.published_benchmarks.case_file import Array
from strata.evaluation.published_benchmarks.search.structures import Structures

FIRST_CHUNK: Final = 64
"""Structures split before the first look at the best plan."""
MAX_PROMISES: Final = 1500
"""Structures of one number of kinds that are split at most; the most promising ones."""


class Promise(NamedTuple):
    """A structure with its replicas, and what its objective cannot be below."""

    bound: float
    table: int
    kinds: Ints
    counts: Ints
    replicas: int


class Promises:
    """Bounded structures of several tables and numbers of replicas, handed out best first."""

    def __init__(self) -> None:
        self._blocks: list[tuple[int, Structures, int, Ints]] = []
        self._bounds: list[Array] = []

    def add(self, table: int, structures: Structures, replicas: int, rows: Ints, bounds: Array) -> None:
        """Add some rows of structures, at one number of replicas."""
        if len(rows):
            self._blocks.append((table, structures, replicas, rows))
            self._bounds.append(bounds)

    @property
    def least(self) -> float:
        """Return the least of all bounds; infinite if there is none."""
        return min((float(bounds.min()) for bounds in self._bounds), default=math.inf)

    def chunks(self) -> Iterator[list[Promise]]:
        """Yield promises in the order of their bounds: few at first, more at a time once the best plan is good."""
        if not self._bounds:
            return
        bounds = np.concatenate(self._bounds)
        ends = np.cumsum([len(block) for block in self._bounds])
        order = np.argsort(bounds, kind="stable")
        start, size = 0, FIRST_CHUNK
        while start < min(len(order), MAX_PROMISES):
            yield [self._promise(int(i), float(bounds[i]), ends) for i in order[start : start + size]]
            start, size = start + size, size * 2

    def _promise(self, index: int, bound: float, ends: Ints) -> Promise:
        block = int(np.searchsorted(ends, index, side="right"))
        table, structures, replicas, rows = self._blocks[block]
        row = rows[index - (int(ends[block - 1]) if block else 0)]
        return Promise(bound, table, structures.kind[:, row], structures.count[:, row], replicas)
