"""What PPO's updates added to the policy they began with, on tables and worlds that played no part before."""

from __future__ import annotations

from typing import Any

import numpy as np

from strata.arrays import Floats
from strata.learning.checkpoint import TrainingRun
from strata.learning.curriculum import GAIN
from strata.learning.evaluation import Evaluation
from strata.learning.network import Scorer, greedy
from strata.stats import bootstrap


def ppo_gain(run: TrainingRun) -> dict[str, Any] | None:
    """Return the gain of the best policy over that before the first update, None where that is not known.

    In the score of training: of the exact reward on tables, and in worlds of what the better fixed rule earns
    there; paired, with its 95 % interval over tables and episodes.
    """
    if run.before is None:
        return None
    learning = run.learning
    evaluation = Evaluation.of(
        max(2, learning.evaluation_tables), episodes=learning.evaluation_episodes, steps=learning.evaluation_steps,
        worlds=learning.worlds, instances=learning.evaluation_instances, kind=GAIN,
    )  # fmt: skip
    before = Scorer(width=learning.width)
    before.load_state_dict(run.before)
    old, new = greedy(before), greedy(run.network())
    tables = (evaluation.on_tables(new) - evaluation.on_tables(old)) / evaluation.exact
    samples: list[Floats] = [tables]
    if evaluation.worlds:
        worlds = [(world.earned(new) - world.earned(old)) / world.rule for world in evaluation.worlds]
        samples.append(np.concatenate(worlds))
    interval = bootstrap(_sum_of_means, *samples, rng=np.random.default_rng(0))
    return {
        "mean": interval.estimate, "low": interval.low, "high": interval.high,
        "tables": float(tables.mean()), "worlds": float(samples[1].mean()) if evaluation.worlds else None,
    }  # fmt: skip


def _sum_of_means(*samples: Floats) -> float:
    return float(sum(np.mean(sample) for sample in samples))
