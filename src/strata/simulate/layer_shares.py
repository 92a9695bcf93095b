"""Bounds that hold however layers are handed out over stages of unequal speed."""

from __future__ import annotations

import numpy as np

from strata.arrays import Floats


def least_shares(work: Floats) -> Floats:
    """Return one number W_i a row of `work` [N, L] such that Σ (time spent in row i) / W_i >= 1.

    However the L layers are handed out over the rows: W_i is the row's sum times Σ over layers of the least
    share of its row that a layer is, which is 1 for rows that differ by one factor.
    """
    sums = work.sum(axis=1)
    return np.asarray(sums * _shares(work, sums).min(axis=0).sum())


def most_shares(use: Floats) -> Floats:
    """Return the same from above: numbers U_i with Σ (use in row i) / U_i <= 1."""
    sums = use.sum(axis=1)
    return np.asarray(sums * _shares(use, sums).max(axis=0).sum())


def _shares(values: Floats, sums: Floats) -> Floats:
    return np.divide(values, sums[:, None], out=np.zeros_like(values), where=sums[:, None] > 0)
