"""How many layers a stage must recompute in full to fit: the least number of its first ones, for any run of them.

Recomputing layers a..a+k frees in_flight × Σ (activations - inputs) of them, which only grows with k, so the least
k is where the sums of what is freed first reach what is too much.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

import numpy as np

from strata.arrays import Ints
from strata.simulate.memory import FIXED_BYTES, LayerRuns, StageShape, kept_bytes
from strata.workload.job import Recompute, TrainingJob

NEVER: int = 1 << 14
"""More layers than a stage has: the run does not fit, whatever is recomputed."""

ROUNDING = 1 + 1e-12
"""What is too much counts as a little more, so that what is found fits by any order of sums."""


SLACK = 1 + 1e-6
"""What rounding could make of a room: far more than it does."""


class LeastRecomputed:
    """The least layers to recompute, for stages of one shape, whatever they have in flight."""

    def __init__(self, job: TrainingJob, shape: StageShape) -> None:
        assert shape.recompute is Recompute.NONE, "what is not recomputed otherwise may be so in full"
        assert (job.layers.activation_bytes >= job.layers.checkpoint_bytes).all(), "recomputing frees memory"
        self._plain = LayerRuns(job, shape)
        self._full = LayerRuns(job, replace(shape, recompute=Recompute.FULL))
        freed = (job.layers.activation_bytes - kept_bytes(job.layers, Recompute.FULL)) * shape.samples
        self._freed = np.concatenate([[0.0], np.cumsum(freed * (1 - shape.activation_offload))])
        self._freed_list = self._freed.tolist()
        self._is_run = np.triu(np.ones((len(self._freed), len(self._freed)), dtype=bool), 1)

    def counts(self, in_flight: float, limit_bytes: float) -> Ints:
        """Return the least layers of the runs from a row to a column [L + 1, L + 1], NEVER where none do; 0 where
        there are no layers."""
        room, kept = limit_bytes - FIXED_BYTES, in_flight * self._plain.kept
        is_over = self._is_run & (self._plain.most + kept > room)
        counts = np.where(is_over, NEVER, 0)
        # Of most runs of many layers it is plain that they do not fit.
        could_fit = self._full.most + in_flight * self._full.kept <= room * SLACK
        runs = first, last = np.nonzero(is_over & could_fit)
        wanted = self._freed[first] + (self._full.most[runs] + kept[runs] - room) * (ROUNDING / in_flight)
        least = np.searchsorted(self._freed, wanted) - first
        counts[runs] = np.where(least <= last - first, np.maximum(least, 1), NEVER)
        return counts

    def count(self, first: int, last: int, in_flight: float, limit_bytes: float) -> int:
        """Return the same of the layers from `first` on that are before `last`."""
        room, kept = limit_bytes - FIXED_BYTES, in_flight * float(self._plain.kept[first, last])
        if float(self._plain.most[first, last]) + kept <= room:
            return 0
        over = float(self._full.most[first, last]) + kept - room
        count = bisect_left(self._freed_list, self._freed_list[first] + over * (ROUNDING / in_flight)) - first
        return max(count, 1) if count <= last - first else NEVER
