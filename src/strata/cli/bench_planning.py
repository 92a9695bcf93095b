"""`strata bench planning`: how long the planner takes, and how much it proves, by number of domains."""

from __future__ import annotations

from typing import Any

import click

from strata.cli.output import Shown, emit, output_option, progress, rows
from strata.cli.parameters import Finite
from strata.errors import INTERRUPTED
from strata.units import show_time


@click.command()
@click.option("--seed", default=0, help="Random seed of the fleets.")
@click.option("--job", default="llama-3.1-70b", help="A job file, or a bundled job's name.")
@click.option("--time-limit", default=30.0, type=Finite(min=0), help="Time limit of each plan, in seconds.")
@output_option
def planning(seed: int, job: str, time_limit: float, output: str) -> int:
    """Time the planner on bundled fleets and on random ones of 4 to 32 domains.

    search_s is CPU time of the whole call, from the fleet and the job to the ranked answer; gap is how much
    better, as a share, any plan could be than the one returned. shortlist_s is CPU time of the fast candidates
    that a learned policy picks from, shortlist_regret how much slower the fastest of them is than the answer.
    """
    from strata.evaluation.bench.planning import measure

    data, is_interrupted = measure(job, seed=seed, time_limit_s=time_limit, progress=progress)
    emit(data, output, _show(data))
    if is_interrupted:
        click.echo(f"interrupted: {len(data['rows'])} rows", err=True)
    return INTERRUPTED if is_interrupted else 0


def _show(data: dict[str, Any]) -> Shown:
    body = [
        [
            row["fleet"],
            str(row["domains"]),
            show_time(row["search_s"]),
            "-" if row["gap"] is None else f"{row['gap']:.2%}",
            f"{row['branches']:,}",
            str(row["evaluated"]),
            "no plan" if row["step_time_s"] is None else show_time(row["step_time_s"]),
            show_time(row["shortlist_s"]),
            "-" if row["shortlist_regret"] is None else f"{row['shortlist_regret']:.2%}",
        ]
        for row in data["rows"]
    ]
    heads = ["fleet", "domains", "CPU", "gap", "branches", "evaluated", "step", "quick", "regret"]
    yield rows(heads, body, right=range(1, 9))
