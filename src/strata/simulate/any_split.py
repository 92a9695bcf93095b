"""What no split of the layers over like stages can beat: exact for one order of operations and free messages.

With t_i the work of stage i on a microbatch, T >= u Σ_{j<i} t_j + m_i t_i for every stage i, where u is the share
of a microbatch that those upstream are waited for, and m_i the microbatches that the stage works off before its
last gradient leaves it (`screening.lower_bound_s`, `ordered_bound_s`). That is nested,
V_i = max(m_i t_i, u t_i + V_i+1), so its least over all splits is found backwards, one stage at a time.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from strata.arrays import Floats

ROUNDING: Final = 1 - 1e-12
"""A bound must not exceed by rounding what it is exactly equal to."""


def runs_s(work: Floats) -> Floats:
    """Return from prefix sums what layers from a row to a column take [L + 1, L + 1]; inf where there are none."""
    at = np.arange(len(work))
    return np.where(at > at[:, None], work - work[:, None], np.inf)


def least_s(times: Floats, microbatches: int, upstream: float, most: int) -> Floats:
    """Return the least of all splits over 0, 1, … `most` stages, which all work off all microbatches first."""
    onward = np.full(len(times), np.inf)
    onward[-1] = 0.0
    waited = np.multiply(upstream, times, where=np.isfinite(times), out=times.copy())
    busy, least = microbatches * times, [onward[0]]
    for _ in range(most):
        onward = np.maximum(busy, waited + onward).min(axis=1)
        least.append(onward[0])
    return np.array(least) * ROUNDING


def least_zero_bubble_s(times: Floats, microbatches: int, weight_share: float, stages: int) -> float:
    """Return the least of all splits where each stage but the first has weight gradients left, and none waits for
    those."""
    onward = np.full(len(times), np.inf)
    onward[-1] = 0.0
    for stage in reversed(range(stages)):
        left = weight_share * min(stage + 1, microbatches) if stage else 0.0
        onward = np.maximum((microbatches - left) * times, (1 - weight_share) * times + onward).min(axis=1)
    return float(onward[0]) * ROUNDING
