"""What nodes were measured to take: the roofline, corrected per node and phase by the last measurements.

A step over u units with c cached tokens takes t = alpha + beta u + gamma u c on a range of layers. The roofline
gives each part of the model its own alpha, beta and gamma (`roofline.Terms`); measurements change them in two
steps, so that a few go far and many go everywhere:

1. one factor for all, the median of measured over expected, drawn to 1 where there are few;
2. three further shares, of alpha, beta and gamma: Bayesian linear regression around step 1, measurements far off
   the line weighed down (Cauchy weights), no term ever below zero.

The last `WINDOW` measurements count, so what has changed is forgotten. Same measurements, same answer.

References
----------
Bishop: Pattern Recognition and Machine Learning (2006), §3.3 (Bayesian linear regression).
Holland, Welsch: Robust regression using iteratively reweighted least-squares, Comm. Statist. A6 (1977).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np

from strata.arrays import Floats, Ints
from strata.decision import Trust
from strata.simulate.inference.roofline import Terms

Phase = Literal["prefill", "decode"]

WINDOW: Final = 128
"""Measurements kept per node and phase: an hour of beats, or the load of some minutes."""
LEAST: Final = 8
"""Measurements before an answer is called calibrated."""
MOST_SPREAD: Final = 0.25
"""Relative spread around the line above which it is not called calibrated, however many there are."""
FLOOR: Final = 0.25
"""Share of the reference time that each term may gain at prior scale, also where the roofline has none of it."""
SHARE_SD: Final = 0.5
"""How far a term is expected to be off on its own, as a share: standard deviation of the prior."""
NOISE_SD: Final = 0.3
"""Relative noise expected before it is known; counts as two measurements."""
DOUBT: Final = 0.25
"""The expected time counts as so many measurements of the factor: cards are often another than their figures."""
ROUNDS: Final = 8
CLOSE: Final = 1e-4
"""Change of the shares below which no further round is made."""
CAUCHY: Final = 2.385
"""95 % efficient for normal noise."""
NOTHING: Final = np.zeros((0, 5))


@dataclass(frozen=True, slots=True)
class NodeFit:
    """The terms of one node and phase after its measurements.

    confidence: share of the prior's variance, at the reference, that measurements took away, 0 to 1.
    spread: relative, around the line. trust: `analytic` until there are enough measurements that agree.
    """

    terms: Terms
    count: int = 0
    confidence: float = 0.0
    spread: float = math.inf
    trust: Trust = Trust.ANALYTIC


class Calibration:
    """The measurements of all nodes. Changed by `observe` and `forget` only; a copy is a snapshot."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, Phase], Floats] = {}  # [n, 5], replaced and never changed
        self._fits: dict[tuple[str, Phase], tuple[Floats, Terms, NodeFit]] = {}  # the last answers, and to what

    def observe(
        self, node_id: str, phase: Phase, *, first: int, end: int, units: int, context: float, seconds: float
    ) -> None:
        """Take a measurement: layers [first, end) took so long; one that cannot be is left out.

        units: sequences of a decode step, tokens of a prompt. context: tokens already cached, mean over sequences.
        """
        is_sound = units > 0 and 0 <= first < end and 0 <= context < math.inf
        if is_sound and 0 < seconds < math.inf:
            key = node_id, phase
            row = [[first, end, units, context, seconds]]
            self._seen[key] = np.concatenate([self._seen.get(key, NOTHING)[1 - WINDOW :], row])

    def forget(self, node_id: str) -> None:
        """Drop the measurements of a node: it has gone, or is another machine now."""
        for phase in get_args(Phase):
            self._seen.pop((node_id, phase), None)
            self._fits.pop((node_id, phase), None)

    def copy(self) -> Calibration:
        """Return a snapshot that later measurements do not change."""
        copied = Calibration()
        copied._seen, copied._fits = dict(self._seen), dict(self._fits)
        return copied

    def fit(self, node_id: str, phase: Phase, prior: Terms) -> NodeFit:
        """Return a node's terms [L + 1]: the prior's, the roofline's, where it was never measured.

        A prior of no time at all (the rates are not known) stays as it is: there is nothing to correct.
        """
        key = node_id, phase
        seen = self._seen.get(key, NOTHING)
        if (last := self._fits.get(key)) and last[0] is seen and _is_same(last[1], prior):
            return last[2]
        known = seen[seen[:, 1] < len(prior.fixed_s)]
        is_usable = len(known) and prior.at(prior.units, prior.context).min() > 0
        fit = _Line(prior, known).solved() if is_usable else NodeFit(prior)
        if is_usable:
            self._fits[key] = seen, prior, fit
        return fit


def _is_same(a: Terms, b: Terms) -> bool:
    arrays = zip(a[:3], b[:3], strict=True)
    return a[3:] == b[3:] and all(np.array_equal(x, y) for x, y in arrays)


class _Line:
    """The regression: n measurements, 3 terms; `usual` and `added` are terms by part [3, L + 1].

    A term grows by `added`, which no part lacks that can have it, and shrinks as it is, so that no part of it
    falls below zero; both have the same sum over the model.
    """

    def __init__(self, prior: Terms, seen: Floats) -> None:
        self.prior, num_layers = prior, len(prior.fixed_s) - 1
        self.usual = np.array([prior.fixed_s, prior.per_unit_s, prior.per_unit_context_s])
        self.reference = np.array([1.0, prior.units, prior.units * prior.context])
        least = FLOOR * prior.at(prior.units, prior.context) / self.reference[:, np.newaxis]
        least[2, -1] = 0.0  # the head does not look at cached tokens
        self.added = np.maximum(self.usual, least)
        total, most = self.usual.sum(axis=1), self.added.sum(axis=1)
        self.shrunk = self.usual * np.divide(most, total, out=np.zeros(3), where=total > 0)[:, np.newaxis]
        self.most_down = total / most
        self.at_reference = most * self.reference
        first, end, each, context, self.measured_s = seen.T
        first, end = first.astype(np.int64), (end + (end == num_layers)).astype(np.int64)
        units = np.stack([np.ones(len(seen)), each, each * context])  # [3, n]
        self.as_usual, self.grown, self.lessened = (
            _sums(terms, first, end) * units for terms in (self.usual, self.added, self.shrunk)
        )

    def solved(self) -> NodeFit:
        count, expected_s = len(self.measured_s), self.as_usual.sum(axis=0)
        ratio = float(np.median(np.log(self.measured_s / expected_s)))
        factor = math.exp(ratio * count / (count + DOUBT))
        expected_s = factor * expected_s
        prior_precision = 1.0 / (SHARE_SD * factor) ** 2
        left_s, fitted_s, share = self.measured_s - expected_s, expected_s, np.zeros(3)
        for _ in range(ROUNDS):
            off = self.measured_s / fitted_s - 1.0
            spread = 1.4826 * float(np.median(np.abs(off)))
            variance = (2 * NOISE_SD**2 + count * spread**2) / (2 + count)
            columns = np.where((share < 0)[:, np.newaxis], self.lessened, self.grown)
            # Cauchy weights, over the variance of each measurement.
            weighed = columns / ((1.0 + off**2 / (CAUCHY**2 * variance)) * variance * fitted_s**2)
            precision = weighed @ columns.T
            precision.flat[::4] += prior_precision
            before, share = share, _bounded(precision, weighed @ left_s, -factor * self.most_down)
            columns = np.where((share < 0)[:, np.newaxis], self.lessened, self.grown)
            fitted_s = np.maximum(expected_s + share @ columns, 1e-3 * expected_s)
            if np.abs(share - before).max() <= CLOSE * factor:
                break
        changes = np.where((share < 0)[:, np.newaxis], self.shrunk, self.added) * share[:, np.newaxis]
        terms = np.maximum(0.0, factor * self.usual + changes)
        variance_before = float(self.at_reference @ self.at_reference) / prior_precision
        variance_after = float(self.at_reference @ np.linalg.solve(precision, self.at_reference))
        is_sure = count >= LEAST and spread <= MOST_SPREAD
        return NodeFit(
            Terms(terms[0], terms[1], terms[2], self.prior.units, self.prior.context),
            count,
            min(1.0, max(0.0, 1.0 - variance_after / variance_before)),
            spread,
            Trust.CALIBRATED if is_sure else Trust.ANALYTIC,
        )


def _sums(terms: Floats, first: Ints, end: Ints) -> Floats:
    """Return the terms of each range [3, n]."""
    before = np.zeros((3, terms.shape[1] + 1))
    np.cumsum(terms, axis=1, out=before[:, 1:])
    return np.asarray(before[:, end] - before[:, first])


def _bounded(precision: Floats, target: Floats, least: Floats) -> Floats:
    """Minimise x' P x / 2 - t' x with x >= least: what falls below is held at its bound, the worst first."""
    x: Floats = np.asarray(np.linalg.solve(precision, target), dtype=float)
    held = np.zeros(len(x), dtype=bool)
    while (x < least).any():
        held[int(np.where(held, -np.inf, least - x).argmax())] = True
        free = ~held
        x = np.where(held, least, x)
        x[free] = np.linalg.solve(precision[np.ix_(free, free)], (target - precision[:, held] @ least[held])[free])
    return x
