"""How good a policy is on tables and fleets that no training sees: its score after every round of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from strata.arrays import Floats, Ints
from strata.learning.curriculum import EVALUATION, random_tables, shares_of, stream
from strata.learning.tables.table import Choose, ReplanTable
from strata.learning.tables.value_iteration import solve
from strata.learning.worlds import others
from strata.learning.worlds.pool import Pool, make_pool
from strata.learning.worlds.settings import PRESETS, WorldSettings
from strata.learning.worlds.world import World
from strata.training.replan import rules
from strata.training.replan.options import joined


def earned(world: World, choose: Choose, rng: np.random.Generator) -> Floats:
    """Return the reward a step of a policy in each episode [B]; links and arrivals only depend on `rng`."""
    world.reset(rng)
    steps = world.settings.episode_steps
    total = np.zeros(world.num_envs)
    for _ in range(steps):
        total += world.step(choose(others.options(world)), rng).scalar
    return total / steps


@dataclass(frozen=True, slots=True)
class PolicyScore:
    """How far from the exact solution, as shares of its reward; `closed`: of what it wins over the myopic rule."""

    mean_gap: float
    worst_gap: float
    closed: float
    worlds: float = 0.0
    """What it earns more in simulated worlds than the better fixed rule in each, as a share, on average."""


@dataclass(frozen=True, eq=False)
class WorldEvaluation:
    """A world on fleets that no training sees, and what the better of the fixed rules earns there a step."""

    pool: Pool
    settings: WorldSettings
    episodes: int
    rule: float = 0.0

    @classmethod
    def of(cls, preset: str, *, instances: int, episodes: int, steps: int, kind: int = EVALUATION) -> Self:
        """Return the evaluation in one preset; `kind` of random stream."""
        place = list(PRESETS).index(preset)
        settings = PRESETS[preset]
        seed, shares = int(stream(0, kind, place).integers(2**31)), shares_of(settings)
        pool = make_pool(seed, instances=instances, shares=shares)
        settings = replace(settings, episode_steps=steps * settings.steps_per_decision)
        blank = cls(pool, settings, episodes)
        by_rule = [blank.earned(rule).mean() for rule in (rules.hysteresis(), rules.mpc())]
        return replace(blank, rule=float(max(by_rule)))

    def earned(self, choose: Choose) -> Floats:
        """Return the reward a step of a policy in each episode; all see the same course of links and arrivals."""
        world = World(self.pool, self.episodes, settings=self.settings)
        return earned(world, choose, stream(0, EVALUATION, len(PRESETS)))


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Tables with paths of the links [tables, T, E], what the exact and the myopic rule earn there; and worlds."""

    tables: tuple[ReplanTable, ...]
    paths: Ints
    exact: Floats
    myopic: Floats
    worlds: tuple[WorldEvaluation, ...] = ()

    @classmethod
    def of(
        cls, count: int, *, episodes: int, steps: int, worlds: Sequence[str] = (), instances: int = 1,
        kind: int = EVALUATION,
    ) -> Evaluation:  # fmt: skip
        """Return the evaluation that every policy goes through, whatever it was trained with.

        kind: of random stream; another one has other tables and fleets.
        """
        rng = stream(0, kind)
        tables = random_tables(count, rng, name="held-out")
        paths = [table.chains.paths(episodes, steps, rng) for table in tables]
        return cls(
            tuple(tables),
            np.stack(paths),
            np.array([solve(table).follow(states)[1] for table, states in zip(tables, paths, strict=True)]),
            np.array([table.follow(rules.myopic, states)[1] for table, states in zip(tables, paths, strict=True)]),
            tuple(
                WorldEvaluation.of(name, instances=instances, episodes=episodes, steps=steps, kind=kind)
                for name in worlds
            ),
        )

    def score(self, choose: Choose) -> PolicyScore:
        """Run a policy on all tables and in all worlds."""
        earned = self.on_tables(choose)
        gaps = 1 - earned / self.exact
        won = float((self.exact - self.myopic).sum())
        closed = (earned - self.myopic).sum() / won if won else 1.0  # where myopia costs nothing
        more = [world.earned(choose).mean() / world.rule - 1 for world in self.worlds]
        return PolicyScore(
            float(gaps.mean()), float(gaps.max()), float(closed), float(np.mean(more)) if more else 0.0
        )

    def on_tables(self, choose: Choose) -> Floats:
        """Return the reward a step of a policy on each table, all run at once."""
        count, steps, episodes = self.paths.shape
        most = max(table.reward.shape[1] for table in self.tables)
        current = np.repeat([table.start_plan for table in self.tables], episodes).reshape(count, episodes)
        earned = np.zeros(count)
        for now in self.paths.transpose(1, 0, 2):
            cases = list(zip(self.tables, now, current, strict=True))
            options = joined([table.options(states, using) for table, states, using in cases], most)
            picks = choose(options).reshape(count, episodes)
            for number, (table, states, using) in enumerate(cases):
                earned[number] += table.earned(states, using, picks[number]).mean()
            current = picks
        return np.asarray(earned / steps)
