"""Row `utilization_improvement`: useful work of all domains under a queue of jobs, against home-domain queues."""

from __future__ import annotations

from typing import Any, Final

from strata.decision import Trust
from strata.evaluation.kpi.instances import QUEUES_SEED
from strata.evaluation.kpi.kpi import Kpi, ends
from strata.evaluation.kpi.study import Study
from strata.evaluation.queueing.choices import scheduler
from strata.evaluation.queueing.placing import FIXED
from strata.evaluation.queueing.sweep import FIGURES, LOADS, LoadSweep, gain, regular_grid, sweep
from strata.evaluation.queueing.trace import MAST_SKEW

TARGET: Final = 0.35
TRACES: Final = {True: 3, False: 40}
JOBS: Final = {True: 250, False: 1000}
BASELINE: Final = "home_domain"
OURS: Final = "hi_ppo"
STRONGER: Final = ("worst_fit", "mast_like", "greedy_span")


def measure(study: Study) -> Kpi:
    """Return the row: the gain of the mean over the load sweep, traces paired."""
    ways = (*FIXED, scheduler(study.policy.choose, name=OURS))
    seeds = range(QUEUES_SEED, QUEUES_SEED + TRACES[study.quick])
    jobs = JOBS[study.quick]
    skewed = sweep(ways, grid=regular_grid(), skew=MAST_SKEW, seeds=seeds, jobs=jobs)
    study.advance(0.6)
    even = sweep((FIXED[0],), grid=regular_grid(), skew=1.0, seeds=seeds, jobs=jobs)
    study.advance(0.7)
    sync = sweep(ways, grid=regular_grid(local_steps=(1,)), skew=MAST_SKEW, seeds=seeds, jobs=jobs)
    rng = study.rng()
    headline = gain(skewed.of(OURS), skewed.of(BASELINE), rng=rng)
    against = {name: gain(skewed.of(OURS), skewed.of(name), rng=rng) for name in (BASELINE, *STRONGER)}
    reached = [name for name, comparison in against.items() if comparison.relative.estimate >= TARGET]
    evenly = gain(skewed.of(OURS), even.of(BASELINE), rng=rng)
    synced = gain(sync.of(OURS), sync.of(BASELINE), rng=rng)
    return Kpi(
        name="utilization_improvement",
        definition=f"useful node-seconds of all domains, mean over offered loads {LOADS[0]} to {LOADS[-1]}, "
        "relative to the baseline's on the same traces; homes as skewed as MAST reports "
        f"({MAST_SKEW} times the mean)",
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
            "even_homes": {"relative": evenly.relative.estimate, "ci95": ends(evenly.relative),
                           "absolute": evenly.absolute.estimate},
            "sync_only": {"relative": synced.relative.estimate, "ci95": ends(synced.relative)},
            "by_load": _by_load(skewed),
            "all_figures": _means(skewed),
            "passes_only_against": reached if BASELINE in reached and len(reached) <= len(STRONGER) else [],
            "misses_against": [name for name in STRONGER if name not in reached],
        },
        trust=Trust.ASSUMED,
    )  # fmt: skip


def _by_load(sweep: LoadSweep) -> dict[str, dict[str, float]]:
    return {
        f"{load:g}": {name: float(sweep.of(name)[at].mean()) for name in sweep.schedulers}
        for at, load in enumerate(sweep.loads)
    }


def _means(sweep: LoadSweep) -> dict[str, Any]:
    return {
        name: {figure: float(sweep.of(name, figure).mean()) for figure in FIGURES} for name in sweep.schedulers
    }
