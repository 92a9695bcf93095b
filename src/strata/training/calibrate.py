"""What the kernels of each accelerator reach on a user's own machines, fitted to the step times of their runs.

One number an accelerator: its rates over those that `strata.simulate.kernel_rates` was fitted to on published runs
(`calibration:` in a job). Least squares on log(predicted / measured), by Gauss-Newton on the logarithms, through
`StepModel`: what links, pipelines and sums take is predicted as ever, and does not change with the number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.errors import UsageError
from strata.fleet.fleet import Fleet
from strata.simulate.analytic import StepModel
from strata.workload.job import TrainingJob
from strata.workload.plan import TrainingPlan

ROUNDS: Final = 40
DIFFERENCE: Final = 1e-3
LARGEST_MOVE: Final = 0.5
CLOSE: Final = 1e-6
LEAST_SLOPE: Final = 0.02
"""Of log time over log rate: below it a number moves the step times by less than they vary."""
RANGE: Final = (0.05, 20.0)


@dataclass(frozen=True)
class TimedRun:
    """A plan that ran, and its median step time [s]."""

    plan: TrainingPlan
    step_s: float


@dataclass(frozen=True)
class RunFit:
    """A run's step time by the model before and after the fit, and by a fit to the other runs alone [s].

    left_out_s: None where the others do not tell the number of each of its accelerators.
    """

    before_s: float
    after_s: float
    left_out_s: float | None


@dataclass(frozen=True)
class Calibration:
    """Ratios of kernel rates by accelerator, and what they change for each run, in the order of the runs."""

    ratios: Mapping[str, float]
    runs: tuple[RunFit, ...]


def calibrate(fleet: Fleet, job: TrainingJob, runs: Sequence[TimedRun]) -> Calibration:
    """Fit the ratio of each accelerator that the runs used. Raises UsageError where they do not tell it."""
    before = _predicted(fleet, job, runs, job.calibration)
    ratios = _fit(fleet, job, runs)
    after = _predicted(fleet, job, runs, {**job.calibration, **ratios})
    fits = []
    for index, run in enumerate(runs):
        others, left_out_s = [other for i, other in enumerate(runs) if i != index], None
        if others and set(accelerators(fleet, [run])) <= set(accelerators(fleet, others)):
            try:
                predicted_with = {**job.calibration, **_fit(fleet, job, others)}
                left_out_s = float(_predicted(fleet, job, [run], predicted_with)[0])
            except UsageError:
                left_out_s = None
        fits.append(RunFit(float(before[index]), float(after[index]), left_out_s))
    return Calibration(ratios, tuple(fits))


def accelerators(fleet: Fleet, runs: Sequence[TimedRun]) -> list[str]:
    """Return the names of the accelerators that runs used."""
    return list(dict.fromkeys(fleet.domain(name).accelerator.name for run in runs for name in run.plan.domains))


def _predicted(fleet: Fleet, job: TrainingJob, runs: Sequence[TimedRun], ratios: Mapping[str, float]) -> Floats:
    """Return the step time of each run [s], shape [runs]."""
    model = StepModel(fleet, replace(job, calibration=ratios))
    return np.array([report.step_time_s for report in model.reports([run.plan for run in runs])])


def _fit(fleet: Fleet, job: TrainingJob, runs: Sequence[TimedRun]) -> dict[str, float]:
    names, measured = accelerators(fleet, runs), np.log([run.step_s for run in runs])

    def ratios(logs: Floats) -> dict[str, float]:
        return dict(zip(names, np.exp(logs).tolist(), strict=True))

    def errors(logs: Floats) -> Floats:
        predicted = np.log(_predicted(fleet, job, runs, {**job.calibration, **ratios(logs)}))
        return np.asarray(predicted - measured)

    logs = np.zeros(len(names))
    for _ in range(ROUNDS):
        now = errors(logs)
        slopes = np.stack([(errors(logs + DIFFERENCE * row) - now) / DIFFERENCE for row in np.eye(len(names))], 1)
        if len(runs) < len(names) or np.linalg.svd(slopes, compute_uv=False).min() < LEAST_SLOPE:
            raise UsageError(
                f"these runs do not tell how fast the kernels of {' and '.join(names)} are",
                hint="a run on each accelerator alone, mostly of computing; in the job, no `profile`",
            )
        move = np.clip(-np.linalg.lstsq(slopes, now, rcond=None)[0], -LARGEST_MOVE, LARGEST_MOVE)
        logs = logs + move
        if np.abs(move).max() < CLOSE or not np.all(np.abs(logs) < np.log(RANGE[1])):
            break
    fitted = ratios(logs)
    for name, ratio in fitted.items():
        if not RANGE[0] < ratio < RANGE[1]:
            raise UsageError(
                f"no rate of {name}'s kernels explains the measured step times (ratio {ratio:.3g})",
                hint="look whether fleet, job and layout are those that ran, and the log's unit",
            )
    return fitted
