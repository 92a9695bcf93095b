"""Factors around 1 at all times: the seed's uniform draws, noise with a memory, and the time of day."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strata.arrays import Floats
from strata.fleet.dynamics.process import Shape


@dataclass(frozen=True, slots=True)
class Uniform:
    """Seed 001's noise: B = B_base (1 + e), e uniform in +-half_width (0.3 for bandwidth, 0.2 for latency).

    Drawn anew at every step however long it is, as the seed does "per_epoch". The state is the factor.
    """

    half_width: float

    def reset(self, rng: np.random.Generator, shape: Shape) -> Floats:
        """Draw once."""
        return np.asarray(1 + rng.uniform(-self.half_width, self.half_width, size=shape))

    def step(self, state: Floats, dt_s: float | Floats, rng: np.random.Generator) -> Floats:
        """Draw again."""
        return self.reset(rng, state.shape)

    def factor(self, state: Floats) -> Floats:
        """Return the last draw."""
        return state


@dataclass(frozen=True, slots=True)
class OrnsteinUhlenbeck:
    """exp of an Ornstein-Uhlenbeck process: log-normal, mean 1, correlation exp(-dt / tau_s).

    sigma: standard deviation of the logarithm. The state is the logarithm, before its mean is corrected.
    """

    sigma: float
    tau_s: float

    def reset(self, rng: np.random.Generator, shape: Shape) -> Floats:
        """Draw from the stationary distribution."""
        return self.sigma * rng.standard_normal(shape)

    def step(self, state: Floats, dt_s: float | Floats, rng: np.random.Generator) -> Floats:
        """Decay towards 0 and add what keeps the variance: the exact AR(1) form, so two half steps are as one."""
        elapsed = np.asarray(dt_s) / self.tau_s
        fresh = self.sigma * np.sqrt(-np.expm1(-2 * elapsed))
        return np.asarray(state * np.exp(-elapsed) + fresh * rng.standard_normal(state.shape))

    def factor(self, state: Floats) -> Floats:
        """Return the log-normal factor; the base value stays its mean."""
        return np.asarray(np.exp(state - self.sigma**2 / 2))


@dataclass(frozen=True, slots=True)
class Diurnal:
    """factor = 1 + amplitude sin(2 pi t / period_s + phase_rad). The state is the time t [s].

    phase_rad: one for all links, or one a link (time zones).
    """

    amplitude: float
    period_s: float = 86400.0
    phase_rad: float | tuple[float, ...] = 0.0

    def reset(self, rng: np.random.Generator, shape: Shape) -> Floats:
        """Start all clocks at 0."""
        return np.zeros(shape)

    def step(self, state: Floats, dt_s: float | Floats, rng: np.random.Generator) -> Floats:
        """Move the clocks on."""
        return np.asarray(state + dt_s)

    def factor(self, state: Floats) -> Floats:
        """Return the sine of the hour."""
        angle = 2 * np.pi * state / self.period_s + np.asarray(self.phase_rad)
        return np.asarray(1 + self.amplitude * np.sin(angle))
