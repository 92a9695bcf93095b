"""One policy on re-planning scenarios, beside fixed rules and the exact solution."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from strata.evaluation.bench.progress import Progress, silent
from strata.evaluation.published_benchmarks.replan_scenario import read_scenarios
from strata.learning.tables.ladder import Climb, climb_all, gaps
from strata.training.hi_ppo.policy import HiPpoPolicy, load_policy


def measure(
    path: str | Path, policy: HiPpoPolicy, *, others: Sequence[Path] = (), progress: Progress = silent
) -> dict[str, Any]:
    """Run `policy` on every scenario of a file, beside the rungs of the ladder; then the policies in `others`."""
    tables = [(scenario.table, scenario.states) for scenario in read_scenarios(path)]
    with progress("scenarios", total=len(tables)) as advance:
        climbs = climb_all(tables, rng=np.random.default_rng(0), policy=policy.choose, advance=advance)
    rest = []
    if others:
        with progress("other training seeds", total=len(others)) as advance:
            for done, file in enumerate(others):
                rest.append(_other(load_policy(file), tables, climbs))
                advance(done + 1)
    return {
        "scenarios": [_scenario(climb) for climb in climbs],
        "gap_to_vi": {
            rung: dict(zip(("mean", "worst"), gaps(climbs, rung), strict=True))
            for rung in climbs[0].reward
            if rung != "vi"
        },
        "below_hysteresis": {"worst": _below(climbs)},
        "policy": {"file": policy.file, "seed": policy.record.get("seed")},
        "other_seeds": rest,
    }


def _scenario(climb: Climb) -> dict[str, Any]:
    plans = climb.plans.tolist() if climb.plans is not None else None
    return {"name": climb.name, "hi_ppo_plans": plans, **climb.reward}


def _below(climbs: list[Climb]) -> float:
    """Return how much of the fixed hysteresis the policy misses where it misses most; negative: it never does."""
    return max(1 - climb.reward["hi_ppo"] / climb.reward["hysteresis"] for climb in climbs)


def _other(policy: HiPpoPolicy, tables: list[Any], climbs: list[Climb]) -> dict[str, Any]:
    missed, below = [], []
    for (table, states), climb in zip(tables, climbs, strict=True):
        reward = table.follow(policy.choose, states)[1]
        missed.append(1 - reward / climb.reward["vi"])
        below.append(1 - reward / climb.reward["hysteresis"])
    return {
        "file": policy.file,
        "seed": policy.record.get("seed"),
        "mean": sum(missed) / len(missed),
        "worst": max(missed),
        "below_hysteresis": max(below),
    }
