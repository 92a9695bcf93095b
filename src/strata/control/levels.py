"""The level a noisy series is at, and when it came there: change points told from noise, many series at once.

Bayesian online change-point detection (Adams and MacKay 2007, arXiv 0710.3742) with a normal level of unknown
noise (normal-gamma prior): each possible start of the present level is weighed by how well what follows fits it.
The prior of the noise is fitted to the series itself (`noise_scale`), so that clean measurements are believed at
once and noisy ones only together.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma
from typing import Final

import numpy as np

from strata.arrays import Floats

MOST_ROWS: Final = 32
"""The longest run that is told from longer ones."""

_PRIOR_ROWS: Final = 0.05
"""What the long-run mean weighs in a new level, in observations."""

_SHAPE: Final = 2.0
"""Of the gamma prior of the noise's precision: so many half observations that the fitted scale is worth."""


@dataclass(frozen=True, eq=False, slots=True)
class Levels:
    """N series after their last row: mean and standard error of the present level, noise around it, [N] each.

    rows: expected number of observations since the level began, [N].
    """

    mean: Floats
    error: Floats
    noise: Floats
    rows: Floats


def noise_scale(series: Floats, *, least: float, start: float) -> Floats:
    """Return the standard deviation of the noise of series [T, N] from their steps, which a few jumps leave alone.

    Median of |steps| / (0.6745 √2), the normal distribution's; `start` counts as four steps beforehand.
    """
    steps = np.abs(np.diff(series, axis=0)) / (0.6745 * np.sqrt(2))
    prior = np.full((4, series.shape[1]), start)
    steps = np.concatenate([prior, steps])[-MOST_ROWS:] if len(steps) < 8 else steps[-MOST_ROWS:]
    return np.asarray(np.maximum(np.median(steps, axis=0), least))


def levels(series: Floats, *, usual: Floats, scale: Floats, hazard: Floats | float) -> Levels:
    """Return the present levels of series [T, N], T >= 1.

    usual: [N] the mean of a new level before it is seen. scale: [N] of the noise. hazard: chance of a change a
    row.
    """
    beta = _SHAPE * scale**2
    stay, change = np.log1p(-np.asarray(hazard)), np.log(np.asarray(hazard))
    runs = np.arange(1, MOST_ROWS + 1)
    kappas, alphas = _PRIOR_ROWS + runs, _SHAPE + runs / 2
    ratios = np.array([lgamma(a + 0.5) - lgamma(a) for a in alphas])
    first_ratio = lgamma(_SHAPE + 0.5) - lgamma(_SHAPE)
    log_weight = mean = rate = np.zeros((0, series.shape[1]))
    for row in series:
        count = len(mean)
        kappa, alpha = kappas[:count, None], alphas[:count, None]
        z = row - mean
        grown = log_weight + stay + _log_t(z, alpha, rate * (kappa + 1) / (alpha * kappa), ratios[:count, None])
        new_scale = beta * (_PRIOR_ROWS + 1) / (_SHAPE * _PRIOR_ROWS)
        new = _log_t(row - usual, _SHAPE, new_scale, first_ratio) + (change if count else 0.0)
        log_weight = np.concatenate([new[None], grown])[:MOST_ROWS]
        fresh_rate = beta + _PRIOR_ROWS / (_PRIOR_ROWS + 1) * (row - usual) ** 2 / 2
        rate = np.concatenate([fresh_rate[None], rate + kappa / (kappa + 1) * z**2 / 2])[:MOST_ROWS]
        fresh_mean = (_PRIOR_ROWS * usual + row) / (_PRIOR_ROWS + 1)
        mean = np.concatenate([fresh_mean[None], (kappa * mean + row) / (kappa + 1)])[:MOST_ROWS]
        peak = log_weight.max(axis=0)
        log_weight = log_weight - (peak + np.log(np.exp(log_weight - peak).sum(axis=0)))
    weight = np.exp(log_weight)
    kappa, alpha, run = kappas[: len(mean), None], alphas[: len(mean), None], runs[: len(mean), None]
    variance = rate / (alpha - 0.5)
    level = (weight * mean).sum(axis=0)
    spread = (weight * (variance / kappa + (mean - level) ** 2)).sum(axis=0)
    noise = np.sqrt((weight * variance).sum(axis=0))
    return Levels(level, np.sqrt(spread), noise, (weight * run).sum(axis=0))


def _log_t(z: Floats, alpha: Floats | float, scale2: Floats, ratio: Floats | float) -> Floats:
    """Return the log density of Student's t with 2 alpha degrees of freedom."""
    width = 2 * alpha * scale2
    return np.asarray(ratio - 0.5 * np.log(np.pi * width) - (alpha + 0.5) * np.log1p(z**2 / width))
