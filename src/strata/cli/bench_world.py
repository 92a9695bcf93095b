"""`strata bench world`: how many steps a second the simulated world of re-planning answers, by its size."""

from __future__ import annotations

from typing import Any

import click

from strata.cli.output import Shown, emit, output_option, progress, rows


@click.command()
@click.option("--envs", default=1024, type=click.IntRange(min=1), help="Environments at once.")
@click.option("--instances", default=16, type=click.IntRange(min=1), help="Number of fleets in the pool.")
@click.option("--steps", default=40, type=click.IntRange(min=2), help="Number of steps timed.")
@click.option("--seed", default=0, help="Random seed of the fleets and links.")
@output_option
def world(envs: int, instances: int, steps: int, seed: int, output: str) -> None:
    """Time the simulated world without a policy: links, loads, jobs, rewards; and what a policy looks at.

    Steps of one environment a CPU second, on one core. `raw state` adds bandwidth, latency, utilisation, memory
    and queues as arrays; `options` the value of every option now and 1, 2, 4 and 8 steps ahead instead.
    """
    from strata.evaluation.bench.world import measure

    data = measure(envs=envs, instances=instances, steps=steps, seed=seed, progress=progress)
    emit(data, output, _show(data))


def _show(data: dict[str, Any]) -> Shown:
    body = [
        [
            "-".join(map(str, dict.fromkeys(row["domains"]))),
            str(row["slots"]),
            str(row["options"]),
            *(f"{row[f'{name}_steps_per_s']:,.0f}" for name in ("world", "raw_state", "with_options")),
        ]
        for row in data["rows"]
    ]
    headers = ["domains", "jobs at once", "options", "world", "with raw state", "with options"]
    yield rows(headers, body, right=range(6), title="environment steps a CPU second, one core")
