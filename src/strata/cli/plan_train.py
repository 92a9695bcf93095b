"""`strata plan train`: the ranked plans of a job on a fleet, what they are compared with, and the reasons."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strata.cli.completing import FLEET, JOB
from strata.cli.output import emit, output_option, progress, show
from strata.cli.parameters import POSITIVE, TIME_OR_0, OutputFile, choice
from strata.cli.planning import remember
from strata.errors import INTERRUPTED, OutOfTime

if TYPE_CHECKING:
    from strata.training.plan.report import TrainingPlanReport


def _weights(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        weights = tuple(float(part) for part in text.split(","))
    except ValueError:
        weights = ()
    if len(weights) != 3 or min(weights) < 0 or not sum(weights) > 0 or max(weights) == float("inf"):
        raise click.BadParameter("three numbers >= 0, for example 0.4,0.3,0.3 (time, utilisation, money)")
    return weights


@click.command()
@click.argument("fleet", type=FLEET)
@click.argument("job", type=JOB)
@click.option("--top", default=5, type=POSITIVE, help="Plans to show.")
@click.option(
    "--minimize",
    type=choice("time", "cost", "reward", "reward-egress", "tchebycheff"),
    help="Instead of the job's goal. reward: of the cost, all money; reward-egress: what links are paid for.",
)
@click.option(
    "--weights", callback=_weights, metavar="A,B,C", help="For rewards and tchebycheff; on its own, for reward."
)
@click.option("--baselines/--no-baselines", default=True, help="Whether to compare the plan with other rules.")
@click.option("--pareto", is_flag=True, help="Add the exact front of time, utilisation and money (8 domains).")
@click.option(
    "--time-limit", type=TIME_OR_0, default="30s", help="For everything: search, baselines and Pareto front."
)
@click.option(
    "--planner",
    type=choice("exact", "hi-ppo"),
    default="exact",
    help="The exact search, or the learned policy (no proof, many domains).",
)
@click.option("--policy", type=click.Path(), help="A policy file for hi-ppo instead of the bundled one.")
@click.option(
    "--in-use", "in_use", type=click.Path(), help="With hi-ppo: the plan file the job runs now; keep or switch."
)
@click.option(
    "--given",
    type=click.Path(),
    help="Your own plan (a plan file, or a layout): check it, set it beside the best.",
)
@click.option("--seed", default=0, help="Random seed of the random baselines.")
@click.option("--save", type=OutputFile(), help="Also write the plan file (JSON) to this path.")
@output_option
def train(
    fleet: str, job: str, top: int, minimize: str | None, weights: tuple[float, float, float] | None,
    baselines: bool, pareto: bool, time_limit: float, planner: str, policy: str | None, in_use: str | None,
    given: str | None, seed: int, save: Path | None, output: str
) -> int:  # fmt: skip
    """Plan a training JOB on a FLEET: files, or names of bundled ones.

    \b
    strata plan train aws10 llama-3.1-70b
    strata plan train fleet.yaml job.yaml --minimize cost -o json
    strata plan train aws10 llama-3.1-8b --planner hi-ppo --in-use plan.json
    strata plan train fleet.yaml job.yaml --given layout.yaml

    Exits 3 where no plan fits (the reasons say what would help) or something is wrong with the given one, 6
    where the time limit passed first.
    """
    from strata import units
    from strata.cli.plan_table import show_comparison, show_plans, show_table
    from strata.fleet.schema import load_fleet
    from strata.training.plan.compare import plan_request
    from strata.training.plan.planned import PlanRequest
    from strata.workload.schema import load_job

    request = PlanRequest.model_validate({
        "planner": planner, "minimize": minimize, "weights": weights, "time_limit_s": time_limit, "top": top,
        "seed": seed, "baselines": baselines, "pareto": pareto, "policy": policy, "in_use": in_use,
        "given": given,
    })  # fmt: skip
    inputs, is_shown = {"fleet": fleet, "job": job}, False

    def keep(data: dict[str, Any]) -> None:
        if save:
            from strata.files import write_json

            write_json(save, data)
        remember("training", data)

    def planned(report: TrainingPlanReport) -> None:
        nonlocal is_shown
        if is_shown := output == "table":
            data = report.to_dict(request, inputs)
            try:
                show(show_table(data))
            except OSError:  # who read it has gone (`| head`), or the disk is full: that ends us, the plan stays
                keep(data)
                raise

    report = plan_request(
        load_fleet(fleet), load_job(job), request, clock=time.perf_counter, progress=progress, planned=planned
    )
    if report.out_of_time:
        hint = f"--time-limit {units.show_time(max(10, 4 * time_limit))}"
        raise OutOfTime(f"no plan within {units.show_time(time_limit)}", hint=hint)
    data = report.to_dict(request, inputs)
    keep(data)
    if not report.front_complete:
        click.echo(f"the front is not complete: stopped after {time_limit:g} s", err=True)
    if report.interrupted:
        click.echo("interrupted: this is the best plan so far, and the comparison is not complete", err=True)
    rest = show_comparison if is_shown else show_plans
    emit(data, output, rest(data, saved=str(save) if save else None))
    if report.interrupted:
        return INTERRUPTED
    return 0 if data["plans"] and not data.get("given", {}).get("faults") else 3
