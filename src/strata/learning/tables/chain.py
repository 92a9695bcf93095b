"""Several links, each a small Markov chain of its own: the product chain, without ever writing it out.

State s numbers the levels of all links in product order, the last link fastest. S = product of level counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from strata.arrays import Floats, Ints


@dataclass(frozen=True, eq=False)
class LinkChains:
    """Independent links.

    levels: per link its bandwidths relative to nominal, [n]. transitions: per link [n, n], rows sum to 1.
    """

    levels: tuple[Floats, ...]
    transitions: tuple[Floats, ...]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Levels of each link."""
        return tuple(len(levels) for levels in self.levels)

    @property
    def num_states(self) -> int:
        """S, the states of all links together."""
        return int(np.prod(self.shape, dtype=np.int64))

    @cached_property
    def indices(self) -> Ints:
        """[S, L]: the level index of each link in each state."""
        return np.stack(np.unravel_index(np.arange(self.num_states), self.shape), axis=1)

    def expect(self, values: Floats) -> Floats:
        """Return E[values(next state) | state] for `values` [S, ...]: one small product a link, not S x S."""
        tensor = values.reshape(*self.shape, -1)
        for link, transition in enumerate(self.transitions):
            tensor = np.moveaxis(np.tensordot(transition, tensor, axes=(1, link)), 0, link)
        return np.asarray(tensor.reshape(values.shape))

    def level(self, ahead: int = 0) -> Floats:
        """Return [S, L]: each link's expected level `ahead` steps later, over its highest."""
        columns = []
        for index, (levels, transition) in enumerate(zip(self.levels, self.transitions, strict=True)):
            expected = np.linalg.matrix_power(transition, ahead) @ (levels / levels.max())
            columns.append(expected[self.indices[:, index]])
        return np.stack(columns, axis=1)

    def stay(self) -> Floats:
        """Return [S, L]: the chance that a link is in the same level one step later."""
        columns = [np.diag(t)[self.indices[:, link]] for link, t in enumerate(self.transitions)]
        return np.stack(columns, axis=1)

    def paths(self, episodes: int, steps: int, rng: np.random.Generator) -> Ints:
        """Return states [T, E]: uniform starts, then one uniform number a link and step, by the inverse CDF."""
        cumulative = [np.cumsum(t, axis=1)[:, :-1] for t in self.transitions]
        now = rng.integers(0, self.shape, size=(episodes, len(self.shape)))
        states = np.empty((steps, episodes), dtype=np.int64)
        for step in range(steps):
            states[step] = np.ravel_multi_index(tuple(now.T), self.shape)
            uniform = rng.random(now.shape)
            moved = [
                (uniform[:, link, None] >= rows[now[:, link]]).sum(axis=1) for link, rows in enumerate(cumulative)
            ]
            now = np.stack(moved, axis=1)
        return states
