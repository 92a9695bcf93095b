"""The ratios of an accelerator, fitted to a log of requests, and how well they foretell the half not used.

Requests of the first half by their coming are fitted to, all of them are played (`engine.py`): what comes later
slows what is there. Least squares over time to the first token, time a token and latency, each as a share of its
mean, by Levenberg-Marquardt on the logarithms of the ratios and of `request_s`, drawn to what is expected where
the log says little.

References
----------
Marquardt: An algorithm for least-squares estimation of nonlinear parameters, J. SIAM 11 (1963).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats
from strata.serving.layout import Layout
from strata.serving.measured.engine import EngineRun, RequestTimes
from strata.serving.measured.log import Log
from strata.workload.serving_job import ServingJob, ServingRatios

START: Final = ServingRatios(1.0, 0.002, 1.0, 1.0, 1e-3)
"""Where the fit begins: a sequence adds little to a step, a request a millisecond (assumed)."""
DOUBT: Final = np.array([0.5, 2.0, 0.5, 0.5, 1.0])
"""Standard deviations of the logarithms before the log is read (assumed)."""
WEIGHT: Final = 0.02
"""Of being one of these off, against being wrong by all of the mean time."""
ROUNDS: Final = 12
DIFFERENCE: Final = 0.03
"""Of the logarithms, for the slopes: times jump where a queue forms a moment later."""
LARGEST_MOVE: Final = 0.7
CLOSE: Final = 1e-4
RANGE: Final = (1e-6, 1e3)
MOST_DAMPING: Final = 1e3
FIGURES: Final = ("ttft_s", "tpot_s", "latency_s")


@dataclass(frozen=True)
class PredictedFigure:
    """A figure of one half: mean, median and 95th percentile, as measured and as predicted; relative errors."""

    measured: tuple[float, float, float]
    predicted: tuple[float, float, float]

    @property
    def errors(self) -> tuple[float, float, float]:
        """Predicted over measured, less 1."""
        mean, median, tail = (p / m - 1 for p, m in zip(self.predicted, self.measured, strict=True))
        return mean, median, tail


@dataclass(frozen=True)
class Fit:
    """Ratios, and the figures of the half not used: as expected without them, and with them."""

    ratios: ServingRatios
    before: dict[str, PredictedFigure]
    after: dict[str, PredictedFigure]


def fit(job: ServingJob, log: Log, accelerator: str, layout_of: Callable[[ServingJob], Layout]) -> Fit:
    """Fit an accelerator's ratios to the first half of a log; layout_of: the pipeline by a job's calibration."""
    used = np.arange(len(log.requests)) < len(log.requests) // 2

    def play(ratios: ServingRatios) -> RequestTimes:
        calibrated = replace(job, calibration={**job.calibration, accelerator: ratios})
        run = EngineRun(layout_of(calibrated), log.requests, sequences=job.sequences, step_tokens=job.step_tokens)
        return run.run()

    measured = _figures(RequestTimes(log.ttft_s, log.latency_s), log)

    def off(logs: Floats) -> Floats:
        predicted = _figures(play(_ratios(logs)), log)
        parts = [
            np.nan_to_num((of - there)[used] / there[used].mean()) / np.sqrt(used.sum())
            for of, there in zip(predicted, measured, strict=True)
        ]
        return np.concatenate([*parts, WEIGHT * (logs - np.log(START)) / DOUBT])

    ratios = _ratios(_least_squares(off, np.log(START)))
    return Fit(ratios, _foretold(play(ServingRatios()), log, ~used), _foretold(play(ratios), log, ~used))


def _ratios(logs: Floats) -> ServingRatios:
    return ServingRatios(*np.clip(np.exp(logs), *RANGE).tolist())


def _figures(times: RequestTimes, log: Log) -> tuple[Floats, Floats, Floats]:
    return times.ttft_s, np.nan_to_num(times.tpot_s(log.output_tokens)), times.latency_s


def _foretold(times: RequestTimes, log: Log, half: Bools) -> dict[str, PredictedFigure]:
    measured, predicted = _figures(RequestTimes(log.ttft_s, log.latency_s), log), _figures(times, log)
    more = log.output_tokens > 1
    foretold = {}
    for name, there, of in zip(FIGURES, measured, predicted, strict=True):
        chosen = half & np.isfinite(of) & (more if name == "tpot_s" else True)
        foretold[name] = PredictedFigure(_summary(there[chosen]), _summary(of[chosen]))
    return foretold


def _summary(values: Floats) -> tuple[float, float, float]:
    return float(values.mean()), float(np.quantile(values, 0.5)), float(np.quantile(values, 0.95))


def _least_squares(off: Callable[[Floats], Floats], start: Floats) -> Floats:
    """Return where the sum of squares is least, from `start` on."""
    x, left, damping = start, off(start), 1e-3
    moves = DIFFERENCE * np.eye(len(x))
    for _ in range(ROUNDS):
        slopes = np.stack([(off(x + move) - off(x - move)) / (2 * DIFFERENCE) for move in moves], axis=1)
        before = left @ left
        while damping <= MOST_DAMPING:
            normal = slopes.T @ slopes + damping * np.eye(len(x))
            tried = x + np.clip(-np.linalg.solve(normal, slopes.T @ left), -LARGEST_MOVE, LARGEST_MOVE)
            here = off(tried)
            if here @ here < before:
                x, left, damping = tried, here, damping / 5
                break
            damping *= 5
        if before - left @ left <= CLOSE * before:
            break
    return x
