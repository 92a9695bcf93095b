"""Random tables as an environment: one decision a step in each of N episodes, for reinforcement learning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from strata.arrays import Floats, Ints
from strata.learning.draws import Draws
from strata.learning.tables.table import EFFICIENCY_ONLY, ReplanTable
from strata.training.replan.arrays import Array, moved, rows_of
from strata.training.replan.options import Options
from strata.training.replan.rules import safe_picks

EPISODE_STEPS: Final = 128

TABLES: Final = "tables"
"""The kind of problem that these are."""


class TableEnv:
    """N episodes over some tables, each table with its share of them; all end together and start anew.

    Rewards are vectors (throughput over the best plan's mean, 0, 0): tables know one objective. `centred`: less
    what the safe rule earns that began with the same plan under the same links. Links do not care what is decided,
    so the best policy is the same, and most of what rewards vary by, within a table and between tables, is gone.

    The states of all tables are rows of one table, plans and links padded to the most there are. device: where
    its arrays are torch's; None: NumPy's.
    """

    def __init__(
        self, tables: Sequence[ReplanTable], num_envs: int, *, steps: int = EPISODE_STEPS, centred: bool = False,
        device: str | None = None,
    ) -> None:  # fmt: skip
        assert num_envs % len(tables) == 0, "as many episodes on every table"
        self.tables, self.num_envs, self.steps, self.centred = tuple(tables), num_envs, steps, centred
        self.kinds: tuple[tuple[str, int], ...] = ((TABLES, num_envs),)
        self._each, self._step = num_envs // len(tables), 0
        most = max(table.reward.shape[1] for table in tables)

        def stacked(parts: Sequence[NDArray[Any]]) -> Array:
            """Return [states of all tables, most, ...]."""
            padded = [np.pad(p, [(0, 0), (0, most - p.shape[1]), *[(0, 0)] * (p.ndim - 2)]) for p in parts]
            return moved(np.concatenate(padded), device)

        def of_episodes(values: Any) -> Array:
            """Return what each table has, once for each of its episodes."""
            return moved(np.repeat(np.array(values), self._each, axis=0), device)

        self._reward = stacked([table.reward for table in tables])
        self._value = stacked([table.ahead for table in tables])
        self._links = stacked([table.links for table in tables])
        self._unit = of_episodes([table.reward.mean(axis=0).max() for table in tables])
        self._share = of_episodes([table.switch_share for table in tables])
        self._legal = of_episodes([np.arange(most) < table.reward.shape[1] for table in tables])
        self._preference = of_episodes([EFFICIENCY_ONLY for _ in tables])
        self._plans, self._envs = (moved(np.arange(n), device) for n in (most, num_envs))
        # A state is the first row of its table and, of each link, so many rows a level.
        counts = [table.reward.shape[0] for table in tables]
        self._first = of_episodes(np.cumsum([0, *counts[:-1]]))
        stride, row, edges, place = _chains(tables, self._each)
        self._stride, self._row = of_episodes(stride), of_episodes(row)
        self._edges, self._place = moved(edges, device), moved(place, device)
        self._draws = int(place.max()) + 1

    def reset(self, rng: Draws) -> Options:
        """Start all episodes: links anywhere, any plan in use."""
        xp, self._step, plans = array_namespace(self._stride), 0, []
        self._states = xp.zeros_like(self._stride)
        for number, table in enumerate(self.tables):
            rows, shape = slice(number * self._each, (number + 1) * self._each), table.chains.shape
            self._states[rows, : len(shape)] = rng.integers(0, shape, (self._each, len(shape)))
            plans.append(rng.integers(0, table.reward.shape[1], (self._each,)))
        self._current = self._beside = xp.concat(plans)
        return self._options(self._current)

    def step(self, picks: Array, rng: Draws) -> tuple[Options, Array, Array]:
        """Return the next options, the rewards [N, 3] and which episodes ended with this step [N]."""
        xp, now = array_namespace(picks), self._numbers()
        earned = self._earned(now, self._current, picks)
        if self.centred:
            safe = safe_picks(self._options(self._beside))
            earned = earned - self._earned(now, self._beside, safe)
            self._beside = safe
        rewards = xp.zeros_like(self._preference)
        rewards[:, 0] = earned / self._unit
        uniform: Array = rng.random(self._draws)
        chances = rows_of(self._edges, self._row + self._states)
        self._states = (uniform.take(self._place)[..., None] >= chances).sum(axis=-1)
        self._current = picks
        self._step += 1
        ended = self._step == self.steps
        options = self.reset(rng) if ended else self._options(self._current)
        return options, rewards, self._envs < (self.num_envs if ended else 0)

    def _numbers(self) -> Array:
        """Return the row of each episode's state."""
        return self._first + (self._states * self._stride).sum(axis=1)

    def _earned(self, now: Array, current: Array, picks: Array) -> Array:
        """Return what a step with the picked plans earns after `current` ones, the switch paid."""
        reward = self._reward[now, picks]
        return array_namespace(reward).where(picks == current, reward, reward * (1 - self._share))

    def _options(self, current: Array) -> Options:
        xp, now = array_namespace(self._states), self._numbers()
        cost = self._share[:, None] * rows_of(self._reward, now)
        return Options(
            value=rows_of(self._value, now),
            cost=xp.where(self._plans == current[:, None], 0.0, cost),
            links=rows_of(self._links, now),
            current=current,
            legal=self._legal,
            preference=self._preference,
        )


def _chains(tables: Sequence[ReplanTable], each: int) -> tuple[Ints, Ints, Floats, Ints]:
    """Return the links of all tables as arrays, padded with links that never move.

    stride [tables, L]: rows a level. row [tables, L]: of each link's level 0 among edges [rows, levels - 1], the
    cumulative chances to be in a level or below a step later. place [N, L]: of each link's draw among those
    of a step, which go table by table, so that no draw is left over.
    """
    chains = [table.chains for table in tables]
    width, levels = max(len(c.shape) for c in chains), max(max(c.shape) for c in chains)
    stride, row = np.zeros((2, len(tables), width), dtype=np.int64)
    place = np.zeros((len(tables), each, width), dtype=np.int64)
    edges = [np.full((1, levels - 1), np.inf)]
    drawn = 0
    for number, chain in enumerate(chains):
        links = len(chain.shape)
        place[number, :, :links] = drawn + np.arange(each * links).reshape(each, links)
        drawn += each * links
        for link, transition in enumerate(chain.transitions):
            stride[number, link] = math.prod(chain.shape[link + 1 :])
            row[number, link] = sum(map(len, edges))
            chances = np.cumsum(transition, axis=1)[:, :-1]
            edges.append(np.pad(chances, ((0, 0), (0, levels - len(transition))), constant_values=np.inf))
    return stride, row, np.concatenate(edges), place.reshape(-1, width)
