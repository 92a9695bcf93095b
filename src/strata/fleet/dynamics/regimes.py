"""Regimes: a link is good, degraded or bad for a while, then changes. A Markov chain in continuous time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike

from strata.arrays import Floats, Ints
from strata.fleet.dynamics.process import Shape

GOOD_DEGRADED_BAD: Final = (1.0, 0.5, 0.15)
WARNING: Final = 1
"""The regime of a `precursor` in which an episode is announced."""


@dataclass(frozen=True, eq=False)
class Regimes:
    """K regimes with a factor each. The state is the regime of each link, an integer in [0, K).

    dwell_s: mean time in each regime, [K], or [L, K] for each link its own; times are exponential.
    next: [K, K], where a link goes when it leaves a regime, rows of probabilities with a zero diagonal;
        None means each other regime is as likely.
    """

    dwell_s: ArrayLike
    factors: tuple[float, ...] = GOOD_DEGRADED_BAD
    next: ArrayLike | None = None
    _rates: Floats = field(init=False, repr=False)  # (K, K) or (L, K, K), rows sum to 0
    _stationary: Floats = field(init=False, repr=False)  # (K,) or (L, K)

    def __post_init__(self) -> None:
        count, dwell = len(self.factors), np.asarray(self.dwell_s, dtype=float)
        alike = (1 - np.eye(count)) / (count - 1)
        moves = alike if self.next is None else np.asarray(self.next, dtype=float)
        assert dwell.shape[-1] == count, "one mean dwell time a regime"
        assert moves.shape == (count, count), "one row of probabilities a regime"
        object.__setattr__(self, "_rates", (moves - np.eye(count)) / dwell[..., None])
        # Visits balance (v = v moves, sum 1); the time in a regime is visits x dwell.
        balance = np.vstack([(moves.T - np.eye(count))[:-1], np.ones(count)])
        weight = np.linalg.solve(balance, np.eye(count)[-1]) * dwell
        object.__setattr__(self, "_stationary", weight / weight.sum(axis=-1, keepdims=True))

    @classmethod
    def with_persistence(
        cls, stay: float | ArrayLike, *, step_s: float, factors: tuple[float, ...] = GOOD_DEGRADED_BAD
    ) -> Self:
        """Return the chain that is in the same regime `step_s` later with probability `stay`.

        stay: in (1/K, 1), one for all links or [L]; each other regime is as likely.
        """
        chance = 1 / len(factors)
        decay = -np.log((np.asarray(stay, dtype=float) - chance) / (1 - chance)) / step_s
        return cls(np.repeat(1 / (decay * (1 - chance))[..., None], len(factors), axis=-1), factors)

    def transition(self, dt_s: float | Floats) -> Floats:
        """Return P[i, j]: the probability to be in j a time `dt_s` after i, [..., K, K]."""
        return _expm(self._rates * np.asarray(dt_s, dtype=float)[..., None, None])

    def reset(self, rng: np.random.Generator, shape: Shape) -> Ints:
        """Draw from the stationary distribution."""
        return _draw(np.broadcast_to(self._stationary, (*shape, len(self.factors))), rng)

    def step(self, state: Ints, dt_s: float | Floats, rng: np.random.Generator) -> Ints:
        """Draw where each link is `dt_s` later, changes in between included."""
        count = len(self.factors)
        transition = np.broadcast_to(self.transition(dt_s), (*state.shape, count, count))
        rows = np.take_along_axis(transition, state[..., None, None], axis=-2)[..., 0, :]
        return _draw(rows, rng)

    def factor(self, state: Ints) -> Floats:
        """Return the factor of each link's regime."""
        return np.asarray(self.factors)[state]


def outage(*, up_s: float, down_s: float) -> Regimes:
    """Return a link that works and fails by turns: mean time between failures and to repair [s], factor 0."""
    return Regimes((up_s, down_s), factors=(1.0, 0.0))


def precursor(
    *, quiet_s: float = 3750.0, warning_s: float = 600.0, episode_s: float = 1500.0, factor: float = 0.15
) -> Regimes:
    """Return a link whose bad episodes are announced: quiet, WARNING (the same bandwidth), episode, quiet again.

    Whoever sees `state == WARNING` knows more than the bandwidth tells. The defaults have the mean dwell
    times of a chain that leaves its regimes with probability .08, .5 and .2 every 300 s.
    """
    return Regimes(
        (quiet_s, warning_s, episode_s),
        factors=(1.0, 1.0, factor),
        next=((0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0)),
    )


def _draw(probabilities: Floats, rng: np.random.Generator) -> Ints:
    """Draw an index along the last axis by the inverse of the distribution, one uniform each."""
    uniform = rng.random(probabilities.shape[:-1])
    return np.asarray((uniform[..., None] >= np.cumsum(probabilities, axis=-1)[..., :-1]).sum(axis=-1))


def _expm(matrices: Floats) -> Floats:
    """exp of small matrices [..., K, K]: Taylor to order 12 of a 2^-s part, squared s times.

    The series is cut below 1e-13; squaring adds rounding of about 1e-16 of the norm.
    """
    norm = float(np.abs(matrices).sum(axis=-1).max(initial=0.0))
    squarings = max(0, math.ceil(math.log2(norm)) + 1) if norm > 0 else 0
    part, identity = matrices / 2.0**squarings, np.eye(matrices.shape[-1])
    result = identity + part / 12
    for order in range(11, 0, -1):
        result = identity + part @ result / order
    for _ in range(squarings):
        result = result @ result
    return np.asarray(result)
