"""`strata bench`: one table of benchmarks, each imported only when it runs."""

from __future__ import annotations

from typing import Final

import click

from strata.cli.lazy import LazyGroup, Table

BENCHES: Final[Table] = {
    "training": ("strata.cli.bench_training:training", "Plan the points of a case file; score them neutrally."),
    "serving": ("strata.cli.bench_serving:serving", "Lay out the pools of a case file; score them neutrally."),
    "routing": ("strata.cli.bench_routing:routing", "Decisions a second of the routers, and a pool at its limit."),
    "cluster": ("strata.cli.bench_cluster:cluster", "How fast pods and gangs are placed, and how well."),
    "slicing": ("strata.cli.bench_slicing:slicing", "What the quota library adds to a driver's calls."),
    "host": ("strata.cli.bench_host:host", "How fast traces of the scheduler are read and explained."),
    "accuracy": ("strata.cli.bench_accuracy:accuracy", "Predicted against measured step times of real runs."),
    "planning": ("strata.cli.bench_planning:planning", "How long exact planning takes, by number of domains."),
    "simulate": ("strata.cli.bench_simulate:simulate", "How many plans a second the cost model answers."),
    "replan": ("strata.cli.bench_replan:replan", "Keep or switch under changing links: the ladder of rules."),
    "learn": ("strata.cli.bench_learn:learn", "PPO steps a second, beside Stable-Baselines3."),
    "heads": ("strata.cli.bench_heads:heads", "Allocation ratios against candidate plans, as agents' actions."),
    "world": ("strata.cli.bench_world:world", "Steps a second of the simulated world of re-planning."),
    "astra": ("strata.cli.bench_astra:astra", "Our ASTRA-compatible mode against runs of ASTRA-sim."),
}


@click.group(cls=LazyGroup, table=BENCHES)
def bench() -> None:
    """Measure strata against published figures and named peers."""
