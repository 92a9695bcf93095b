"""What a process is, and the product of several.

Shapes: `shape` is that of the links of all environments, (..., L) and mostly (E, L): E environments, L links.
No measured series of inter-region bandwidth was found, so every parameter of these processes is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from strata.arrays import Floats

Shape = tuple[int, ...]
State = TypeVar("State")


class Process(Protocol[State]):
    """A random factor over a base value, in time.

    Pure: the state goes in and comes out, arrays are never written to, all chance comes from `rng`. Each call
    draws a number of values that depends on the shape alone, so one seed gives one path whatever was decided.
    """

    def reset(self, rng: np.random.Generator, shape: Shape) -> State:
        """Return a state at time 0, drawn from the stationary distribution where there is one."""

    def step(self, state: State, dt_s: float | Floats, rng: np.random.Generator) -> State:
        """Return the state `dt_s` >= 0 later; an array of steps broadcasts to the shape [s]."""

    def factor(self, state: State) -> Floats:
        """Return what to multiply the base values with, in the shape of the reset."""


@dataclass(frozen=True, slots=True)
class Product:
    """Several independent processes at once, such as regime x noise x time of day; the state is all of theirs."""

    processes: tuple[Process[Any], ...]

    def reset(self, rng: np.random.Generator, shape: Shape) -> tuple[Any, ...]:
        """Reset each in order."""
        return tuple(process.reset(rng, shape) for process in self.processes)

    def step(self, state: tuple[Any, ...], dt_s: float | Floats, rng: np.random.Generator) -> tuple[Any, ...]:
        """Step each in order."""
        return tuple(process.step(part, dt_s, rng) for process, part in zip(self.processes, state, strict=True))

    def factor(self, state: tuple[Any, ...]) -> Floats:
        """Multiply the factors."""
        factors = [process.factor(part) for process, part in zip(self.processes, state, strict=True)]
        return np.asarray(np.prod(factors, axis=0))
