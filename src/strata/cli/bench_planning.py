"""`strata bench planning`: how long the planner takes, and how much it proves, by number of domains."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.numbers import Finite
from strata.cli.output import emit, output_option, progress, rows
from strata.units import show_time

if TYPE_CHECKING:
    from rich.console import Console

CANDIDATES: Final = 96
"""As many as decisions are between."""


@click.command()
@click.option("--seed", default=0, show_default=True, help="Of the random fleets.")
@click.option("--job", default="llama-3.1-70b", show_default=True, help="A job file, or a bundled job's name.")
@click.option("--time-limit", default=30.0, show_default=True, type=Finite(min=0), help="Seconds each.")
@output_option
def planning(seed: int, job: str, time_limit: float, output: str) -> None:
    """Time the planner on bundled fleets and on random ones of 4 to 32 domains.

    search_s is CPU time of the whole call, from the fleet and the job to the ranked answer; gap is how much
    better, as a share, any plan could be than the one returned. shortlist_s is CPU time of the fast candidates
    that a learned policy picks from, shortlist_regret how much slower the fastest of them is than the answer.
    """
    import numpy as np

    from strata.fleet.catalogue import accelerator
    from strata.fleet.schema import load_fleet
    from strata.fleet.synthetic import random_fleet
    from strata.training.plan.exact.problem import Problem
    from strata.training.plan.planner import plan_training
    from strata.training.plan.shortlist.selection import shortlist
    from strata.workload.schema import load_job

    asked = load_job(job)
    cards = (accelerator("A100-SXM4-80GB"),)
    fleets = [load_fleet(name) for name in ("seed", "aws10")]
    fleets += [random_fleet(n, cards, np.random.default_rng(seed)) for n in (4, 8, 10, 16, 32)]
    answers: list[dict[str, Any]] = []
    with progress("planning", total=len(fleets)) as advance:
        for fleet in fleets:
            started = time.process_time()
            answer = plan_training(fleet, asked, clock=time.perf_counter, time_limit_s=time_limit)
            search_s, started = time.process_time() - started, time.process_time()
            fast = shortlist(Problem.of(fleet, asked), most=CANDIDATES)
            shortlist_s = time.process_time() - started
            step_s = answer.best.report.step_time_s if answer.best else None
            answers.append(
                {
                    "fleet": fleet.name,
                    "domains": len(fleet.domains),
                    "search_s": search_s,
                    "gap": answer.found.gap if answer.best else None,
                    "branches": answer.found.branches,
                    "evaluated": answer.found.evaluated,
                    "step_time_s": step_s,
                    "stopped": answer.found.stopped,
                    "shortlist_s": shortlist_s,
                    "shortlist_regret": fast[0].report.step_time_s / step_s - 1 if fast and step_s else None,
                }
            )
            advance(len(answers))
    emit({"job": asked.name, "rows": answers}, output, lambda console: _show(console, answers))


def _show(console: Console, answers: list[dict[str, Any]]) -> None:
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
        for row in answers
    ]
    heads = ["fleet", "domains", "CPU", "gap", "branches", "evaluated", "step", "quick", "regret"]
    console.print(rows(heads, body, right=range(1, 9)))
