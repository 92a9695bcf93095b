"""Steps a second of the simulated world of re-planning, by its size."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Final

import numpy as np

from strata.learning.worlds import observe
from strata.learning.worlds.pool import make_pool
from strata.learning.worlds.settings import PRESETS
from strata.learning.worlds.world import World
from strata.progress import Progress, silent
from strata.tables import Shown, rows

SIZES: Final = ((4, 8), (16, 16), (32, 32))
"""Fewest and most domains of a fleet."""
SLOTS: Final = (1, 4)
"""Jobs at once."""


def measure(*, envs: int, instances: int, steps: int, seed: int, progress: Progress = silent) -> dict[str, Any]:
    """Step worlds of every size under random picks."""
    rates: list[dict[str, Any]] = []
    with progress("worlds", total=len(SIZES) * len(SLOTS)) as advance:
        for least, most in SIZES:
            pool = make_pool(seed, instances=instances, domains=(least, most))
            for slots in SLOTS:
                preset = PRESETS["regimes"] if slots == 1 else replace(PRESETS["multijob"], slots=slots)
                world = World(pool, envs, settings=preset)
                rng = np.random.default_rng(seed)
                world.reset(rng)
                size = {"domains": [least, most], "slots": slots, "options": pool.num_options}
                rates.append({**size, **_rates(world, steps, rng)})
                advance(len(rates))
    return {"envs": envs, "instances": instances, "rows": rates}


def _rates(world: World, steps: int, rng: np.random.Generator) -> dict[str, float]:
    """Return steps a CPU second: the world alone, with the raw state, with options."""
    rates = {}
    for name, look in (("world", None), ("raw_state", observe.state), ("with_options", observe.options)):
        picks = observe.options(world).legal.argmax(axis=1)
        world.step(picks, rng)
        # Picks are made beforehand: choosing is not the world's work.
        started = time.process_time()
        for _ in range(steps):
            if look is not None:
                look(world)
            world.step(picks, rng)
        rates[f"{name}_steps_per_s"] = steps * world.num_envs / (time.process_time() - started)
    return rates


def show(data: dict[str, Any]) -> Shown:
    """Yield what is shown of the measurement to people."""
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
