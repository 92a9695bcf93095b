"""One policy on re-planning scenarios, beside fixed rules and the exact solution."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from strata.evaluation.published_benchmarks.replan_scenario import read_scenarios
from strata.evaluation.replan_ladder import RUNGS, Climb, climb_all, gaps
from strata.progress import Progress, silent
from strata.tables import Shown, rows
from strata.training.hi_ppo.policy import HiPpoPolicy, load_policy


def measure(
    path: str | Path, policy: HiPpoPolicy, *, others: Sequence[Path] = (), progress: Progress = silent
) -> dict[str, Any]:
    """Run `policy` on every scenario of a file, beside the rungs of the ladder; then the policies in `others`."""
    tables = [(scenario.table, scenario.states) for scenario in read_scenarios(path)]
    with progress("scenarios", total=len(tables)) as advance:
        climbs = climb_all(tables, policy.choose, rng=np.random.default_rng(0), advance=advance)
    rest = []
    if others:
        with progress("other training seeds", total=len(others)) as advance:
            for done, file in enumerate(others):
                rest.append(_other(load_policy(file), tables, climbs))
                advance(done + 1)
    return {
        "scenarios": [
            {"name": climb.name, "hi_ppo_plans": climb.plans.tolist(), **climb.reward} for climb in climbs
        ],
        "gap_to_vi": {
            rung: dict(zip(("mean", "worst"), gaps(climbs, rung), strict=True)) for rung in RUNGS if rung != "vi"
        },
        # Of the fixed hysteresis, what the policy misses where it misses most; negative: it never does.
        "below_hysteresis": {
            "worst": max(1 - climb.reward["hi_ppo"] / climb.reward["hysteresis"] for climb in climbs)
        },
        "policy": {"file": policy.file, "seed": policy.record.get("seed")},
        "other_seeds": rest,
    }


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


SHOWN: Final = ("static", "myopic", "hysteresis", "mpc", "mpc_tuned", "hi_ppo", "vi", "clairvoyant")


def show(data: dict[str, Any]) -> Shown:
    """Yield what is shown of the measurement to people."""
    body = [[item["name"], *(f"{item[rung]:.4f}" for rung in SHOWN)] for item in data["scenarios"]]
    for label, key in (("mean gap to vi", "mean"), ("worst gap to vi", "worst")):
        gap = data["gap_to_vi"]
        body.append([label, *(f"{gap[rung][key]:.2%}" if rung in gap else "" for rung in SHOWN)])
    headers = ["scenario", "static", "myopic", "hyst.5", "mpc 2", "mpc*", "hi-ppo", "vi", "clairv."]
    yield rows(headers, body, right=range(1, 9))
    yield "mpc*: the best number of steps per scenario, with hindsight"
    worst = data["below_hysteresis"]["worst"]
    yield f"hi-ppo against hysteresis .5, worst scenario: {-worst:+.2%}"
    for item in data["other_seeds"]:
        yield (
            f"training seed {item['seed']}: gap to vi mean {item['mean']:.2%}, worst {item['worst']:.2%}, "
            f"against hysteresis at worst {-item['below_hysteresis']:+.2%}"
        )
