"""What plans are expected to earn some decisions ahead: each one's level told from noise, and how long it lasts.

A plan's rate is taken for a mean, a level that comes back to it by a factor rho a decision (an AR(1) process),
and noise drawn anew. Noise is the median of its steps, which a few jumps leave alone (`levels.noise_scale`); rho
follows from how large the other steps are against how far it is away from its mean, so it is one less the chance
that a regime ends; the level is what a steady Kalman filter makes of the past (Hamilton 1994, "Time Series
Analysis", ch. 13). Under noise drawn anew the level is the mean; under regimes it is what is measured now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.control.levels import noise_scale

USUAL_ROWS: Final = 24
"""Decisions that what a plan usually earns counts as in its mean: those after one another say much the same, so a
first outage is no reason to think that a plan is bad in the long run."""

PRIOR_ROWS: Final = 8
PRIOR_SPREAD: Final = 0.05
PRIOR_RHO: Final = 0.85
"""Prior of the level: worth so many decisions of a series with this standard deviation (share of the best nominal
rate) and this rho."""

START_NOISE: Final = 0.03
"""Of a plan's rate, where little was measured: about what the seeds' ±30 % of its links leaves of it."""

POOLED: Final = 0.3
"""What all plans together weigh in the rho of one: they cross the same links."""

MOST_RHO: Final = 0.97
FILTERED_ROWS: Final = 24
_LEAST_NOISE: Final = 1e-3


@dataclass(frozen=True, eq=False, slots=True)
class Forecast:
    """P plans: mean [P] in the long run, level [P] above it now, rho [P] of it that is left a decision later."""

    mean: Floats
    level: Floats
    rho: Floats

    @classmethod
    def of(cls, rates: Floats, usual: Floats) -> Forecast:
        """Fit to rates [T, P], T >= 1, the last row just measured; `usual` [P] counts as USUAL_ROWS before them.

        The last row does not say what noise there is: a jump that nothing has followed yet looks like noise.
        """
        mean = _mean(rates, usual)
        away = rates - mean
        rows = rates[:-1] if len(rates) > 1 else usual[None]
        noise = noise_scale(rows, least=0.0, start=START_NOISE) ** 2
        far = ((rows - _mean(rows, usual)) ** 2).sum(axis=0) - len(rows) * noise
        steps = (np.diff(rows, axis=0) ** 2).sum(axis=0) / 2 - (len(rows) - 1) * noise
        far = np.maximum(far, 0.0)
        steps = np.clip(steps, 0.0, far)
        prior = PRIOR_ROWS * PRIOR_SPREAD**2
        lost = steps + POOLED * steps.sum() + prior * (1 - PRIOR_RHO)
        rho = np.clip(1 - lost / (far + POOLED * far.sum() + prior), 0.0, MOST_RHO)
        signal = (far + prior) / (far + prior + len(rows) * noise)
        gain = _kalman(signal, rho)
        recent = away[-FILTERED_ROWS:]
        level = recent[0] * (signal if len(recent) == len(away) else gain)
        for row in recent[1:]:
            level = rho * level + gain * (row - rho * level)
        return cls(mean, level, rho)

    def ahead(self, decisions: int) -> Floats:
        """Return what plans are expected to earn now and at the next decisions, [decisions, P]."""
        return np.asarray(self.mean + self.rho ** np.arange(decisions)[:, None] * self.level)


def _mean(rates: Floats, usual: Floats) -> Floats:
    return np.asarray((rates.sum(axis=0) + USUAL_ROWS * usual) / (len(rates) + USUAL_ROWS))


def _kalman(signal: Floats, rho: Floats) -> Floats:
    """Return the steady gain of the filter: `signal` is the share of the variance that is not noise."""
    noise = np.maximum(1 - signal, _LEAST_NOISE)
    fresh = signal * (1 - rho**2)
    half = (noise * (1 - rho**2) - fresh) / 2
    before = np.sqrt(half**2 + fresh * noise) - half
    return np.asarray(before / (before + noise))
