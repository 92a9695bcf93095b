"""Noise without memory: the uniform draws of the seed."""

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
