"""What a process is.

Shapes: `shape` is that of the links of all environments, (..., L) and mostly (E, L): E environments, L links.
No measured series of inter-region bandwidth was found, so every parameter of these processes is assumed.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import numpy as np

from strata.arrays import Floats

FloatArray = Floats
Shape = tuple[int, ...]
State = TypeVar("State")


class Process(Protocol[State]):
    """A random factor over a base value, in time.

    Pure: the state goes in and comes out, arrays are never written to, all chance comes from `rng`. Each call
    draws a number of values that depends on the shape alone, so one seed gives one path whatever was decided.
    """

    def reset(self, rng: np.random.Generator, shape: Shape) -> State:
        """Return a state at time 0, drawn from the stationary distribution where there is one."""

    def step(self, state: State, dt_s: float | FloatArray, rng: np.random.Generator) -> State:
        """Return the state `dt_s` >= 0 later; an array of steps broadcasts to the shape [s]."""

    def factor(self, state: State) -> FloatArray:
        """Return what to multiply the base values with, in the shape of the reset."""
