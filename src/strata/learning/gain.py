"""What each stage of a training added, on tables and worlds that played no part before."""

from __future__ import annotations

from typing import Any

import numpy as np

from strata.learning.checkpoint import TrainingRun
from strata.learning.curriculum import GAIN
from strata.learning.evaluation import Evaluation
from strata.learning.network import Scorer, greedy
from strata.learning.tables.table import Choose
from strata.learning.worlds.settings import PRESETS
from strata.stats import bootstrap, mean_interval
from strata.training.hi_ppo.policy import ALONE, NETWORK, RULES, SEVERAL, UNTRAINED


def gains(run: TrainingRun) -> dict[str, Any]:
    """Return what imitation added to the untrained policy and PPO's updates to that; None where it is not known.

    In the score of training: of the exact reward on tables, and in worlds of what the better fixed rule earns
    there; paired, with its 95 % interval over tables and episodes. by_world: the same of each world. What decides
    among one and among several jobs: the network where its gain over the untrained policy in such worlds is above
    zero with its interval, else the untrained.
    """
    if run.before is None:
        return {"imitation_gain": None, "ppo_gain": None}
    learning = run.learning
    evaluation = Evaluation.of(
        max(2, learning.evaluation_tables), episodes=learning.evaluation_episodes, steps=learning.evaluation_steps,
        worlds=learning.worlds, instances=learning.evaluation_instances, kind=GAIN,
    )  # fmt: skip
    before = Scorer(width=learning.width)
    before.load_state_dict(run.before)
    untrained, imitated, trained = (
        _Earned(evaluation, greedy(network)) for network in (Scorer(width=learning.width), before, run.network())
    )
    return {
        "imitation_gain": _gain(learning.worlds, untrained, imitated),
        "ppo_gain": _gain(learning.worlds, imitated, trained),
        RULES: _decides(learning.worlds, untrained, trained),
    }


def _decides(names: tuple[str, ...], old: _Earned, new: _Earned) -> dict[str, str]:
    gains: dict[str, list[Any]] = {}
    for name, before, after in zip(names, old.worlds, new.worlds, strict=True):
        gains.setdefault(ALONE if PRESETS[name].slots == 1 else SEVERAL, []).append(after - before)
    rng = np.random.default_rng(0)
    lows = {family: mean_interval(np.concatenate(each), rng=rng).low for family, each in gains.items()}
    return {family: NETWORK if low > 0 else UNTRAINED for family, low in lows.items()}


class _Earned:
    """What a policy earns on each table and in each episode of each world, in the units of the score."""

    def __init__(self, evaluation: Evaluation, choose: Choose) -> None:
        self.tables = evaluation.on_tables(choose) / evaluation.exact
        self.worlds = [world.earned(choose) / world.rule for world in evaluation.worlds]


def _gain(names: tuple[str, ...], old: _Earned, new: _Earned) -> dict[str, Any]:
    tables = new.tables - old.tables
    worlds = [after - before for before, after in zip(old.worlds, new.worlds, strict=True)]
    samples = [tables, np.concatenate(worlds)] if worlds else [tables]
    rng = np.random.default_rng(0)
    interval = bootstrap(_sum_of_means, *samples, rng=rng)
    each = {name: mean_interval(world, rng=rng) for name, world in zip(names, worlds, strict=True)}
    return {
        "mean": interval.estimate, "low": interval.low, "high": interval.high,
        "tables": float(tables.mean()), "worlds": float(samples[1].mean()) if worlds else None,
        "by_world": {name: {"mean": i.estimate, "low": i.low, "high": i.high} for name, i in each.items()},
    }  # fmt: skip


def _sum_of_means(*samples: Any) -> float:
    return float(sum(np.mean(sample) for sample in samples))
