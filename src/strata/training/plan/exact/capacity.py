"""How many samples units can work through at most within a time: tables that bound all sharings of a batch.

A gradient sum between units is hidden behind the last backward of the unit that hides the least, and shapes that
hide much (long stages) work slower than shapes of short ones. So shapes are tabulated by level: those that hide at
least so much. A plan is of the level of its least hidden time, and of no better shapes than the level's.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.simulate.collective import eta
from strata.training.plan.exact.unit import Inner

GRID: Final = 480
STEP: Final = 1.01
"""Time limits at which samples are tabulated: 1 % apart over a range of 118."""

LEVELS: Final = 16
"""Levels of hidden time at most, each as many times the one before."""

CELLS: Final = 2**20
"""Units, levels and limits together at most: of very many units there are fewer levels."""


@dataclass(frozen=True, slots=True)
class UnitCapacity:
    """What each kind of unit can do at most, in its best shape of each level.

    kind [U]: the row of each unit. limits_s [N]: time limits, rising. samples [K, levels, N]: within each limit.
    first_s [K, levels]: time of one microbatch, inf where a kind has no shape of the level.
    hides_s [levels]: the most that a plan of the level hides.
    """

    batch: int
    kind: Ints
    limits_s: Floats
    samples: Floats
    first_s: Floats
    hides_s: Floats

    @classmethod
    def of(cls, units: Sequence[Sequence[Inner]], kinds: Sequence[Hashable], *, batch: int) -> UnitCapacity:
        """Tabulate units given by their shapes; those of equal `kinds` have like shapes."""
        rows: dict[Hashable, int] = {}
        kind = np.array([rows.setdefault(key, len(rows)) for key in kinds], dtype=np.int64)
        shapes = [units[int(np.argmax(kind == row))] for row in range(len(rows))]
        rate = sum(max((way.samples / way.period_s for way in ways), default=0.0) for ways in units)
        limits: Floats = batch / (rate or 1.0) * STEP ** np.arange(GRID, dtype=np.float64)
        hidden = np.unique([0.0, *(way.hidden_s for ways in shapes for way in ways)])
        edges = _edges(hidden, min(LEVELS, max(1, CELLS // (GRID * max(1, len(units))))))
        samples = np.zeros((len(shapes), len(edges) - 1, GRID))
        first = np.full(samples.shape[:2], np.inf)
        for row, ways in enumerate(shapes):
            for way in ways:
                most, once = way.most_samples(limits), way.least_s(1)
                for level in np.flatnonzero(hidden[edges[:-1]] <= way.hidden_s):
                    samples[row, level] = np.maximum(samples[row, level], most)
                    first[row, level] = min(first[row, level], once)
        return cls(batch, kind, limits, samples, first, hidden[edges[1:] - 1])

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

    def _until(self, samples: Floats) -> Floats:
        """Return the time before which summed `samples` [..., N] are less than the batch."""
        enough = samples >= self.batch * (1 - 1e-12)
        first = np.where(enough[..., -1], enough.argmax(axis=-1), GRID)
        # The batch is done between two limits of the grid: the earlier one is the bound.
        return np.asarray(np.concatenate([[self.limits_s[0] / STEP], self.limits_s])[first])

    def step_s(self, work_s: Floats, sum_s: Floats, *, local_steps: int) -> Floats:
        """Return the bound on the step time [G] from the time of the work [G, levels] and of the sum [G]."""
        exposed = np.maximum(0.0, sum_s[:, None] - self.hides_s) / local_steps
        return np.asarray((work_s * eta(local_steps) + exposed).min(axis=1))


def _edges(hidden: Floats, levels: int) -> Ints:
    """Return where levels begin among rising `hidden` times, the first of which is 0, and where the last ends."""
    if len(hidden) == 1:
        return np.array([0, 1])
    steps = np.geomspace(hidden[1], hidden[-1] * (1 + 1e-9), levels + 1)[1:-1]
    return np.unique(np.concatenate([[0], np.searchsorted(hidden, steps), [len(hidden)]]))
