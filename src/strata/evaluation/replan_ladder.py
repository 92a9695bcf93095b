"""The ladder: a policy beside fixed rules, the exact solution and the clairvoyant, on the same course of links.

`strata learn evaluate` puts a policy on held-out tables (`on_tables`) and on fleets larger than any it learnt on
(`by_domains`); `strata bench replan` on the scenarios of a file. The gap of a rung is how much of the exact
solution's reward it misses; negative where luck on a path helped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from strata.arrays import Ints
from strata.learning.curriculum import LADDER, random_tables, stream
from strata.learning.evaluation import earned
from strata.learning.tables.table import Choose, ReplanTable
from strata.learning.tables.value_iteration import solve
from strata.learning.worlds.pool import make_pool
from strata.learning.worlds.settings import PRESETS
from strata.learning.worlds.world import World
from strata.training.replan import rules
from strata.training.replan.options import Options
from strata.training.replan.rules import Rule

RUNGS: Final = (
    "random", "static", "home_domain", "mast_like", "myopic", "hysteresis", "hysteresis_tuned", "mpc",
    "mpc_tuned", "hi_ppo", "vi", "clairvoyant",
)  # fmt: skip
"""All names of the ladder, weakest idea first. `myopic` is Sailor-like: the exact best plan of the moment."""

EPISODES: Final = 32
STEPS: Final = 96


@dataclass(frozen=True, slots=True)
class Climb:
    """One table on the ladder: mean reward a step of each rung, and the plans of the policy [T, E]."""

    name: str
    reward: dict[str, float]
    plans: Ints


def climb(table: ReplanTable, states: Ints, policy: Choose, *, rng: np.random.Generator) -> Climb:
    """Run every rung along states [T, E]."""

    def run(choose: Choose) -> float:
        return table.follow(choose, states)[1]

    plans, earned_by_policy = table.follow(policy, states)
    reward = _rule_rewards(run, rng) | {
        "home_domain": run(_always(table.home_plan)),
        "mast_like": run(_one_domain(table)),
        "hi_ppo": earned_by_policy,
        "vi": solve(table).follow(states)[1],
        "clairvoyant": clairvoyant(table, states),
    }
    return Climb(table.name, {rung: reward[rung] for rung in RUNGS}, plans)


def climb_all(
    tables: Iterable[tuple[ReplanTable, Ints]],
    policy: Choose,
    *,
    rng: np.random.Generator,
    advance: Callable[[int], None] = lambda _done: None,
) -> list[Climb]:
    """Run the ladder on several tables, each with its paths."""
    climbs = []
    for table, states in tables:
        climbs.append(climb(table, states, policy, rng=rng))
        advance(len(climbs))
    return climbs


def gaps(climbs: Sequence[Climb], rung: str) -> tuple[float, float]:
    """Return the mean and the worst gap to the exact solution, as shares."""
    missed = [1 - climb.reward[rung] / climb.reward["vi"] for climb in climbs]
    return float(np.mean(missed)), float(max(missed))


def on_tables(
    policy: Choose, count: int, *, advance: Callable[[int], None] = lambda _done: None
) -> dict[str, Any]:
    """Return the reward a step of every rung, and its mean and worst gap to the exact solution."""
    rng = stream(0, LADDER)
    tables = random_tables(count, rng, name="evaluation")
    climbs = climb_all(
        [(table, table.chains.paths(EPISODES, STEPS, rng)) for table in tables], policy, rng=rng, advance=advance
    )
    rungs = {}
    for rung in RUNGS:
        mean, worst = gaps(climbs, rung)
        reward = float(np.mean([climb.reward[rung] for climb in climbs]))
        rungs[rung] = {"reward": reward, "mean_gap": mean, "worst_gap": worst}
    return {"tables": count, "rungs": rungs}


def by_domains(policy: Choose, domains: int, *, instances: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return the reward a step of the rules and the policy on random fleets of a size, one job at a time each."""
    seed = int(rng.integers(2**31))
    pool = make_pool(seed, instances=instances, domains=(domains, domains), shares=(1.0,))
    settings = replace(PRESETS["regimes"], episode_steps=STEPS)

    def run(choose: Choose) -> float:
        world = World(pool, EPISODES, settings=settings)
        return float(earned(world, choose, np.random.default_rng(seed)).mean())

    rungs = {**_rule_rewards(run, rng), "hi_ppo": run(policy)}
    return {"domains": domains, "instances": instances, "rungs": rungs}


def _rule_rewards(run: Callable[[Choose], float], rng: np.random.Generator) -> dict[str, float]:
    """Return what each fixed rule earns; tuned ones take the best of their settings with hindsight."""
    return {
        "random": run(rules.random(rng)),
        "static": run(rules.keep),
        "myopic": run(rules.myopic),
        "hysteresis": run(rules.hysteresis()),
        "hysteresis_tuned": max(run(rules.hysteresis(margin)) for margin in rules.MARGINS),
        "mpc": run(rules.mpc()),
        "mpc_tuned": max(run(rules.mpc(steps)) for steps in rules.SPANS),
    }


def clairvoyant(table: ReplanTable, states: Ints) -> float:
    """Return the mean reward a step of the best plans along each path of states [T, E] (Viterbi)."""
    value = np.zeros((states.shape[1], table.reward.shape[1]))
    for now in states[::-1]:
        reward = table.reward[now]
        switched = (reward * (1 - table.switch_share) + value).max(axis=1, keepdims=True)
        value = np.maximum(reward + value, switched)
    return float(value[:, table.start_plan].mean()) / len(states)


def _one_domain(table: ReplanTable) -> Choose:
    """MAST-like: the job lives in the one domain that is best; no plan across domains is looked at."""
    alone = [plan for plan, links in enumerate(table.plan_links) if not links]
    home = max(alone, key=lambda plan: float(table.reward[:, plan].mean()), default=table.home_plan)
    return _always(home)


def _always(plan: int) -> Rule:
    """Return the rule that takes one option wherever it is legal (a home domain)."""

    def choose(options: Options) -> Ints:
        there = options.legal[:, plan]
        return np.asarray(np.where(there, plan, rules.keep(options)))

    return choose
