"""Re-planning under Markov links as a table: what each plan earns in each state, and what a switch costs.

The smallest form of WanReplan: one job, links that are Markov chains, decisions every interval. Small enough
for an exact solution (`value_iteration.py`), and what a plan is worth some steps ahead follows exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from strata.arrays import Floats, Ints
from strata.training.replan.options import HORIZONS, Options

Choose = Callable[[Options], Ints]
"""A rule or a policy: options in, the index of one option for each decision out."""

EFFICIENCY_ONLY: Final = (1.0, 0.0, 0.0)


@dataclass(frozen=True, eq=False)
class LinkChains:
    """Independent links, each a small Markov chain: the product chain, without ever writing it out.

    State s numbers the levels of all links in product order, the last link fastest. S = product of level counts.

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


@dataclass(frozen=True, eq=False)
class ReplanTable:
    """reward: [S, P] throughput over the best single domain; plan_links: per plan the links it uses.

    switch_share: what a switch burns of the reward of the step it is made in, in [0, 1]. start_plan: the plan
    in use before the first decision.
    """

    name: str
    reward: Floats
    chains: LinkChains
    switch_share: float
    start_plan: int
    plan_links: tuple[tuple[int, ...], ...]
    home_plan: int = 0

    @cached_property
    def ahead(self) -> Floats:
        """[S, P, 5]: expected reward at each of HORIZONS steps ahead."""
        values, expected = [], self.reward
        for step in range(max(HORIZONS) + 1):
            if step in HORIZONS:
                values.append(expected)
            expected = self.chains.expect(expected)
        return np.stack(values, axis=-1)

    @cached_property
    def links(self) -> Floats:
        """[S, P, 4]: see LINK_FEATURES."""
        now, later, stay = self.chains.level(), self.chains.level(8), self.chains.stay()
        features = np.ones((*self.reward.shape, 4))
        for plan, links in enumerate(self.plan_links):
            if links:
                used = list(links)
                features[:, plan, 0] = now[:, used].min(axis=1)
                features[:, plan, 1] = later[:, used].min(axis=1)
                features[:, plan, 2] = stay[:, used].mean(axis=1)
                features[:, plan, 3] = stay[:, used].min(axis=1)
        return features

    def options(self, states: Ints, current: Ints) -> Options:
        """Return the options of decisions in `states` [B] with the plans `current` [B] in use, -1 for none yet."""
        rows, plans = len(states), self.reward.shape[1]
        is_free = (np.arange(plans) == current[:, None]) | (current < 0)[:, None]
        cost = np.where(is_free, 0.0, self.switch_share * self.reward[states])
        return Options(
            value=self.ahead[states],
            cost=cost,
            links=self.links[states],
            current=current,
            legal=np.ones((rows, plans), dtype=bool),
            preference=np.tile(EFFICIENCY_ONLY, (rows, 1)),
        )

    def earned(self, states: Ints, current: Ints, picks: Ints) -> Floats:
        """Return [B]: the reward of one step, the switch taken off."""
        reward = self.reward[states, picks]
        is_free = (picks == current) | (current < 0)
        return np.asarray(np.where(is_free, reward, reward * (1 - self.switch_share)))

    def follow(self, choose: Choose, states: Ints) -> tuple[Ints, float]:
        """Run a policy along states [T, E]; return its plans [T, E] and its mean reward a step."""
        current = np.full(states.shape[1], self.start_plan)
        plans, total = np.empty_like(states), 0.0
        for step, now in enumerate(states):
            picks = choose(self.options(now, current))
            total += float(self.earned(now, current, picks).sum())
            plans[step] = current = picks
        return plans, total / states.size
