"""Random tables as an environment: one decision a step in each of N episodes, for reinforcement learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from strata.training.replan.options import Bools, Floats, Ints, Options, joined
from strata.training.replan.table import ReplanTable

EPISODE_STEPS: Final = 128


@dataclass(frozen=True, eq=False)
class _Block:
    """The episodes that run on one table: their rows, the links' states and the plans in use."""

    table: ReplanTable
    rows: slice
    states: Ints
    current: Ints
    cumulative: tuple[Floats, ...]


class TableEnv:
    """N episodes over some tables, each table with its share of them; all end together and start anew.

    Rewards are vectors (throughput over the best plan's mean, 0, 0): tables know one objective. `centred`: less
    what the best plan of the moment earns. Links do not care what is decided, so the best policy is the same, and
    most of what rewards vary by is gone.
    """

    def __init__(
        self, tables: Sequence[ReplanTable], num_envs: int, *, steps: int = EPISODE_STEPS, centred: bool = False
    ) -> None:
        assert num_envs % len(tables) == 0, "as many episodes on every table"
        self.tables, self.num_envs, self.steps, self.centred = tuple(tables), num_envs, steps, centred
        self._each = num_envs // len(tables)
        self._most = max(table.reward.shape[1] for table in tables)
        self._blocks: list[_Block] = []
        self._step = 0

    def reset(self, rng: np.random.Generator) -> Options:
        """Start all episodes: links anywhere, any plan in use."""
        self._step, self._blocks = 0, []
        for number, table in enumerate(self.tables):
            rows = slice(number * self._each, (number + 1) * self._each)
            states = rng.integers(0, table.chains.shape, size=(self._each, len(table.chains.shape)))
            current = rng.integers(table.reward.shape[1], size=self._each)
            cumulative = tuple(np.cumsum(t, axis=1)[:, :-1] for t in table.chains.transitions)
            self._blocks.append(_Block(table, rows, states, current, cumulative))
        return self._options()

    def step(self, picks: Ints, rng: np.random.Generator) -> tuple[Options, Floats, Bools]:
        """Return the next options, the rewards [N, 3] and which episodes ended with this step [N]."""
        rewards, blocks = np.zeros((self.num_envs, 3)), []
        for block in self._blocks:
            table, mine = block.table, picks[block.rows]
            numbers = _numbers(block)
            earned = table.earned(numbers, block.current, mine)
            best = table.reward[numbers].max(axis=1) if self.centred else 0.0
            rewards[block.rows, 0] = (earned - best) / table.reward.mean(axis=0).max()
            uniform = rng.random(block.states.shape)
            moved = [
                (uniform[:, link, None] >= rows[block.states[:, link]]).sum(axis=1)
                for link, rows in enumerate(block.cumulative)
            ]
            blocks.append(_Block(table, block.rows, np.stack(moved, axis=1), mine, block.cumulative))
        self._blocks = blocks
        self._step += 1
        ended = self._step == self.steps
        options = self.reset(rng) if ended else self._options()
        return options, rewards, np.full(self.num_envs, ended)

    def _options(self) -> Options:
        return joined([block.table.options(_numbers(block), block.current) for block in self._blocks], self._most)


def _numbers(block: _Block) -> Ints:
    return np.asarray(np.ravel_multi_index(tuple(block.states.T), block.table.chains.shape))
