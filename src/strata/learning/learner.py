"""A training run: warm start, then PPO round by round, an evaluation after each, the best network kept.

A round is some updates on environments of its own; everything random in it follows from the seed, the worker
and its number. So a checkpoint, written after each evaluation, holds no state of environments or generators, and a
resumed run ends with the same weights, bit for bit on one CPU worker.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from strata.errors import UsageError
from strata.learning import ppo
from strata.learning.checkpoint import Point, TrainingRun, device_name, read_checkpoint, write_checkpoint
from strata.learning.curriculum import (
    WARM_START,
    solved_tables,
    stream,
    training_environment,
)
from strata.learning.evaluation import Evaluation
from strata.learning.imitation import imitate
from strata.learning.network import Scorer, greedy
from strata.learning.settings import LearningSettings

CHECKPOINT: Final = "checkpoint.pt"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is, after every update and every round of imitation."""

    stage: str
    done: int
    of: int
    reward: float = 0.0
    closed: float | None = None
    """Of the last evaluation."""
    steps_per_s: float = 0.0


Report = Callable[[Progress], None]


def learn(
    learning: LearningSettings,
    out: Path,
    *,
    resume: bool = False,
    device: str = "cpu",
    workers: int = 1,
    minutes: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    report: Report = lambda _progress: None,
) -> TrainingRun:
    """Train, and return the run, which is also in `out`/checkpoint.pt after every evaluation.

    Ends after all updates, when evaluations bring nothing better, or when `minutes` have passed; a resumed run
    goes on from the last evaluation, with the updates and the patience of `learning`, its other settings as
    before.
    KeyboardInterrupt passes through: the checkpoint holds the best of the policies until then.
    Raises UsageError where `minutes` are over before the warm start is, of which nothing can be kept.
    """
    file = out / CHECKPOINT
    if not resume and file.exists():
        raise UsageError(f"{file} already exists", hint=f"--resume to go on with it, or another --out than {out}")
    deadline = clock() + 60 * minutes if minutes is not None else float("inf")
    with _one_thread(device):
        if resume:
            run = read_checkpoint(file)
            goes_on = replace(run.learning, updates=learning.updates, patience=learning.patience)
            run = replace(
                run, learning=goes_on, ended="", device=device, device_name=device_name(device), workers=workers
            )
            evaluation = _evaluation(run.learning)
        else:
            evaluation = _evaluation(learning)
            run = _warm_start(
                learning, evaluation, device=device, workers=workers, deadline=deadline, clock=clock, report=report
            )
            write_checkpoint(file, run)
        network = Scorer(width=run.learning.width)
        network.load_state_dict(run.weights)
        network.to(run.device)
        with _workers(run, network) as group:
            optimizer = ppo.optimizer_of(network, run.learning.ppo)
            if run.optimizer is not None:
                optimizer.load_state_dict(run.optimizer)
            while not run.ended:
                run = _round(
                    run, network, group, optimizer, evaluation, deadline=deadline, clock=clock, report=report
                )
                write_checkpoint(file, run)
    return run


def _warm_start(
    learning: LearningSettings,
    evaluation: Evaluation,
    *,
    device: str,
    workers: int,
    deadline: float,
    clock: Callable[[], float],
    report: Report,
) -> TrainingRun:
    """Return a run before its first update: the safe rule, or what imitation made of it."""
    began = clock()

    def taught(number: int, _loss: float) -> None:
        done, now = number + 1, clock()
        report(Progress("imitation", done, rounds))
        if now >= deadline and done < rounds:
            needs = (now - began) * rounds / done / 60
            raise UsageError(
                f"the time is over, and {done} of {rounds} rounds of imitation are: nothing was saved",
                hint=f"--minutes {math.ceil(needs + 1)} or more: imitation alone takes {needs:.1f} here",
            )

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(learning.seed)
        network = Scorer(width=learning.width)
    settings, rounds = learning.imitation, learning.imitation.rounds
    if learning.warm_start_tables:
        report(Progress("solving", 0, rounds))
        imitate(
            network,
            solved_tables(learning.warm_start_tables, seed=learning.seed),
            settings=settings,
            rng=stream(learning.seed, WARM_START, 1),
            progress=taught,
        )
    score = evaluation.score(greedy(network))
    weights = _on_cpu(network.state_dict())
    elapsed_s = clock() - began
    first = Point(0, 0, elapsed_s, 0.0, score.mean_gap, score.worst_gap, score.closed, worlds=score.worlds)
    return TrainingRun(
        learning,
        device,
        device_name(device),
        workers,
        weights,
        weights,
        elapsed_s=elapsed_s,
        curve=(first,),
        before=weights,
    )


def _round(
    run: TrainingRun,
    network: Scorer,
    workers: ppo.WorkerGroup,
    optimizer: torch.optim.Adam,
    evaluation: Evaluation,
    *,
    deadline: float,
    clock: Callable[[], float],
    report: Report,
) -> TrainingRun:
    """Return the run after one more round and its evaluation; a round that the deadline cuts short is lost."""
    learning, scale, steps, began = run.learning, run.scale, run.steps, clock()
    last = min(run.update + learning.updates_per_evaluation, learning.updates)
    if run.update >= last:
        return replace(run, ended="updates")
    workers.begin(run.update // learning.updates_per_evaluation)
    for number in range(run.update, last):
        before = clock()
        if before >= deadline:
            return replace(run, ended="minutes")
        progress = number / learning.updates
        scale, played, losses = ppo.update(
            workers, optimizer, scale, learning.ppo, number=number, progress=progress
        )
        steps += played.steps
        rate = played.steps / max(clock() - before, 1e-9)
        report(Progress("ppo", number + 1, learning.updates, float(played.reward[0]), run.curve[-1].closed, rate))
    score = evaluation.score(greedy(network))
    elapsed_s = run.elapsed_s + clock() - began
    point = Point(
        last, steps, elapsed_s, float(played.reward[0]), score.mean_gap, score.worst_gap, score.closed,
        losses.policy, losses.value, losses.entropy, losses.kl, score.worlds,
    )  # fmt: skip
    weights = _on_cpu(network.state_dict())
    after = replace(
        run,
        weights=weights,
        best=weights if point.missed < run.best_point.missed else run.best,
        optimizer=_on_cpu(optimizer.state_dict()),
        scale=scale,
        update=last,
        steps=steps,
        elapsed_s=elapsed_s,
        curve=(*run.curve, point),
    )
    return replace(after, ended="patience" if after.is_stale else "")


def _evaluation(learning: LearningSettings) -> Evaluation:
    return Evaluation.of(
        learning.evaluation_tables, episodes=learning.evaluation_episodes, steps=learning.evaluation_steps,
        worlds=learning.worlds, instances=learning.evaluation_instances,
    )  # fmt: skip


@contextmanager
def _workers(run: TrainingRun, network: Scorer) -> Iterator[ppo.WorkerGroup]:
    """Yield who plays: this process, or workers on Ray."""
    learning = run.learning
    make = partial(make_worker, learning, run.device, run.before if learning.warm_start_tables else None)
    if run.workers == 1:
        yield make(network, 0)
    else:
        from strata.learning.workers import ray_workers

        with ray_workers(network, make, workers=run.workers, width=learning.width, device=run.device) as workers:
            yield workers


def make_worker(
    learning: LearningSettings, device: str, taught: dict[str, Any] | None, network: Scorer, number: int
) -> ppo.Worker:
    """Return one of the workers of a run, by number. taught: the weights that imitation left, if it had a part."""
    before = None
    if taught is not None:
        before = Scorer(width=learning.width)
        before.load_state_dict(taught)
        before.to(device)
    # NumPy is the faster of the two on a CPU; on another device environments are where the network is.
    arrays = None if device == "cpu" else device
    make_env = partial(
        training_environment, seed=learning.seed, worker=number, curriculum=learning.curriculum, device=arrays
    )
    return ppo.Worker(
        network, make_env, learning.ppo, seed=(learning.seed, number), device=device, arrays=arrays, taught=before
    )


@contextmanager
def _one_thread(device: str) -> Iterator[None]:
    """Let torch use one CPU thread: sums then always have one order, and small networks are faster so.

    Denormal numbers are zero meanwhile: where a policy is sure, nearly all gradients are such, and products with
    them take several times as long.
    """
    threads = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)


def _on_cpu(state: Any) -> Any:
    """Return a copy of a state with all its tensors on the CPU."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {key: _on_cpu(value) for key, value in state.items()}
    return [_on_cpu(value) for value in state] if isinstance(state, list) else state
