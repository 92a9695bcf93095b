"""Fitting the constants of `simulate.calibrated` to measured runs, and how well a fit foretells unseen runs.

Two constants need no optimiser: all pairs on a grid are scored for every run once, after which a fit to any
subset of the runs is a sum and an argmin. Leaving out each run in turn is therefore exact and takes no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.errors import UsageError
from strata.evaluation.published_benchmarks.accuracy import profiled_step
from strata.evaluation.published_benchmarks.calibrated import SoftwareConstants, pipelines_s
from strata.evaluation.published_benchmarks.case_file import CaseFile

Array = Floats

OVERHEADS_S: Final[Array] = np.linspace(0.0, 150e-3, 151)
HANDOVERS_S_PER_BYTE: Final[Array] = np.linspace(0.0, 60e-12, 61)

OUTLIER: Final = 0.05
"""Log errors well past this count by their size, not their square: one odd run must not set the constants."""


@dataclass(frozen=True)
class FitTable:
    """Log errors [N, H, O] of N measured runs for all pairs of H handovers and O overheads."""

    ids: tuple[str, ...]
    log_errors: Array
    handovers_s_per_byte: Array
    overheads_s: Array

    def fit(self, leave_out: Sequence[str] = ()) -> tuple[SoftwareConstants, dict[str, float]]:
        """Return the best constants for all runs but `leave_out`, and every run's relative error with them."""
        kept = np.array([name not in leave_out for name in self.ids], dtype=bool)
        loss = _robust(self.log_errors[kept]).sum(axis=0)
        h, o = np.unravel_index(int(loss.argmin()), loss.shape)
        errors = np.expm1(self.log_errors[:, h, o])
        best = SoftwareConstants(float(self.overheads_s[o]), float(self.handovers_s_per_byte[h]))
        return best, dict(zip(self.ids, errors.tolist(), strict=True))

    def leave_one_out(self) -> dict[str, float]:
        """Return each run's error under constants fitted without it; empty where that leaves no run."""
        return self._unseen([[name] for name in self.ids])

    def leave_one_set_out(self) -> dict[str, float]:
        """Return each run's error under constants fitted without its whole set; empty where that leaves no run."""
        sets = dict.fromkeys(name.rpartition("/")[0] for name in self.ids)
        return self._unseen(
            [[name for name in self.ids if name.rpartition("/")[0] == set_name] for set_name in sets]
        )

    def _unseen(self, groups: Sequence[Sequence[str]]) -> dict[str, float]:
        if len(groups) < 2:
            return {}
        return {name: errors[name] for group in groups for errors in [self.fit(group)[1]] for name in group}


def fit_table(
    file: CaseFile,
    *,
    handovers_s_per_byte: Array = HANDOVERS_S_PER_BYTE,
    overheads_s: Array = OVERHEADS_S,
) -> FitTable:
    """Score every pair of constants on every run that was measured and can be predicted."""
    ids, rows = [], []
    for run in file.measured_runs:
        if not run.measured_iteration_s:
            continue
        try:
            step = profiled_step(file, run)
        except UsageError:
            continue
        without_overhead = pipelines_s(step, handovers_s_per_byte) + step.after_s
        rows.append(
            np.log((without_overhead[:, None] + step.has_exchange * overheads_s) / run.measured_iteration_s)
        )
        ids.append(run.id)
    shape = (len(ids), len(handovers_s_per_byte), len(overheads_s))
    return FitTable(tuple(ids), np.array(rows).reshape(shape), handovers_s_per_byte, overheads_s)


def _robust(log_errors: Array) -> Array:
    """Soft L1: quadratic below `OUTLIER`, linear above."""
    return np.sqrt(1 + (log_errors / OUTLIER) ** 2) - 1
