"""How good a policy is: on the ladder of held-out tables, and on simulated fleets larger than any it learnt on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from strata.learning.tables.ladder import climb_all, gaps
from strata.learning.tables.random_tables import random_table
from strata.learning.tables.table import Choose
from strata.learning.worlds import observe
from strata.learning.worlds.pool import Pool, make_pool
from strata.learning.worlds.presets import PRESETS
from strata.learning.worlds.world import World
from strata.training.replan import rules

EPISODES: Final = 32
STEPS: Final = 96


def on_tables(
    policy: Choose, count: int, *, seed: int = 0, advance: Callable[[int], None] = lambda _done: None
) -> dict[str, Any]:
    """Return the reward a step of every rung, and its mean and worst gap to the exact solution."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_EVALUATION,)))
    tables = [random_table(rng, name=f"evaluation-{number}") for number in range(count)]
    cases = [(table, table.chains.paths(EPISODES, STEPS, rng)) for table in tables]
    climbs = climb_all(cases, rng=rng, policy=policy, advance=advance)
    rungs = {}
    for rung in climbs[0].reward:
        mean, worst = gaps(climbs, rung)
        reward = float(np.mean([climbed.reward[rung] for climbed in climbs]))
        rungs[rung] = {"reward": reward, "mean_gap": mean, "worst_gap": worst}
    return {"tables": count, "rungs": rungs}


_EVALUATION: Final = 5
"""A random stream of its own: see `lessons.py`."""


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
