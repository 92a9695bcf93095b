"""`strata bench heads`: allocation ratios against the choice among candidate plans."""

from __future__ import annotations

from typing import Any, Final

import click

from strata.cli.output import Shown, emit, output_option, progress, rows
from strata.cli.parameters import Finite
from strata.units import show_time

LABELS: Final = {
    "dirichlet_untrained": "ratios, untrained",
    "dirichlet": "ratios, trained",
    "proportional": "by devices",
    "exact_ratios": "exact plan's ratios",
    "scorer": "candidate plans",
    "exact": "exact search",
}


@click.command()
@click.option("--seconds", default=60.0, type=Finite(min=0), help="How long to train the ratios.")
@click.option("--fleets", default=24, type=click.IntRange(min=1), help="Number of fleets to compare on.")
@click.option("--seed", default=0, help="Random seed of training; the fleets to compare on stay the same.")
@output_option
def heads(seconds: float, fleets: int, seed: int, output: str) -> None:
    """Compare two actions for the agent between domains: allocation ratios, and a choice of plans.

    Ratios come from a Dirichlet head trained here by PPO, and become the best pipeline or
    data-parallel plan that follows them. Compared on random fleets of 2 to 6 domains that training never saw,
    with the bundled jobs, for the shortest step, with the bundled policy on candidate plans and the exact search.
    A fleet counts where some domain alone can run the job. regret is T / T_exact - 1; R_eff is
    (T_base - T) / T_base against the best single domain; no plan counts as T = 2 T_base. The exact plan's ratios
    are given: what they lose is lost by expressing a plan as ratios. Needs torch.
    """
    from strata.evaluation.bench.heads import measure

    data = measure(seconds=seconds, fleets=fleets, seed=seed, progress=progress)
    emit(data, output, _show(data))


def _show(data: dict[str, Any]) -> Shown:
    body = [
        [
            LABELS[item["name"]],
            f"{item['regret_mean']:.1%}",
            f"{item['regret_p95']:.1%}",
            f"{item['optimal']:.0%}",
            f"{item['r_eff_mean']:.1%}",
            str(item["no_plan"]),
            show_time(item["decision_p50_s"]),
            show_time(item["decision_p99_s"]),
        ]
        for item in data["heads"]
    ]
    headers = ["head", "regret", "p95", "within 1 %", "R_eff", "no plan", "p50", "p99"]
    yield rows(headers, body, right=range(1, 8))
    kinds = ", ".join(f"{count} {kind}" for kind, count in data["exact_plans"].items())
    yield f"{data['fleets']} fleets ({data['left_out']} left out: no domain alone can run the job)"
    yield f"exact plans: {kinds}; {data['exact_subsets']} of them leave domains out"
    done = data["training"]
    yield f"trained on {done['decisions']} decisions in {done['updates']} updates, seed {done['seed']}"
