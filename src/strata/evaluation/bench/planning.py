"""How long the planner takes, and how much it proves, by number of domains."""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np

from strata.fleet.catalogue import accelerator
from strata.fleet.schema import load_fleet
from strata.fleet.synthetic import random_fleet
from strata.progress import Progress, silent
from strata.tables import Shown, rows
from strata.training.hi_ppo.global_agent import candidates_of
from strata.training.plan.exact.problem import Problem
from strata.training.plan.planner import plan_training
from strata.units import show_time
from strata.workload.schema import load_job

DOMAINS: Final = (4, 8, 10, 16, 32)


def measure(
    job_name: str, *, seed: int, time_limit_s: float, progress: Progress = silent
) -> tuple[dict[str, Any], bool]:
    """Plan one job on two bundled fleets and on random ones, each within a time limit.

    Returns the rows and whether Ctrl-C cut them short.
    """
    job = load_job(job_name)
    devices = (accelerator("A100-SXM4-80GB"),)
    fleets = [load_fleet(name) for name in ("seed", "aws10")]
    fleets += [random_fleet(count, devices, np.random.default_rng(seed)) for count in DOMAINS]
    plans: list[dict[str, Any]] = []
    is_interrupted = False
    try:
        with progress("planning", total=len(fleets)) as advance:
            for fleet in fleets:
                started = time.process_time()
                answer = plan_training(fleet, job, clock=time.perf_counter, time_limit_s=time_limit_s)
                if answer.search.interrupted:
                    raise KeyboardInterrupt  # half of a search has no time and no gap to report
                search_s, started = time.process_time() - started, time.process_time()
                fast = candidates_of(Problem.of(fleet, job))
                shortlist_s = time.process_time() - started
                step_s = answer.best.report.step_time_s if answer.best else None
                plans.append(
                    {
                        "fleet": fleet.name,
                        "domains": len(fleet.domains),
                        "search_s": search_s,
                        "gap": answer.search.gap if answer.best else None,
                        "branches": answer.search.branches,
                        "evaluated": answer.search.evaluated,
                        "step_time_s": step_s,
                        "stopped": answer.search.stopped,
                        "shortlist_s": shortlist_s,
                        "shortlist_regret": fast[0].report.step_time_s / step_s - 1 if fast and step_s else None,
                    }
                )
                advance(len(plans))
    except KeyboardInterrupt:
        is_interrupted = True
    return {"job": job.name, "rows": plans}, is_interrupted


def show(data: dict[str, Any]) -> Shown:
    """Yield what is shown of the measurement to people."""
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
