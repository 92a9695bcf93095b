"""A test that may be looked at after every pair: it rejects a true null with probability at most alpha, ever.

Under the null a pair's log-ratio x is symmetric about its centre, given the past: two attempts of one job under
equal policies can be swapped, and their order was drawn by lot. Then exp(l S - l^2 V / 2) with S = sum(x - c) and
V = sum((x - c)^2) is a supermartingale for every l [1], without a word on variance or tails. Mixed over
l ~ N(0, 1 / rho) it is sqrt(rho / (V + rho)) exp(S^2 / (2 (V + rho))) [2], and by Ville's inequality it
reaches 1 / alpha with probability at most alpha. `rho` decides when the test is sharpest, never whether it holds.

References
----------
[1] de la Pena: A general class of exponential inequalities for martingales and ratios, Ann. Probab. 27 (1999).
[2] Howard, Ramdas, McAuliffe, Sekhon: Time-uniform, nonparametric, nonasymptotic confidence sequences, Ann.
    Statist. 49 (2021), §3.2 (normal mixture), Lemma 3 (symmetric observations).
[3] Robbins: Statistical methods related to the law of the iterated logarithm, Ann. Math. Statist. 41 (1970).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from strata.arrays import Floats

FARTHEST: Final = math.log(10.0)
"""Ends of an interval beyond a factor of ten are unknown, and said to be infinite."""
_STEPS: Final = 60
"""Halvings when an end is sought: to FARTHEST / 2^60."""


def rho_of(sd: float, num_pairs: int, *, alpha: float) -> float:
    """Return the rho that makes the test sharpest after `num_pairs` of this standard deviation ([2], §3.5)."""
    return num_pairs * sd**2 / (2 * math.log(1 / alpha) + math.log1p(2 * math.log(1 / alpha)))


def log_evidence(changes: ArrayLike, *, rho: float, centre: float = 0.0) -> Floats:
    """Return after each pair the log of the evidence against this centre; at log(1 / alpha) it is rejected."""
    x = np.asarray(changes, np.float64) - centre
    total, squares = np.cumsum(x), np.cumsum(x * x) + rho
    evidence: Floats = 0.5 * (np.log(rho) - np.log(squares)) + total**2 / (2 * squares)
    return evidence


def interval(changes: ArrayLike, *, rho: float, alpha: float) -> tuple[float, float]:
    """Return all centres around the mean that are not rejected: with 1 - alpha it always held the true one."""
    x = np.asarray(changes, np.float64)
    if not x.size:
        return -math.inf, math.inf
    mean = float(x.mean())
    return _end(x, mean, mean - FARTHEST, rho, alpha), _end(x, mean, mean + FARTHEST, rho, alpha)


def radius(sd: float, num_pairs: int, *, rho: float, alpha: float) -> float:
    """Return half the width that the interval will have after `num_pairs` of this standard deviation."""
    squares = num_pairs * sd**2 + rho
    return math.sqrt(squares * (2 * math.log(1 / alpha) + math.log(squares / rho))) / num_pairs


def log_failure_evidence(num_candidate: int, num_baseline: int) -> float:
    """Return the log of the evidence that one policy fails more, from pairs in which one attempt of two failed.

    If both fail alike each is a fair coin; the alternative is uniform over all coins ([3]; may be looked at any
    time).
    """
    total = num_candidate + num_baseline
    log_beta = math.lgamma(num_candidate + 1) + math.lgamma(num_baseline + 1) - math.lgamma(total + 2)
    return total * math.log(2) + log_beta


def _end(x: Floats, inside: float, outside: float, rho: float, alpha: float) -> float:
    """Return the first centre on the way outside that is rejected; infinite where none is."""
    bound = math.log(1 / alpha)

    def is_rejected(centre: float) -> bool:
        squares = float(np.sum((x - centre) ** 2)) + rho
        total = float(np.sum(x - centre))
        return 0.5 * math.log(rho / squares) + total**2 / (2 * squares) >= bound

    # Far out the evidence falls again, slowly: doubling from near the mean finds the near side of its hill.
    step = (outside - inside) / 2**20
    while not is_rejected(inside + step):
        if abs(step) >= FARTHEST:
            return math.copysign(math.inf, outside - inside)
        step *= 2
    near, far = inside + (step / 2 if abs(step) > FARTHEST / 2**20 else 0.0), inside + step
    for _ in range(_STEPS):
        middle = (near + far) / 2
        near, far = (near, middle) if is_rejected(middle) else (middle, far)
    return far
