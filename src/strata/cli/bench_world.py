"""`strata bench world`: how many steps a second the simulated world of re-planning answers, by its size."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.output import emit, output_option, progress, rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

SIZES: Final = ((4, 8), (16, 16), (32, 32))
SLOTS: Final = (1, 4)


@click.command()
@click.option("--envs", default=1024, show_default=True, type=click.IntRange(min=1), help="Environments at once.")
@click.option("--instances", default=16, show_default=True, type=click.IntRange(min=1), help="Fleets in a pool.")
@click.option("--steps", default=40, show_default=True, type=click.IntRange(min=2), help="Steps timed.")
@click.option("--seed", default=0, show_default=True, help="Of fleets and links.")
@output_option
def world(envs: int, instances: int, steps: int, seed: int, output: str) -> None:
    """Time the simulated world without a policy: links, loads, jobs, rewards; and what a policy looks at.

    Steps of one environment a CPU second, on one core. `raw state` adds bandwidth, latency, utilisation, memory
    and queues as arrays; `options` the value of every option now and 1, 2, 4 and 8 steps ahead instead.
    """
    from dataclasses import replace

    import numpy as np

    from strata.training.replan import observe
    from strata.training.replan.pool import make_pool
    from strata.training.replan.presets import PRESETS
    from strata.training.replan.world import World

    answers: list[dict[str, Any]] = []
    with progress("worlds", total=len(SIZES) * len(SLOTS)) as advance:
        for least, most in SIZES:
            pool = make_pool(seed, instances=instances, domains=(least, most))
            for slots in SLOTS:
                preset = PRESETS["regimes"] if slots == 1 else replace(PRESETS["multijob"], slots=slots)
                made = World(pool, envs, settings=preset)
                rng = np.random.default_rng(seed)
                made.reset(rng)
                rate = _rates(made, steps, rng, observe.state, observe.options)
                size = {"domains": [least, most], "slots": slots, "options": pool.num_options}
                answers.append({**size, **rate})
                advance(len(answers))
    data = {"envs": envs, "instances": instances, "rows": answers}
    emit(data, output, lambda console: _show(console, answers))


def _rates(
    made: Any, steps: int, rng: Any, state: Callable[[Any], Any], options: Callable[[Any], Any]
) -> dict[str, float]:
    """Return steps a CPU second: the world alone, with the raw state, with options."""
    found = {}
    for name, look in (("world", None), ("raw_state", state), ("with_options", options)):
        picks = options(made).legal.argmax(axis=1)
        made.step(picks, rng)
        # Picks are made beforehand: choosing is not the world's work.
        started = time.process_time()
        for _ in range(steps):
            if look is not None:
                look(made)
            made.step(picks, rng)
        found[f"{name}_steps_per_s"] = steps * made.num_envs / (time.process_time() - started)
    return found


def _show(console: Console, answers: list[dict[str, Any]]) -> None:
    body = [
        [
            "-".join(map(str, dict.fromkeys(row["domains"]))),
            str(row["slots"]),
            str(row["options"]),
            *(f"{row[f'{name}_steps_per_s']:,.0f}" for name in ("world", "raw_state", "with_options")),
        ]
        for row in answers
    ]
    headers = ["domains", "jobs at once", "options", "world", "with raw state", "with options"]
    console.print(rows(headers, body, right=range(6), title="environment steps a CPU second, one core"))
