"""What a policy learns on; what it is evaluated on comes from random streams of its own, whatever the seed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from array_api_compat import array_namespace

from strata.learning.draws import Draws
from strata.learning.settings import Curriculum
from strata.learning.tables.environment import TableEnv
from strata.learning.tables.random_tables import random_table
from strata.learning.tables.table import ReplanTable
from strata.learning.tables.value_iteration import Solution, solve
from strata.learning.worlds import others
from strata.learning.worlds.pool import SHARES, Pool, make_pool
from strata.learning.worlds.settings import PRESETS, WorldSettings
from strata.learning.worlds.world import World
from strata.training.replan.arrays import Array
from strata.training.replan.options import Options, joined
from strata.training.replan.rules import safe_picks

if TYPE_CHECKING:  # it needs torch, which evaluation does not
    from strata.learning.ppo import Env

TRAINING, WARM_START, EVALUATION, FLEETS, LADDER, GAIN = 1, 2, 3, 4, 5, 7
"""Kinds of random streams: tables drawn from one are never drawn from another."""


def stream(seed: int, kind: int, *numbers: int) -> np.random.Generator:
    """Return the random numbers of one use."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(kind, *numbers)))


def random_tables(count: int, rng: np.random.Generator, *, name: str = "random") -> list[ReplanTable]:
    """Return random tables, numbered."""
    return [random_table(rng, name=f"{name}-{number}") for number in range(count)]


def training_environment(
    number: int, *, seed: int, worker: int, curriculum: Curriculum, device: str | None = None
) -> Env:
    """Return what is played in a round: other tables in every one; fleets only differ between workers.

    device: where their arrays are torch's; None: NumPy's.
    """
    tables = random_tables(curriculum.tables, stream(seed, TRAINING, worker, number))
    environments: list[Env] = [TableEnv(tables, curriculum.table_envs, centred=True, device=device)]
    for place, name in enumerate(curriculum.worlds):
        pool = _fleets(seed, worker, place, curriculum.world_instances, shares_of(PRESETS[name]))
        environments.append(WorldEnv(pool, curriculum.world_envs, settings=PRESETS[name], device=device))
    return environments[0] if len(environments) == 1 else Mixture(environments)


@lru_cache(maxsize=16)
def _fleets(seed: int, worker: int, place: int, count: int, shares: tuple[float, ...]) -> Pool:
    """Return fleets with their candidate plans, which take seconds to find: so they stay for all rounds."""
    return make_pool(int(stream(seed, FLEETS, worker, place).integers(2**31)), instances=count, shares=shares)


def shares_of(settings: WorldSettings) -> tuple[float, ...]:
    """Return what plans of each kind of job are made for, of a domain's nodes: endless jobs have like parts."""
    return (1 / settings.slots,) if settings.endless else SHARES


class WorldEnv:
    """A simulated world whose episodes all begin, and so end, together.

    Rewards are less what the safe rule earns in a world of its own under the same chance, which no policy moves:
    most of what rewards vary by, from fleet to fleet and hour to hour, is gone.
    """

    def __init__(self, pool: Pool, num_envs: int, *, settings: WorldSettings, device: str | None = None) -> None:
        self.num_envs = num_envs
        self.kinds: tuple[tuple[str, int], ...] = (("world", num_envs),)
        self._world, self._beside = (World(pool, num_envs, settings=settings, device=device) for _ in range(2))

    def reset(self, rng: Draws) -> Options:
        """Start new episodes."""
        chance = self._world.draw(rng, start=True)
        self._world.begin(chance)
        self._beside.begin(chance)
        return others.options(self._world)

    def step(self, picks: Array, rng: Draws) -> tuple[Options, Array, Array]:
        """Take a step; after the last one of an episode the next begins at once."""
        chance = self._world.draw(rng)
        outcome = self._world.advance(picks, chance)
        reward = outcome.reward - self._beside.advance(safe_picks(others.options(self._beside)), chance).reward
        return (self.reset(rng) if self._world.begins else others.options(self._world)), reward, outcome.ended


def solved_tables(count: int, *, seed: int) -> list[Solution]:
    """Return random tables and their exact solutions, to start from."""
    return [solve(table) for table in random_tables(count, stream(seed, WARM_START))]


class Mixture:
    """Several environments as one; with fewer options than another, one has illegal ones beside its own."""

    def __init__(self, environments: Sequence[Env]) -> None:
        self.environments = tuple(environments)
        self.num_envs = sum(env.num_envs for env in self.environments)
        self.kinds = tuple(kind for env in self.environments for kind in env.kinds)
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
