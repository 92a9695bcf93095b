"""Train Hi-PPO from several seeds at once on a machine of many cores, and say what came of it.

    python benchmarks/hi_ppo_seeds.py OUT [--seconds 330] [--processes 16]

Each seed is trained by hi_ppo_several_jobs.yaml, first by imitation and then by PPO until 60 % of the time is
gone; what each stage added is measured on fleets that no training sees. The policy of the seed that is best by
the evaluations of training is held against rules, a search that foresees all, and bounds, in the worlds of
`strata learn evaluate --worlds all` (without 16 jobs on 32 domains).

OUT gets SEED/checkpoint.pt for `strata learn export`, runs.json with curves and gains, headroom.json, DONE.
Needs torch; everything runs on CPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from strata.evaluation import headroom
from strata.learning import curriculum, evaluation
from strata.learning.checkpoint import read_checkpoint, write_checkpoint
from strata.learning.export import export
from strata.learning.gain import gains
from strata.learning.learner import CHECKPOINT, Progress, learn
from strata.learning.schema import load_learning
from strata.learning.settings import LearningSettings
from strata.learning.worlds.pool import Pool, make_pool
from strata.training.hi_ppo.policy import load_policy

SEEDS = range(5)
RECIPE = Path(__file__).with_name("hi_ppo_several_jobs.yaml")


def begin_process(folder: Path) -> None:
    """Let this process use one thread, and take fleets from a folder: there every one is made once for all."""
    torch.set_num_threads(1)

    def kept(seed: int, *, instances: int, shares: Sequence[float]) -> Pool:
        file = folder / f"{seed}-{instances}-{len(shares)}.pickle"
        if not file.exists():
            part = file.with_suffix(f".{os.getpid()}")
            part.write_bytes(pickle.dumps(make_pool(seed, instances=instances, shares=shares)))
            part.replace(file)
        pool: Pool = pickle.loads(file.read_bytes())
        return pool

    curriculum.make_pool = evaluation.make_pool = kept  # type: ignore[assignment]


def make_fleets(learning: LearningSettings, kind: int) -> None:
    """Make the fleets of an evaluation, or for kind TRAINING those that a seed is trained on."""
    if kind == curriculum.TRAINING:
        curriculum.training_environment(0, seed=learning.seed, worker=0, curriculum=learning.curriculum)
        return
    for name in learning.worlds:
        evaluation.WorldEvaluation.of(
            name, instances=learning.evaluation_instances, episodes=2, steps=1, kind=kind
        )


def imitate(seed: int, out: Path) -> None:
    """Train a seed as far as its warm start."""
    learn(replace(load_learning(RECIPE), seed=seed, updates=0), out / str(seed))


def train(seed: int, out: Path, until_s: float) -> dict[str, Any]:
    """Train a seed on until a time, and return its curve and what its stages added."""

    def report(progress: Progress) -> None:
        if progress.done % 5 == 0:
            print(f"seed {seed}: {progress.stage} {progress.done}/{progress.of}", flush=True)

    learning, folder = replace(load_learning(RECIPE), seed=seed), out / str(seed)
    start = read_checkpoint(folder / CHECKPOINT)
    write_checkpoint(folder / CHECKPOINT, replace(start, learning=learning, ended=""))
    run = learn(learning, folder, resume=True, minutes=(until_s - time.time()) / 60, report=report)
    curve = [asdict(point) for point in run.curve]
    return {
        "seed": seed, "updates": run.update, "steps": run.steps, "ended": run.ended,
        "best": asdict(run.best_point), "missed": run.best_point.missed, "curve": curve, **gains(run),
    }  # fmt: skip


def evaluate(checkpoint: Path, places: list[headroom.Place]) -> list[headroom.Earned]:
    """Return what the policy of a checkpoint earns in some worlds of one size."""
    file = checkpoint.with_suffix(f".{os.getpid()}.onnx")
    export(read_checkpoint(checkpoint).network(), file)
    policy = load_policy(file)
    return [headroom.measured(place, policy) for place in places]


def bins(each: int) -> list[list[headroom.Place]]:
    """Return the worlds in so many parts a size, as even as can be."""
    every = [p for p in headroom.places(is_whole=True) if (p.jobs, p.domains) != (16, 32)]
    by_size = [[p for p in every if p.domains == size] for size in headroom.ALL_DOMAINS]
    return [sorted(some, key=lambda p: -p.jobs)[k::each] for some in by_size for k in range(each)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=330.0)
    parser.add_argument("--processes", type=int, default=16)
    asked = parser.parse_args()
    out, began = asked.out, time.time()
    out.mkdir(parents=True, exist_ok=True)
    runs: list[dict[str, Any]] = []
    spare = {"mp_context": get_context("spawn"), "initializer": begin_process, "initargs": (out,)}
    with ProcessPoolExecutor(asked.processes, **spare) as pool:
        first: list[Any] = [pool.submit(imitate, seed, out) for seed in SEEDS]
        learning = load_learning(RECIPE)
        first += [pool.submit(make_fleets, replace(learning, seed=seed), curriculum.TRAINING) for seed in SEEDS]
        first += [pool.submit(make_fleets, replace(learning, worlds=(name,)), kind)
                  for kind in (curriculum.EVALUATION, curriculum.GAIN) for name in learning.worlds]  # fmt: skip
        for job in first:
            job.result()
        print(f"{time.time() - began:.0f} s: imitated", flush=True)
        until_s = began + 0.6 * asked.seconds
        jobs = [pool.submit(train, seed, out, until_s) for seed in SEEDS]
        for job in as_completed(jobs):
            runs.append(job.result())
            (out / "runs.json").write_text(json.dumps(runs, indent=1))
        best = min(runs, key=lambda run: run["missed"])
        print(f"{time.time() - began:.0f} s: seed {best['seed']}", flush=True)
        checkpoint = out / str(best["seed"]) / CHECKPOINT
        parts = [pool.submit(evaluate, checkpoint, some) for some in bins(asked.processes // 4)]
        results = []
        for part in as_completed(parts):
            results += part.result()
            text = json.dumps({"seed": best["seed"], **headroom.summary(results)}, indent=1)
            (out / "headroom.json").write_text(text)
            print(f"{time.time() - began:.0f} s: {len(results)} worlds", flush=True)
    for file in out.glob("*.pickle"):
        file.unlink()
    (out / "DONE").write_text(f"{time.time() - began:.0f} s\n")


if __name__ == "__main__":
    sys.exit(main())
