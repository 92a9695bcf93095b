"""`strata bench replan`: one policy on re-planning scenarios, beside fixed rules and the exact solution."""

from __future__ import annotations

from typing import Any, Final

import click

from strata.cli.output import Shown, emit, output_option, progress, rows

SHOWN: Final = ("static", "myopic", "hysteresis", "mpc", "mpc_tuned", "hi_ppo", "vi", "clairvoyant")


@click.command()
@click.argument("scenarios", type=click.Path(), metavar="SCENARIOS.json")
@click.option("--policy", type=click.Path(), help="An exported policy instead of the bundled one.")
@click.option("--seeds/--no-seeds", default=True, help="Also run the policies of the other training seeds.")
@output_option
def replan(scenarios: str, policy: str | None, seeds: bool, output: str) -> None:
    """Re-plan under Markov links: SCENARIOS.json holds reward tables, chains and the paths to run.

    One policy for all scenarios. It sees the rewards now, each plan's expected reward 1, 2, 4 and 8 steps
    ahead, the switch cost, the plan in use and its links; no value function. hysteresis (margin 0.5) and mpc
    (2 steps) are fixed rules; mpc_tuned and hysteresis_tuned take their best setting per scenario with hindsight;
    vi is exact, clairvoyant knows the future. Figures are rewards a step; a gap is what is missed of vi.
    """
    from strata.evaluation.bench.replan import measure
    from strata.training.hi_ppo.policy import load_policy, other_seeds

    chosen = load_policy(policy)
    for note in chosen.notes:
        click.echo(f"note: {note}", err=True)
    others = other_seeds() if seeds and policy is None else []
    data = measure(scenarios, chosen, others=others, progress=progress)
    emit(data, output, _show(data))


def _show(data: dict[str, Any]) -> Shown:
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
