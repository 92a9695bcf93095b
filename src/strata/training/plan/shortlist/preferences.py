"""Preferences to ask with: weights of (time, utilisation, money) spread over all mixes."""

from __future__ import annotations

import numpy as np

from strata.arrays import Floats


def preferences(count: int) -> Floats:
    """Return `count` preferences [count, 3], each summing to 1: the three corners, then a spread over the rest.

    The rest are points of the R2 sequence (Roberts 2018) folded onto the triangle: any first n are spread evenly.
    """
    steps = np.arange(1, max(0, count - 3) + 1)[:, None]
    root = 1.32471795724474602596  # x³ = x + 1
    u, v = ((0.5 + steps / np.array([root, root**2])) % 1.0).T
    fold = u + v > 1
    u, v = np.where(fold, 1 - u, u), np.where(fold, 1 - v, v)
    return np.concatenate([np.eye(3), np.stack([u, v, 1 - u - v], axis=1)])[:count]
