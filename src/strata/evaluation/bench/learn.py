"""PPO steps a second, ours beside Stable-Baselines3 on the same environment. Needs torch."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch

from strata.learning import ppo
from strata.learning.curriculum import WorldEnv, training_environment
from strata.learning.draws import draws
from strata.learning.network import Scorer
from strata.learning.settings import Curriculum, PpoSettings
from strata.learning.worlds.pool import make_pool
from strata.learning.worlds.settings import PRESETS
from strata.progress import Progress, silent
from strata.tables import Shown, rows

_EPOCHS: Final = 2
_MINIBATCHES: Final = 4
_STEPS: Final = 32
TABLES: Final = 16
_INSTANCES: Final = 4
"""Fleets of the simulated worlds: more take longer to make, not to play."""

REFERENCES: Final = (
    ("PufferLib 2.0, environment alone, in C, one core", 1e6, "puffer.ai/blog"),
    ("PufferLib 3.0, training, one RTX 5090", 4e6, "puffer.ai/blog"),
    ("LeanRL, PPO on continuous control, one H100", 1774.0, "README of LeanRL, 760837e"),
    ("LeanRL, PPO on Atari, one H100", 6809.0, "README of LeanRL, 760837e"),
)
"""As published, on other problems and machines: an order of magnitude, not a comparison."""


def measure(*, envs: int, updates: int, devices: Sequence[str], progress: Progress = silent) -> dict[str, Any]:
    """Play `envs` episodes at once and learn `updates` times on every device; needs torch."""
    envs -= envs % TABLES
    has_peer = importlib.util.find_spec("stable_baselines3") is not None
    jobs: list[tuple[str, str, Callable[[str], float]]] = []
    for device in devices:
        jobs += [
            ("environment alone", device, lambda on: _environment(envs, updates * _STEPS, on)),
            ("strata", device, lambda on: _ours(envs, updates, on, _tables)),
            ("strata, simulated fleets", device, lambda on: _ours(envs, updates, on, _fleets)),
        ]
        if has_peer:
            jobs.append(("Stable-Baselines3, our network", device, lambda on: _peer(envs, updates, on, own=False)))
    if has_peer:
        jobs.append(("Stable-Baselines3, its perceptron", "cpu", lambda on: _peer(envs, updates, on, own=True)))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rates: list[dict[str, Any]] = []
    try:
        with progress("measuring", total=len(jobs)) as advance:
            for name, device, run in jobs:
                rates.append({"name": name, "device": device, "steps_per_s": run(device), "trust": "measured"})
                advance(len(rates))
    finally:
        torch.set_num_threads(threads)
    speed = {(row["name"], row["device"]): row["steps_per_s"] for row in rates}
    ratios = {
        f"strata / {name} ({device})": speed["strata", device] / rate
        for (name, device), rate in speed.items()
        if name.startswith("Stable")
    }
    notes = (
        [] if has_peer else ["stable-baselines3 is not installed: no peer was run (pip install stable-baselines3)"]
    )
    if not torch.cuda.is_available():
        notes.append("no CUDA device is here: CPU only")
    return {
        "envs": envs, "steps": _STEPS, "epochs": _EPOCHS, "minibatches": _MINIBATCHES, "updates": updates,
        "weights": _weights(), "rows": rates, "ratios": ratios, "notes": notes,
        "references": [{"name": n, "steps_per_s": rate, "source": source} for n, rate, source in REFERENCES],
    }  # fmt: skip


def _weights() -> int:
    return sum(parameter.numel() for parameter in Scorer().parameters())


def _tables(envs: int, device: str) -> Any:
    return training_environment(0, seed=0, worker=0, curriculum=Curriculum(envs, TABLES), device=_arrays(device))


def _fleets(envs: int, device: str) -> Any:
    pool = make_pool(0, instances=_INSTANCES)
    return WorldEnv(pool, envs, settings=PRESETS["multijob"], device=_arrays(device))


def _arrays(device: str) -> str | None:
    """Return where environments have their arrays: as in training, NumPy's on a CPU."""
    return None if device == "cpu" else device


def _clock(device: str) -> Callable[[], float]:
    if device == "cpu":
        return time.process_time

    def wall() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return wall


def _environment(envs: int, steps: int, device: str) -> float:
    """Return steps a second under random picks, without features or policy."""

    env, rng, clock = _tables(envs, device), draws(np.random.SeedSequence(0), _arrays(device)), _clock(device)
    legal = env.reset(rng).legal
    picks = [(rng.random(legal.shape) * legal).argmax(axis=1) for _ in range(8)]  # legal at every step
    began = clock()
    for step in range(steps):
        env.step(picks[step % len(picks)], rng)
    return envs * steps / (clock() - began)


def _ours(envs: int, updates: int, device: str, make: Callable[[int, str], Any]) -> float:
    config = PpoSettings(
        steps=_STEPS, epochs=_EPOCHS, minibatches=_MINIBATCHES, critic_first=0, target_kl=float("inf")
    )
    network, scale, env = Scorer().to(device), ppo.Scale(), make(envs, device)
    worker = ppo.Worker(network, lambda _number: env, config, seed=(0,), device=device, arrays=_arrays(device))
    optimizer, clock = ppo.optimizer_of(network, config), _clock(device)
    began = 0.0
    for number in range(updates + 1):
        if number == 1:
            began = clock()
        scale, _, _ = ppo.update(worker, optimizer, scale, config, number=number, progress=0.0)
    return envs * _STEPS * updates / (clock() - began)


def _peer(envs: int, updates: int, device: str, *, own: bool) -> float:
    from strata.evaluation.bench.stable_baselines3 import peer

    model = peer(_tables(envs, "cpu"), device=device, steps=_STEPS, epochs=_EPOCHS, minibatches=_MINIBATCHES,
                 weights=_weights() if own else None)  # fmt: skip
    clock = _clock(device)
    model.learn(envs * _STEPS)
    began = clock()
    model.learn(envs * _STEPS * updates)
    return envs * _STEPS * updates / (clock() - began)


def show(data: dict[str, Any]) -> Shown:
    """Yield what is shown of the measurement to people."""
    body = [(row["name"], row["device"], f"{row['steps_per_s']:,.0f}") for row in data["rows"]]
    title = f"{data['envs']} episodes at once, {data['weights']:,} weights"
    yield rows(("what", "device", "steps/s"), body, right=[2], title=title)
    for name, ratio in data["ratios"].items():
        yield f"{name}: {ratio:.2f}"
    yield from data["notes"]
    yield ""
    body = [(item["name"], f"{item['steps_per_s']:,.0f}", item["source"]) for item in data["references"]]
    yield rows(("published, other problems", "steps/s", "source"), body, right=[1])
