"""`strata bench replan`: one policy on re-planning scenarios, beside fixed rules and the exact solution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.output import emit, output_option, progress, rows

if TYPE_CHECKING:
    from rich.console import Console

    from strata.training.replan.ladder import Climb

SHOWN: Final = ("static", "myopic", "hysteresis", "mpc", "mpc_tuned", "hi_ppo", "vi", "clairvoyant")


@click.command()
@click.argument("scenarios", type=click.Path(), metavar="SCENARIOS.json")
@click.option("--policy", type=click.Path(), help="An exported policy instead of the bundled one.")
@click.option("--seeds/--no-seeds", default=True, show_default=True, help="Also run the other training seeds.")
@output_option
def replan(scenarios: str, policy: str | None, seeds: bool, output: str) -> None:
    """Re-plan under Markov links: SCENARIOS.json holds reward tables, chains and the paths to run.

    One policy for all scenarios. It sees the rewards now, each plan's expected reward 1, 2, 4 and 8 steps
    ahead, the switch cost, the plan in use and its links; no value function. hysteresis (margin 0.5) and mpc
    (2 steps) are fixed rules; mpc_tuned and hysteresis_tuned take their best setting per scenario with hindsight;
    vi is exact, clairvoyant knows the future. Figures are rewards a step; a gap is what is missed of vi.
    """
    import numpy as np

    from strata.evaluation.published.replan_scenario import read_scenarios
    from strata.training.hi_ppo.policy import load_policy, other_seeds
    from strata.training.replan.ladder import climb_all, gaps

    found = read_scenarios(scenarios)
    chosen = load_policy(policy)
    for note in chosen.notes:
        click.echo(f"note: {note}", err=True)
    tables = [(item.table, item.states) for item in found]
    with progress("scenarios", total=len(tables)) as advance:
        climbs = climb_all(tables, rng=np.random.default_rng(0), policy=chosen.choose, advance=advance)
    more = []
    if seeds and policy is None:
        others = other_seeds()
        with progress("other training seeds", total=len(others)) as advance:
            for done, path in enumerate(others):
                more.append(_seed(path, tables, climbs))
                advance(done + 1)
    data: dict[str, Any] = {
        "scenarios": [_scenario(item) for item in climbs],
        "gap_to_vi": {
            rung: dict(zip(("mean", "worst"), gaps(climbs, rung), strict=True))
            for rung in climbs[0].reward
            if rung != "vi"
        },
        "below_hysteresis": {"worst": _below(climbs)},
        "policy": {"file": chosen.file, "seed": chosen.record.get("seed")},
        "other_seeds": more,
    }
    emit(data, output, lambda console: _show(console, data))


def _scenario(climbed: Climb) -> dict[str, Any]:
    plans = climbed.plans.tolist() if climbed.plans is not None else None
    return {"name": climbed.name, "hi_ppo_plans": plans, **climbed.reward}


def _below(climbs: list[Climb]) -> float:
    """Return how much of the fixed hysteresis the policy misses where it misses most; negative: it never does."""
    return max(1 - item.reward["hi_ppo"] / item.reward["hysteresis"] for item in climbs)


def _seed(path: Any, tables: list[Any], climbs: list[Climb]) -> dict[str, Any]:
    from strata.training.hi_ppo.policy import load_policy

    policy = load_policy(path)
    missed, below = [], []
    for (table, states), climbed in zip(tables, climbs, strict=True):
        reward = table.follow(policy.choose, states)[1]
        missed.append(1 - reward / climbed.reward["vi"])
        below.append(1 - reward / climbed.reward["hysteresis"])
    return {
        "file": policy.file,
        "seed": policy.record.get("seed"),
        "mean": sum(missed) / len(missed),
        "worst": max(missed),
        "below_hysteresis": max(below),
    }


def _show(console: Console, data: dict[str, Any]) -> None:
    body = [[item["name"], *(f"{item[rung]:.4f}" for rung in SHOWN)] for item in data["scenarios"]]
    for label, key in (("mean gap to vi", "mean"), ("worst gap to vi", "worst")):
        gap = data["gap_to_vi"]
        body.append([label, *(f"{gap[rung][key]:.2%}" if rung in gap else "" for rung in SHOWN)])
    headers = ["scenario", "static", "myopic", "hyst.5", "mpc 2", "mpc*", "hi-ppo", "vi", "clairv."]
    console.print(rows(headers, body, right=range(1, 9)))
    console.print("mpc*: the best number of steps per scenario, with hindsight")
    worst = data["below_hysteresis"]["worst"]
    console.print(f"hi-ppo against hysteresis .5, worst scenario: {-worst:+.2%}")
    for item in data["other_seeds"]:
        console.print(
            f"training seed {item['seed']}: gap to vi mean {item['mean']:.2%}, worst {item['worst']:.2%}, "
            f"against hysteresis at worst {-item['below_hysteresis']:+.2%}"
        )
