"""The time of day: links are busy when the people at their ends are awake."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strata.fleet.dynamics.process import FloatArray, Shape


@dataclass(frozen=True, slots=True)
class Diurnal:
    """factor = 1 + amplitude sin(2 pi t / period_s + phase_rad). The state is the time t [s].

    phase_rad: one for all links, or one a link (time zones).
    """

    amplitude: float
    period_s: float = 86400.0
    phase_rad: float | tuple[float, ...] = 0.0

    def reset(self, rng: np.random.Generator, shape: Shape) -> FloatArray:
        """Start all clocks at 0."""
        return np.zeros(shape)

    def step(self, state: FloatArray, dt_s: float | FloatArray, rng: np.random.Generator) -> FloatArray:
        """Move the clocks on."""
        return np.asarray(state + dt_s)

    def factor(self, state: FloatArray) -> FloatArray:
        """Return the sine of the hour."""
        angle = 2 * np.pi * state / self.period_s + np.asarray(self.phase_rad)
        return np.asarray(1 + self.amplitude * np.sin(angle))
