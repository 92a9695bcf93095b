"""`strata bench learn`: steps a second of training, ours beside Stable-Baselines3 on the same environment."""

from __future__ import annotations

from typing import Any, Final

import click

from strata.cli.output import Shown, emit, output_option, progress, rows

_TABLES: Final = 16
"""Fewest environments: as many as the tables of a measurement."""


@click.command()
@click.option("--envs", type=click.IntRange(min=_TABLES), default=512, help="Environments played at once.")
@click.option("--updates", type=click.IntRange(min=1), default=6, help="Updates timed, after one to warm up.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    help="Also measure on a CUDA device: if there is one (auto), or fail without one (cuda).",
)
@output_option
def learn(envs: int, updates: int, device: str, output: str) -> None:
    """Measure PPO steps a second: playing and learning, 2 epochs of 4 minibatches on 32 steps.

    The same random tables for all. Stable-Baselines3, if it is installed, runs our network (same sizes, epochs and
    minibatches), then its own perceptron with as many weights. `simulated fleets` are worlds of several jobs in
    place of tables. CPU rows are per second of CPU time on one thread; CUDA rows per second of wall time, our
    environments on the device and theirs on the CPU.
    """
    from strata.cli.learn import device_of
    from strata.errors import need

    need("torch", extra="train")
    from strata.evaluation.bench.learn import measure

    devices = list(dict.fromkeys(["cpu", device_of(device)]))
    data = measure(envs=envs, updates=updates, devices=devices, progress=progress)
    emit(data, output, _show(data))


def _show(data: dict[str, Any]) -> Shown:
    body = [(row["name"], row["device"], f"{row['steps_per_s']:,.0f}") for row in data["rows"]]
    title = f"{data['envs']} episodes at once, {data['weights']:,} weights"
    yield rows(("what", "device", "steps/s"), body, right=[2], title=title)
    for name, ratio in data["ratios"].items():
        yield f"{name}: {ratio:.2f}"
    yield from data["notes"]
    yield ""
    body = [(item["name"], f"{item['steps_per_s']:,.0f}", item["source"]) for item in data["references"]]
    yield rows(("published, other problems", "steps/s", "source"), body, right=[1])
