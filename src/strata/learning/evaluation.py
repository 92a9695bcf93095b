"""How good a policy is: on tables and fleets that no training sees, and on fleets larger than any it learnt on.

`Evaluation` scores a policy during training, after every round; `on_tables` and `by_domains` are the ladders of
`strata learn evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np

from strata.arrays import Floats, Ints
from strata.learning.curriculum import EVALUATION, LADDER, random_tables, stream
from strata.learning.tables.ladder import climb_all, gaps
from strata.learning.tables.random_tables import random_table
from strata.learning.tables.table import Choose, ReplanTable
from strata.learning.tables.value_iteration import solve
from strata.learning.worlds import observe
from strata.learning.worlds.pool import Pool, make_pool
from strata.learning.worlds.presets import PRESETS
from strata.learning.worlds.world import World
from strata.training.replan import rules
from strata.training.replan.options import joined

EPISODES: Final = 32
STEPS: Final = 96


def on_tables(
    policy: Choose, count: int, *, seed: int = 0, advance: Callable[[int], None] = lambda _done: None
) -> dict[str, Any]:
    """Return the reward a step of every rung, and its mean and worst gap to the exact solution."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(LADDER,)))
    tables = [random_table(rng, name=f"evaluation-{number}") for number in range(count)]
    cases = [(table, table.chains.paths(EPISODES, STEPS, rng)) for table in tables]
    climbs = climb_all(cases, rng=rng, policy=policy, advance=advance)
    rungs = {}
    for rung in climbs[0].reward:
        mean, worst = gaps(climbs, rung)
        reward = float(np.mean([climbed.reward[rung] for climbed in climbs]))
        rungs[rung] = {"reward": reward, "mean_gap": mean, "worst_gap": worst}
    return {"tables": count, "rungs": rungs}


def by_domains(policy: Choose, domains: int, *, instances: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return the reward a step of the rules and the policy on random fleets of a size, one job at a time each.

    All see the same course of links. Tuned rules take the best of their settings with hindsight.
    """
    seed = int(rng.integers(2**31))
    pool = make_pool(seed, instances=instances, domains=(domains, domains), shares=(1.0,))

    def run(choose: Choose) -> float:
        return _earned(pool, choose, seed)

    return {
        "domains": domains,
        "instances": instances,
        "rungs": {
            "random": run(rules.random(rng)),
            "static": run(rules.keep),
            "myopic": run(rules.myopic),
            "hysteresis": run(rules.hysteresis()),
            "hysteresis_tuned": max(run(rules.hysteresis(margin)) for margin in rules.MARGINS),
            "mpc": run(rules.mpc()),
            "mpc_tuned": max(run(rules.mpc(steps)) for steps in rules.SPANS),
            "hi_ppo": run(policy),
        },
    }


def _earned(pool: Pool, choose: Choose, seed: int) -> float:
    world = World(pool, EPISODES, settings=replace(PRESETS["regimes"], episode_steps=STEPS))
    rng = np.random.default_rng(seed)
    world.reset(rng)
    total = 0.0
    for _ in range(STEPS):
        total += float(world.step(choose(observe.options(world)), rng).scalar.mean())
    return total / STEPS


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
    """A preset on fleets that no training sees, and what the better of the fixed rules earns there a step."""

    preset: str
    pool: Pool
    episodes: int
    steps: int
    rule: float

    @classmethod
    def of(cls, preset: str, *, instances: int, episodes: int, steps: int) -> Self:
        """Return the evaluation in one preset."""
        place = list(PRESETS).index(preset)
        pool = make_pool(int(stream(0, EVALUATION, place).integers(2**31)), instances=instances)
        blank = cls(preset, pool, episodes, steps, 0.0)
        return replace(blank, rule=max(blank.earned(rules.hysteresis()), blank.earned(rules.mpc())))

    def earned(self, choose: Choose) -> float:
        """Return the reward a step of a policy; all see the same course of links and arrivals."""
        world = World(self.pool, self.episodes, settings=replace(PRESETS[self.preset], episode_steps=self.steps))
        rng = stream(0, EVALUATION, len(PRESETS))
        world.reset(rng)
        total = 0.0
        for _ in range(self.steps):
            total += float(world.step(choose(observe.options(world)), rng).scalar.mean())
        return total / self.steps


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
        cls, count: int, *, episodes: int, steps: int, worlds: Sequence[str] = (), instances: int = 1
    ) -> Evaluation:
        """Return the evaluation that every policy goes through, whatever it was trained with."""
        rng = stream(0, EVALUATION)
        tables = random_tables(count, rng, name="held-out")
        paths = [table.chains.paths(episodes, steps, rng) for table in tables]
        return cls(
            tuple(tables),
            np.stack(paths),
            np.array([solve(table).follow(states)[1] for table, states in zip(tables, paths, strict=True)]),
            np.array([table.follow(rules.myopic, states)[1] for table, states in zip(tables, paths, strict=True)]),
            tuple(
                WorldEvaluation.of(name, instances=instances, episodes=episodes, steps=steps) for name in worlds
            ),
        )

    def score(self, choose: Choose) -> PolicyScore:
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
        return PolicyScore(
            float(gaps.mean()), float(gaps.max()), float(closed), float(np.mean(more)) if more else 0.0
        )
