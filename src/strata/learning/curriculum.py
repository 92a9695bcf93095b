"""What a policy learns on, and what it is examined on: never the same tables, whatever the seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import numpy as np
from array_api_compat import array_namespace

from strata.arrays import Floats, Ints
from strata.learning.draws import Draws
from strata.learning.ppo import Env
from strata.learning.tables.environment import TableEnv
from strata.learning.tables.random_tables import random_table
from strata.learning.tables.table import Choose, ReplanTable
from strata.learning.tables.value_iteration import Solution, solve
from strata.learning.worlds import observe
from strata.learning.worlds.pool import Pool, make_pool
from strata.learning.worlds.presets import PRESETS
from strata.learning.worlds.world import World
from strata.training.replan import rules
from strata.training.replan.arrays import Array
from strata.training.replan.options import Options, joined

LESSON, WARM_START, EXAM, FLEETS, RECALL = 1, 2, 3, 4, 6
"""Kinds of random streams: tables drawn from one are never drawn from another."""


def stream(seed: int, kind: int, *numbers: int) -> np.random.Generator:
    """Return the random numbers of one use."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(kind, *numbers)))


def random_tables(count: int, rng: np.random.Generator, *, name: str = "random") -> list[ReplanTable]:
    """Return random tables, numbered."""
    return [random_table(rng, name=f"{name}-{number}") for number in range(count)]


@dataclass(frozen=True, slots=True)
class Syllabus:
    """What one worker plays at once: `table_envs` episodes on `tables` random tables, and simulated worlds.

    worlds: presets of `replan/presets.py`, each with `world_envs` episodes on `world_instances` random fleets.
    """

    table_envs: int
    tables: int
    worlds: tuple[str, ...] = ()
    world_envs: int = 0
    world_instances: int = 0


def lesson(number: int, *, seed: int, worker: int, syllabus: Syllabus, device: str | None = None) -> Env:
    """Return the environments of a lesson: other tables in every one; fleets only differ between workers.

    device: where their arrays are torch's; None: NumPy's.
    """
    tables = random_tables(syllabus.tables, stream(seed, LESSON, worker, number))
    environments: list[Env] = [TableEnv(tables, syllabus.table_envs, centred=True, device=device)]
    for place, name in enumerate(syllabus.worlds):
        pool = _fleets(seed, worker, place, syllabus.world_instances)
        world = World(pool, syllabus.world_envs, settings=PRESETS[name], device=device)
        environments.append(WorldEnv(world))
    return environments[0] if len(environments) == 1 else Mixture(environments)


@lru_cache(maxsize=16)
def _fleets(seed: int, worker: int, place: int, count: int) -> Pool:
    """Return fleets with their candidate plans, which take seconds to find: so they stay for all lessons."""
    return make_pool(int(stream(seed, FLEETS, worker, place).integers(2**31)), instances=count)


class WorldEnv:
    """A simulated world whose episodes all begin, and so end, together.

    Rewards are centred as in `TableEnv`: less what the best option of the moment would earn the job.
    """

    def __init__(self, world: World) -> None:
        self.num_envs = world.num_envs
        self._world = world
        self._best: Array = 0.0

    def reset(self, rng: Draws) -> Options:
        """Start new episodes."""
        self._world.reset(rng)
        return self._look()

    def step(self, picks: Array, rng: Draws) -> tuple[Options, Array, Array]:
        """Take a step; after the last one of an episode the next begins at once."""
        best = self._best
        outcome = self._world.step(picks, rng)
        reward = outcome.reward
        reward[:, 0] -= best
        return (self.reset(rng) if self._world.begins else self._look()), reward, outcome.ended

    def _look(self) -> Options:
        options, xp = observe.options(self._world), self._world.xp
        now = xp.max(xp.where(options.legal, options.value[..., 0], 0.0), axis=1)
        # The reward of a step is a mean over all slots.
        self._best = now / self._world.settings.slots
        return options


def solved_tables(count: int, *, seed: int) -> list[Solution]:
    """Return random tables and their exact solutions, to start from."""
    return [solve(table) for table in random_tables(count, stream(seed, WARM_START))]


class Mixture:
    """Several environments as one; with fewer options than another, one has illegal ones beside its own."""

    def __init__(self, environments: Sequence[Env]) -> None:
        self.environments = tuple(environments)
        self.num_envs = sum(env.num_envs for env in self.environments)
        ends = np.cumsum([env.num_envs for env in self.environments]).tolist()
        self._rows = [slice(end - env.num_envs, end) for end, env in zip(ends, self.environments, strict=True)]

    def reset(self, rng: Draws) -> Options:
        """Start new episodes in all."""
        return _side_by_side([env.reset(rng) for env in self.environments])

    def step(self, picks: Array, rng: Draws) -> tuple[Options, Array, Array]:
        """Take a step in each."""
        pairs = zip(self.environments, self._rows, strict=True)
        options, rewards, done = zip(*(env.step(picks[rows], rng) for env, rows in pairs), strict=True)
        xp = array_namespace(picks)
        return _side_by_side(options), xp.concat(rewards), xp.concat(done)


def _side_by_side(parts: Sequence[Options]) -> Options:
    return joined(parts, max(part.legal.shape[1] for part in parts))


@dataclass(frozen=True, slots=True)
class Grade:
    """How far from the exact solution, as shares of its reward; `closed`: of what it wins over the myopic rule."""

    mean_gap: float
    worst_gap: float
    closed: float
    worlds: float = 0.0
    """What it earns more in simulated worlds than the better fixed rule in each, as a share, on average."""


@dataclass(frozen=True, eq=False)
class WorldExam:
    """A preset on fleets no training sees, and what the better of the fixed rules earns there a step."""

    preset: str
    pool: Pool
    episodes: int
    steps: int
    rule: float

    @classmethod
    def of(cls, preset: str, *, instances: int, episodes: int, steps: int) -> Self:
        """Return the exam in one preset."""
        place = list(PRESETS).index(preset)
        pool = make_pool(int(stream(0, EXAM, place).integers(2**31)), instances=instances)
        blank = cls(preset, pool, episodes, steps, 0.0)
        return replace(blank, rule=max(blank.earned(rules.hysteresis()), blank.earned(rules.mpc())))

    def earned(self, choose: Choose) -> float:
        """Return the reward a step of a policy; all see the same course of links and arrivals."""
        world = World(self.pool, self.episodes, settings=replace(PRESETS[self.preset], episode_steps=self.steps))
        rng = stream(0, EXAM, len(PRESETS))
        world.reset(rng)
        total = 0.0
        for _ in range(self.steps):
            total += float(world.step(choose(observe.options(world)), rng).scalar.mean())
        return total / self.steps


@dataclass(frozen=True, eq=False)
class Exam:
    """Tables with paths of the links [tables, T, E], what the exact and the myopic rule earn there; and worlds."""

    tables: tuple[ReplanTable, ...]
    paths: Ints
    exact: Floats
    myopic: Floats
    worlds: tuple[WorldExam, ...] = ()

    @classmethod
    def of(cls, count: int, *, episodes: int, steps: int, worlds: Sequence[str] = (), instances: int = 1) -> Exam:
        """Return the exam every policy sits, whatever it was trained with."""
        rng = stream(0, EXAM)
        tables = random_tables(count, rng, name="held-out")
        paths = [table.chains.paths(episodes, steps, rng) for table in tables]
        return cls(
            tuple(tables),
            np.stack(paths),
            np.array([solve(table).follow(states)[1] for table, states in zip(tables, paths, strict=True)]),
            np.array([table.follow(rules.myopic, states)[1] for table, states in zip(tables, paths, strict=True)]),
            tuple(WorldExam.of(name, instances=instances, episodes=episodes, steps=steps) for name in worlds),
        )

    def sit(self, choose: Choose) -> Grade:
        """Run a policy on all tables at once."""
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
        earned /= steps
        gaps = 1 - earned / self.exact
        won = float((self.exact - self.myopic).sum())
        closed = (earned - self.myopic).sum() / won if won else 1.0  # where myopia costs nothing
        more = [world.earned(choose) / world.rule - 1 for world in self.worlds]
        return Grade(float(gaps.mean()), float(gaps.max()), float(closed), float(np.mean(more)) if more else 0.0)
