"""Row `utilization_improvement`: useful work of all domains under a queue of jobs, against home-domain queues.

The queue, the placements and the clock are those of the control loop; the rules beside it run in the same loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from strata.control.core import Scheduler
from strata.decision import Trust
from strata.evaluation.kpi.instances import QUEUES_SEED
from strata.evaluation.kpi.kpi import Kpi, ends
from strata.evaluation.kpi.study import Study
from strata.evaluation.kpi.ways import ways
from strata.evaluation.queueing.plans import regular_fleet
from strata.evaluation.queueing.rules import OURS, RULES, ours
from strata.evaluation.queueing.sweep import FIGURES, LOADS, LoadSweep, gain, sweep
from strata.evaluation.queueing.trace import MAST_SKEW
from strata.stats import mean_interval

TARGET: Final = 0.35
TRACES: Final = {True: 2, False: 5}
JOBS: Final = {True: 100, False: 250}
BASELINE: Final = "home_domain"
STRONGER: Final = ("alone", "fcfs", "mast_like", "backfill")


def measure(study: Study) -> Kpi:
    """Return the row: the gain of the mean over the load sweep, traces paired."""
    rules: dict[str, Callable[[], Scheduler]] = dict(RULES)
    rules |= {name: partial(ours, way.choose) for name, way in ways(study.policy).items() if way.sees_network}
    seeds = range(QUEUES_SEED, QUEUES_SEED + TRACES[study.quick])
    swept = sweep(
        rules, fleet=regular_fleet(), skew=MAST_SKEW, seeds=seeds, jobs=JOBS[study.quick], advance=study.advance
    )
    rng = study.rng()
    headline = gain(swept.of(OURS), swept.of(BASELINE), rng=rng)
    against = {name: gain(swept.of(OURS), swept.of(name), rng=rng) for name in (BASELINE, *STRONGER)}
    reached = [name for name, comparison in against.items() if comparison.relative.estimate >= TARGET]
    return Kpi(
        name="utilization_improvement",
        definition=f"useful node-seconds of all domains until a trace ends, mean over offered loads {LOADS[0]} to "
        f"{LOADS[-1]}, relative to the baseline's on the same traces; homes as skewed as MAST reports "
        f"({MAST_SKEW} times the mean); links nominal but for jobs that share them",
        baseline="home-domain queues: each job waits where it was submitted, first come first served",
        value=headline.relative.estimate,
        target=TARGET,
        sense="at least",
        ci95=ends(headline.relative),
        instances=len(seeds) * len(LOADS),
        guards={
            "gain_against": {
                name: {"relative": comparison.relative.estimate, "ci95": ends(comparison.relative),
                       "absolute": comparison.absolute.estimate}
                for name, comparison in against.items()
            },
            "by_load": _by_load(swept),
            "all_figures": {name: _figures(swept, name) for name in swept.rules},
            "mean_completion_s_ci95": {
                name: ends(mean_interval(swept.of(name, "mean_completion_s").mean(axis=0), rng=rng))
                for name in swept.rules
            },
            "passes_only_against": reached if BASELINE in reached and len(reached) <= len(STRONGER) else [],
            "misses_against": [name for name in STRONGER if name not in reached],
        },
        trust=Trust.ASSUMED,
        beside={
            name: gain(swept.of(name), swept.of(BASELINE), rng=rng).relative.estimate
            for name in swept.rules
            if name not in (OURS, BASELINE)
        },
    )  # fmt: skip


def _by_load(swept: LoadSweep) -> dict[str, dict[str, float]]:
    return {
        f"{load:g}": {name: float(swept.of(name)[at].mean()) for name in swept.rules}
        for at, load in enumerate(swept.loads)
    }


def _figures(swept: LoadSweep, rule: str) -> dict[str, Any]:
    return {figure: float(swept.of(rule, figure).mean()) for figure in FIGURES}
