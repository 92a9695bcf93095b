"""Train Hi-PPO from several seeds, with imitation before PPO and without, and print what each stage added.

    python benchmarks/hi_ppo_seeds.py OUT [--updates N] [--seeds 5] [--processes 2] [--without-imitation]

The recipe is that of `strata learn train`. What a stage added is measured on tables and fleets that played no part
in training: `strata learn export` says the same of a run. OUT gets FORM-SEED/checkpoint.pt, which it reads,
and FORM-SEED/gains.json; a run that is there goes on, or is done. Needs torch; everything runs on CPUs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from strata.learning.checkpoint import Point, read_checkpoint
from strata.learning.gain import gains
from strata.learning.learner import CHECKPOINT, learn
from strata.learning.schema import RECIPE, load_learning
from strata.learning.settings import LearningSettings
from strata.stats import mean_interval


def train(learning: LearningSettings, folder: Path) -> None:
    """Train a seed to its last update, and write what its stages added."""
    torch.set_num_threads(1)
    run = learn(learning, folder, resume=(folder / CHECKPOINT).exists())
    (folder / "gains.json").write_text(json.dumps(gains(run), indent=1))


def percent(values: Sequence[float]) -> str:
    """Return the mean of some seeds with its 95 % interval."""
    interval = mean_interval(np.array(values), rng=np.random.default_rng(0))
    return f"{interval.estimate:+.2%} ({interval.low:+.2%} to {interval.high:+.2%})"


def print_gains(folders: Sequence[Path]) -> None:
    """Print a row a seed, and their means."""
    every = [json.loads((folder / "gains.json").read_text()) for folder in folders]
    print("| seed | imitation | PPO | of that tables | worlds |\n|---|--:|--:|--:|--:|")
    for folder, gain in zip(folders, every, strict=True):
        imitation, ppo = gain["imitation_gain"], gain["ppo_gain"]
        both = " | ".join(f"{g['mean']:+.2%} ({g['low']:+.2%} to {g['high']:+.2%})" for g in (imitation, ppo))
        print(f"| {folder.name} | {both} | {ppo['tables']:+.2%} | {ppo['worlds']:+.2%} |")
    columns = [percent([gain[stage]["mean"] for gain in every]) for stage in ("imitation_gain", "ppo_gain")]
    columns += [percent([gain["ppo_gain"][part] for gain in every]) for part in ("tables", "worlds")]
    print(f"| mean | {' | '.join(columns)} |\n")


def print_curve(folders: Sequence[Path]) -> None:
    """Print how the evaluation went during training, the mean over seeds."""
    curves: list[tuple[Point, ...]] = [read_checkpoint(folder / CHECKPOINT).curve for folder in folders]
    print("| updates | gap to exact on tables | above the better fixed rule in worlds |\n|--:|--:|--:|")
    for points in zip(*curves, strict=False):  # patience may have ended some earlier
        columns = [percent([point.mean_gap for point in points]), percent([point.worlds for point in points])]
        print(f"| {points[0].update} | {' | '.join(columns)} |")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--updates", type=int)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--without-imitation", action="store_true")
    asked = parser.parse_args()
    learning = load_learning(RECIPE)
    if asked.without_imitation:
        learning = replace(learning, warm_start_tables=0)
    learning = replace(learning, updates=asked.updates or learning.updates)
    form = "ppo" if asked.without_imitation else "imitation-ppo"
    folders = [asked.out / f"{form}-{seed}" for seed in range(asked.seeds)]
    began = time.monotonic()
    with ProcessPoolExecutor(asked.processes, get_context("spawn")) as pool:
        jobs: dict[Any, Path] = {
            pool.submit(train, replace(learning, seed=seed), folder): folder for seed, folder in enumerate(folders)
        }
        for job in as_completed(jobs):
            job.result()
            print(f"{time.monotonic() - began:.0f} s: {jobs[job].name}", file=sys.stderr, flush=True)
    print_gains(folders)
    print_curve(folders)


if __name__ == "__main__":
    main()
