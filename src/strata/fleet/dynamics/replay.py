"""Replay: factors that were measured, played back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strata.fleet.dynamics.process import FloatArray, Shape

_SLACK_S = 1e-6
"""A clock summed from steps of 0.1 s stands a hair before the row it means; a microsecond forgives that."""


@dataclass(frozen=True, eq=False, slots=True)
class Replay:
    """Factors at given times. The state is the time [s]; every environment starts at the first row.

    times_s: [T], strictly increasing. factors: [T, L]. `linear` joins the rows by lines, else a row holds until
    the next. `wrap` starts again at the last row, which then only says when; else the last row holds for ever.
    """

    times_s: FloatArray
    factors: FloatArray
    linear: bool = False
    wrap: bool = False

    def reset(self, rng: np.random.Generator, shape: Shape) -> FloatArray:
        """Start at the first row."""
        assert shape[-1] == self.factors.shape[1], "one column a link"
        return np.full(shape, float(self.times_s[0]))

    def step(self, state: FloatArray, dt_s: float | FloatArray, rng: np.random.Generator) -> FloatArray:
        """Move the clocks on."""
        return np.asarray(state + dt_s)

    def factor(self, state: FloatArray) -> FloatArray:
        """Look the factors up, [..., L]."""
        first, last = self.times_s[0], self.times_s[-1]
        time = state + _SLACK_S
        if self.wrap and last > first:
            time = first + (time - first) % (last - first)
        row = np.searchsorted(self.times_s, time, side="right") - 1
        after = np.minimum(row + 1, len(self.times_s) - 1)
        links = np.arange(self.factors.shape[1])
        here = self.factors[row, links]
        if not self.linear:
            return here
        gap = np.where(after > row, self.times_s[after] - self.times_s[row], 1.0)
        share = np.clip((time - _SLACK_S - self.times_s[row]) / gap, 0.0, 1.0)
        return np.asarray(here + share * (self.factors[after, links] - here))
