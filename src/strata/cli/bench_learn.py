"""`strata bench learn`: steps a second of training, ours beside Stable-Baselines3 on the same environment."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.output import emit, output_option, progress, rows

if TYPE_CHECKING:
    from rich.console import Console

_EPOCHS: Final = 2
_MINIBATCHES: Final = 4
_STEPS: Final = 32
_TABLES: Final = 16
_INSTANCES: Final = 4
"""Fleets of the simulated worlds: more take longer to make, not to play."""

REFERENCES: Final = (
    ("PufferLib 2.0, environment alone, in C, one core", 1e6, "puffer.ai/blog"),
    ("PufferLib 3.0, training, one RTX 5090", 4e6, "puffer.ai/blog"),
    ("LeanRL, PPO on continuous control, one H100", 1774.0, "README of LeanRL, 760837e"),
    ("LeanRL, PPO on Atari, one H100", 6809.0, "README of LeanRL, 760837e"),
)
"""As published, on other problems and machines: an order of magnitude, not a comparison."""


@click.command()
@click.option("--envs", type=click.IntRange(min=_TABLES), default=512, show_default=True, help="At once.")
@click.option("--updates", type=click.IntRange(min=1), default=6, show_default=True, help="Timed, after one more.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Beside the CPU: a CUDA device, where there is one (auto) or has to be one (cuda).",
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
    envs -= envs % _TABLES
    answer = _measure(envs, updates, list(dict.fromkeys(["cpu", device_of(device)])))
    emit(answer, output, lambda console: _show(console, answer))


def _measure(envs: int, updates: int, devices: list[str]) -> dict[str, Any]:
    import torch

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
    found: list[dict[str, Any]] = []
    try:
        with progress("measuring", total=len(jobs)) as advance:
            for name, device, run in jobs:
                found.append({"name": name, "device": device, "steps_per_s": run(device), "trust": "measured"})
                advance(len(found))
    finally:
        torch.set_num_threads(threads)
    speed = {(row["name"], row["device"]): row["steps_per_s"] for row in found}
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
        "weights": _weights(), "rows": found, "ratios": ratios, "notes": notes,
        "references": [{"name": n, "steps_per_s": rate, "source": source} for n, rate, source in REFERENCES],
    }  # fmt: skip


def _weights() -> int:
    from strata.training.hi_ppo.network import Scorer

    return sum(parameter.numel() for parameter in Scorer().parameters())


def _tables(envs: int, device: str) -> Any:
    from strata.training.hi_ppo.lessons import Syllabus, lesson

    return lesson(0, seed=0, worker=0, syllabus=Syllabus(envs, _TABLES), device=_arrays(device))


def _fleets(envs: int, device: str) -> Any:
    from strata.training.hi_ppo.lessons import WorldEnv
    from strata.training.replan.pool import make_pool
    from strata.training.replan.presets import PRESETS
    from strata.training.replan.world import World

    pool = make_pool(0, instances=_INSTANCES)
    return WorldEnv(World(pool, envs, settings=PRESETS["multijob"], device=_arrays(device)))


def _arrays(device: str) -> str | None:
    """Return where environments have their arrays: as in training, NumPy's on a CPU."""
    return None if device == "cpu" else device


def _clock(device: str) -> Callable[[], float]:
    if device == "cpu":
        return time.process_time
    import torch

    def wall() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return wall


def _environment(envs: int, steps: int, device: str) -> float:
    """Return steps a second under random picks, without features or policy."""
    import numpy as np

    from strata.training.replan.draws import draws

    env, rng, clock = _tables(envs, device), draws(np.random.SeedSequence(0), _arrays(device)), _clock(device)
    legal = env.reset(rng).legal
    picks = [(rng.random(legal.shape) * legal).argmax(axis=1) for _ in range(8)]  # legal at every step
    began = clock()
    for step in range(steps):
        env.step(picks[step % len(picks)], rng)
    return envs * steps / (clock() - began)


def _ours(envs: int, updates: int, device: str, make: Callable[[int, str], Any]) -> float:
    from strata.training.hi_ppo import ppo
    from strata.training.hi_ppo.network import Scorer

    config = ppo.Config(
        steps=_STEPS, epochs=_EPOCHS, minibatches=_MINIBATCHES, critic_first=0, target_kl=float("inf")
    )
    network, scale, env = Scorer().to(device), ppo.Scale(), make(envs, device)
    worker = ppo.Worker(network, lambda _lesson: env, config, seed=(0,), device=device, arrays=_arrays(device))
    optimizer, clock = ppo.optimizer_of(network, config), _clock(device)
    began = 0.0
    for number in range(updates + 1):
        if number == 1:
            began = clock()
        scale, _, _ = ppo.update(worker, optimizer, scale, config, number=number, progress=0.0)
    return envs * _STEPS * updates / (clock() - began)


def _peer(envs: int, updates: int, device: str, *, own: bool) -> float:
    from strata.cli.bench_learn_peer import peer

    model = peer(_tables(envs, "cpu"), device=device, steps=_STEPS, epochs=_EPOCHS, minibatches=_MINIBATCHES,
                 weights=_weights() if own else None)  # fmt: skip
    clock = _clock(device)
    model.learn(envs * _STEPS)
    began = clock()
    model.learn(envs * _STEPS * updates)
    return envs * _STEPS * updates / (clock() - began)


def _show(console: Console, answer: dict[str, Any]) -> None:
    body = [(row["name"], row["device"], f"{row['steps_per_s']:,.0f}") for row in answer["rows"]]
    title = f"{answer['envs']} episodes at once, {answer['weights']:,} weights"
    console.print(rows(("what", "device", "steps/s"), body, right=[2], title=title))
    for name, ratio in answer["ratios"].items():
        console.print(f"{name}: {ratio:.2f}")
    for note in answer["notes"]:
        console.print(note)
    console.print()
    body = [(item["name"], f"{item['steps_per_s']:,.0f}", item["source"]) for item in answer["references"]]
    console.print(rows(("published, other problems", "steps/s", "source"), body, right=[1]))
