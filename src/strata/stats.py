"""How sure a measured figure is: bootstrap and order-statistic intervals, a robust spread.

Samples are one-dimensional, finite, and of no particular order: the same values in another order give the same
answer. Every function raises ValueError for a sample it can say nothing about.

References
----------
Efron, Tibshirani: An Introduction to the Bootstrap (1993), §13.3 (percentile interval), §8.3 (two samples).
David, Nagaraja: Order Statistics, 3rd ed. (2003), §7.1 (distribution-free intervals of quantiles).
Rousseeuw, Croux: Alternatives to the Median Absolute Deviation, JASA 88 (1993) (the factor of MAD).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from strata.arrays import Floats

CONFIDENCE: Final = 0.95
RESAMPLES: Final = 2000
"""Moves the end of a 95 % interval by about 1 % of its width (standard deviation) from one seed to the next."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the interval that holds the true value with this confidence, in the sample's own unit."""

    estimate: float
    low: float
    high: float
    confidence: float = CONFIDENCE


def bootstrap(
    statistic: Callable[..., float],
    *samples: ArrayLike,
    rng: np.random.Generator,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
) -> Interval:
    """Return the percentile interval of `statistic(*samples)`, each sample redrawn on its own.

    `statistic` takes as many 1-D arrays as there are samples, for example `numpy.median`. The interval is a
    little too narrow below some 20 values: for a mean of 10, 95 % covers about 90 %.
    """
    drawn_from = [np.sort(_finite(sample, at_least=2)) for sample in samples]
    redrawn = [
        statistic(*(sample[rng.integers(sample.size, size=sample.size)] for sample in drawn_from))
        for _ in range(resamples)
    ]
    low, high = np.quantile(redrawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(statistic(*drawn_from)), float(low), float(high), confidence)


def mean_interval(sample: ArrayLike, *, rng: np.random.Generator, confidence: float = CONFIDENCE) -> Interval:
    """Return the mean and its bootstrap interval."""
    return bootstrap(_mean, sample, rng=rng, confidence=confidence)


def quantile_interval(sample: ArrayLike, quantile: float, *, confidence: float = CONFIDENCE) -> Interval:
    """Return a quantile and its distribution-free interval between two of the sample's own values.

    An end is infinite where the sample is too small to bound it: the 99th percentile needs 368 values to be
    bounded from above with 95 % confidence on both sides.
    """
    if not 0 < quantile < 1:
        raise ValueError(f"quantile {quantile} is not between 0 and 1")
    values = np.sort(_finite(sample, at_least=1))
    n = values.size
    # below[k] = P(at most k of n values lie below the true quantile)
    counts = np.arange(n + 1)
    log_choose = math.lgamma(n + 1) - np.array([math.lgamma(k + 1) + math.lgamma(n - k + 1) for k in counts])
    below = np.cumsum(np.exp(log_choose + counts * math.log(quantile) + (n - counts) * math.log1p(-quantile)))
    tail = (1 - confidence) / 2
    num_lower = int(np.searchsorted(below, tail, side="right"))  # values that may be left out at the low end
    first_above = int(np.searchsorted(below, 1 - tail))
    return Interval(
        estimate=float(np.quantile(values, quantile)),
        low=float(values[num_lower - 1]) if num_lower > 0 else -math.inf,
        high=float(values[first_above]) if first_above < n else math.inf,
        confidence=confidence,
    )


def mad(sample: ArrayLike) -> float:
    """Return the median absolute deviation, scaled to the standard deviation of a normal sample."""
    values = _finite(sample, at_least=1)
    return float(1.4826 * np.median(np.abs(values - np.median(values))))


def _mean(values: Floats) -> float:
    return float(np.mean(values))


def _finite(sample: ArrayLike, *, at_least: int) -> Floats:
    values = np.asarray(sample, dtype=np.float64)
    if values.ndim != 1 or values.size < at_least:
        raise ValueError(f"needs a row of at least {at_least} values, not shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("a sample must be finite")
    return values
