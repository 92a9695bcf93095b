"""Noise without a shape of its own: the seed's uniform draws, and a mean-reverting one with a memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strata.fleet.dynamics.process import FloatArray, Shape


@dataclass(frozen=True, slots=True)
class Uniform:
    """Seed 001's noise: B = B_base (1 + e), e uniform in +-half_width (0.3 for bandwidth, 0.2 for latency).

    Drawn anew at every step however long it is, as the seed does "per_epoch". The state is the factor.
    """

    half_width: float

    def reset(self, rng: np.random.Generator, shape: Shape) -> FloatArray:
        """Draw once."""
        return np.asarray(1 + rng.uniform(-self.half_width, self.half_width, size=shape))

    def step(self, state: FloatArray, dt_s: float | FloatArray, rng: np.random.Generator) -> FloatArray:
        """Draw again."""
        return self.reset(rng, state.shape)

    def factor(self, state: FloatArray) -> FloatArray:
        """Return the last draw."""
        return state


@dataclass(frozen=True, slots=True)
class OrnsteinUhlenbeck:
    """exp of an Ornstein-Uhlenbeck process: log-normal, mean 1, correlation exp(-dt / tau_s).

    sigma: standard deviation of the logarithm. Stepped by the exact AR(1) discretisation, so that two half
    steps are distributed as one. The state is the logarithm, before its mean is corrected.
    """

    sigma: float
    tau_s: float

    def reset(self, rng: np.random.Generator, shape: Shape) -> FloatArray:
        """Draw from the stationary distribution."""
        return self.sigma * rng.standard_normal(shape)

    def step(self, state: FloatArray, dt_s: float | FloatArray, rng: np.random.Generator) -> FloatArray:
        """Decay towards 0 and add what keeps the variance."""
        elapsed = np.asarray(dt_s) / self.tau_s
        fresh = self.sigma * np.sqrt(-np.expm1(-2 * elapsed))
        return np.asarray(state * np.exp(-elapsed) + fresh * rng.standard_normal(state.shape))

    def factor(self, state: FloatArray) -> FloatArray:
        """Return the log-normal factor; the base value stays its mean."""
        return np.asarray(np.exp(state - self.sigma**2 / 2))
