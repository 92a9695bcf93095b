"""The ladder: the same tables and paths for every rule, a policy, the exact solution and the clairvoyant.

The gap of a rung is how much of the exact solution's reward it misses; negative where luck on a path helped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from strata.arrays import Ints
from strata.learning.tables.table import Choose, ReplanTable
from strata.learning.tables.value_iteration import clairvoyant, solve
from strata.training.replan import rules

RUNGS: Final = (
    "random", "static", "home_domain", "mast_like", "myopic", "hysteresis", "hysteresis_tuned", "mpc",
    "mpc_tuned", "hi_ppo", "vi", "clairvoyant",
)  # fmt: skip
"""All names of the ladder, weakest idea first. `myopic` is Sailor-like: the exact best plan of the moment."""


@dataclass(frozen=True, slots=True)
class Climb:
    """One table on the ladder: mean reward a step of each rung, and the plans of the policy [T, E]."""

    name: str
    reward: dict[str, float]
    plans: Ints | None


def climb(table: ReplanTable, states: Ints, *, rng: np.random.Generator, policy: Choose | None = None) -> Climb:
    """Run every rung along states [T, E]; tuned rules take the best of their settings with hindsight."""

    def run(choose: Choose) -> float:
        return table.follow(choose, states)[1]

    reward = {
        "random": run(rules.random(rng)),
        "static": run(rules.keep),
        "home_domain": run(rules.always(table.home_plan)),
        "mast_like": run(_one_domain(table)),
        "myopic": run(rules.myopic),
        "hysteresis": run(rules.hysteresis()),
        "hysteresis_tuned": max(run(rules.hysteresis(margin)) for margin in rules.MARGINS),
        "mpc": run(rules.mpc()),
        "mpc_tuned": max(run(rules.mpc(steps)) for steps in rules.SPANS),
    }
    plans = None
    if policy is not None:
        plans, reward["hi_ppo"] = table.follow(policy, states)
    reward["vi"] = solve(table).follow(states)[1]
    reward["clairvoyant"] = clairvoyant(table, states)
    return Climb(table.name, {rung: reward[rung] for rung in RUNGS if rung in reward}, plans)


def gaps(climbs: Sequence[Climb], rung: str) -> tuple[float, float]:
    """Return the mean and the worst gap to the exact solution, as shares."""
    missed = [1 - climb.reward[rung] / climb.reward["vi"] for climb in climbs]
    return float(np.mean(missed)), float(max(missed))


def climb_all(
    tables: Iterable[tuple[ReplanTable, Ints]],
    *,
    rng: np.random.Generator,
    policy: Choose | None = None,
    advance: Callable[[int], None] = lambda _done: None,
) -> list[Climb]:
    """Run the ladder on several tables, each with its paths."""
    climbs = []
    for table, states in tables:
        climbs.append(climb(table, states, rng=rng, policy=policy))
        advance(len(climbs))
    return climbs


def _one_domain(table: ReplanTable) -> Choose:
    """MAST-like: the job lives in the one domain that is best; no plan across domains is looked at."""
    alone = [plan for plan, links in enumerate(table.plan_links) if not links]
    if not alone:
        return rules.always(table.home_plan)
    return rules.always(max(alone, key=lambda plan: float(table.reward[:, plan].mean())))
