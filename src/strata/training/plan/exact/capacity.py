"""How many samples units can work through at most within a time: tables that bound all sharings of a batch.

A gradient sum between units is hidden behind the last backward of the unit that hides the least, and shapes that
hide much (long stages) work slower than shapes of short ones. So shapes are tabulated by level: those that hide at
least so much. A plan is of the level of its least hidden time, and of no better shapes than the level's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.clock import Check, unlimited
from strata.simulate.collective import eta

GRID: Final = 480
STEP: Final = 1.01
"""Time limits at which samples are tabulated: 1 % apart over a range of 118."""

LEVELS: Final = 16
"""Levels of hidden time at most, each as many times the one before."""

CELLS: Final = 2**20
"""Units, levels and limits together at most: of very many units there are fewer levels."""


class ShapeRates(Protocol):
    """Some shapes of one kind of unit."""

    @property
    def hidden_s(self) -> Floats:
        """How much of a gradient sum each hides at most [shapes]."""

    @property
    def first_s(self) -> Floats:
        """The least time of one microbatch in each [shapes]."""

    @property
    def rate(self) -> float:
        """Samples a second in the best of them, at most."""

    def most_samples(self, limits_s: Floats) -> Floats:
        """Return the most samples within each time limit [shapes, limits]."""


@dataclass(frozen=True, slots=True)
class UnitCapacity:
    """What each kind of unit can do at most, in its best shape of each level; a kind's row may become closer.

    kind [U]: the row of each unit. limits_s [N]: time limits, rising. samples [K, levels, N]: within each limit.
    first_s [K, levels]: time of one microbatch, inf where a kind has no shape of the level. edges_s [levels]: a
    shape of the level hides at least so much. hides_s [levels]: the most that a plan of the level hides.
    """

    batch: int
    kind: Ints
    limits_s: Floats
    samples: Floats
    first_s: Floats
    edges_s: Floats
    hides_s: Floats

    @classmethod
    def of(cls, shapes: Sequence[ShapeRates], kind: Ints, *, batch: int, check: Check = unlimited) -> UnitCapacity:
        """Tabulate kinds of units given by their shapes; `kind` [U] is the kind of each unit."""
        rate = sum(rates.rate * units for rates, units in zip(shapes, np.bincount(kind), strict=True))
        limits: Floats = batch / (rate or 1.0) * STEP ** np.arange(GRID, dtype=np.float64)
        hidden = np.unique(np.concatenate([[0.0], *(rates.hidden_s for rates in shapes)]))
        edges = _edges(hidden, min(LEVELS, max(1, CELLS // (GRID * max(1, len(kind))))))
        edges_s = hidden[edges[:-1]]
        samples = np.zeros((len(shapes), len(edges_s), GRID))
        first = np.full(samples.shape[:2], np.inf)
        table = cls(batch, kind, limits, samples, first, edges_s, np.append(edges_s[1:], hidden[-1]))
        for row, rates in enumerate(shapes):
            check()
            table.put(row, rates)
        return table

    def put(self, row: int, rates: ShapeRates) -> None:
        """Let a kind have these shapes instead of those that it has: as many, or fewer and slower ones."""
        order = np.argsort(-rates.hidden_s, kind="stable")
        most = np.maximum.accumulate(rates.most_samples(self.limits_s)[order], axis=0)
        once = np.minimum.accumulate(rates.first_s[order])
        # Of the shapes that hide most so many are of each level.
        able = np.searchsorted(-rates.hidden_s[order], -self.edges_s, side="right")
        some = able > 0
        self.samples[row], self.first_s[row] = 0.0, np.inf
        self.samples[row, some], self.first_s[row, some] = most[able[some] - 1], once[able[some] - 1]

    def least_s(self, member: Bools) -> Floats:
        """Return the time before which groups [G, U] of units cannot do the batch together [G, levels]."""
        per_kind = member @ (self.kind[:, None] == np.arange(len(self.first_s))).astype(float)
        counts, back = np.unique(per_kind, axis=0, return_inverse=True)
        _, levels, limits = self.samples.shape
        together = (counts @ self.samples.reshape(len(self.samples), -1)).reshape(-1, levels, limits)
        takes_part = counts > 0
        first = np.where(takes_part[:, :, None], self.first_s, 0.0).max(axis=1)
        return np.asarray(np.maximum(self._until(together), first)[back.reshape(-1)])

    def least_of_any_s(self) -> Floats:
        """Return the same of the best D units at once, whichever they are, for D = 2..U [U - 1, levels]."""
        together = np.sort(self.samples[self.kind], axis=0)[::-1].cumsum(axis=0)[1:]
        first = np.sort(self.first_s[self.kind], axis=0)[1:]
        return np.asarray(np.maximum(self._until(together), first))

    def best_of_groups(self, member: Bools, sum_s: Floats, *, local_steps: int) -> tuple[float, float]:
        """Return the time limit and the hidden time of the level that the least bound of some groups is for."""
        work_s = self.least_s(member)
        level = int(np.argmin(self._levels_s(work_s, sum_s, local_steps).min(axis=0)))
        return float(work_s[:, level].min()) * STEP, float(self.edges_s[level])

    def _until(self, samples: Floats) -> Floats:
        """Return the time before which summed `samples` [..., N] are less than the batch."""
        enough = samples >= self.batch * (1 - 1e-12)
        first = np.where(enough[..., -1], enough.argmax(axis=-1), GRID)
        # The batch is done between two limits of the grid: the earlier one is the bound.
        return np.asarray(np.concatenate([[self.limits_s[0] / STEP], self.limits_s])[first])

    def step_s(self, work_s: Floats, sum_s: Floats, *, local_steps: int) -> Floats:
        """Return the bound on the step time [G] from the time of the work [G, levels] and of the sum [G].

        No more of the sum hides than there is work. A step that works longer is no shorter for what hides then.
        """
        return np.asarray(self._levels_s(work_s, sum_s, local_steps).min(axis=1))

    def best_of_any(self, sum_s: Floats, *, local_steps: int) -> tuple[float, float, Ints]:
        """Return the limit and the hidden time of the best D units whose bound is least, and the rows of those."""
        work_s = self.least_of_any_s()
        steps_s = self._levels_s(work_s, sum_s, local_steps)
        row, level = np.unravel_index(int(np.argmin(steps_s)), steps_s.shape)
        limit_s = float(work_s[row, level]) * STEP
        at = min(int(np.searchsorted(self.limits_s, limit_s)), GRID - 1)
        fastest = np.argsort(-self.samples[self.kind, level, at], kind="stable")[: row + 2]
        return limit_s, float(self.edges_s[level]), np.unique(self.kind[fastest])

    def _levels_s(self, work_s: Floats, sum_s: Floats, local_steps: int) -> Floats:
        exposed = np.maximum(0.0, sum_s[:, None] - np.minimum(self.hides_s, work_s)) / local_steps
        return np.asarray(work_s * eta(local_steps) + exposed)


def _edges(hidden: Floats, levels: int) -> Ints:
    """Return where levels begin among rising `hidden` times, the first of which is 0, and where the last ends."""
    if len(hidden) == 1:
        return np.array([0, 1])
    steps = np.geomspace(hidden[1], hidden[-1] * (1 + 1e-9), levels + 1)[1:-1]
    return np.unique(np.concatenate([[0], np.searchsorted(hidden, steps), [len(hidden)]]))
