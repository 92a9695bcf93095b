"""Training in `strata/AstraSim-v0`: PPO from the untrained policy, held-out episodes by backend, CSV files."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from strata.errors import UsageError
from strata.files import write_json, write_text
from strata.fleet.fleet import Fleet
from strata.learning import ppo
from strata.learning.astra_world import BEST, AstraWorld, Candidates, Judged, judge_rules
from strata.learning.export import export
from strata.learning.network import Scorer, greedy
from strata.learning.settings import PpoSettings
from strata.stats import mean_interval
from strata.training.environment.astra_sim import AstraSimEnv
from strata.training.hi_ppo.features import VERSION

ENVS: Final = 8
EPISODE_STEPS: Final = 8
SETTINGS: Final = PpoSettings(steps=EPISODE_STEPS, gamma=0.0, learning_rate=1e-3, critic_first=2)
"""A placement changes nothing for the steps after it, so nothing is discounted into it."""

CHOSEN_ON: Final = range(10_000, 10_002)
"""Seeds of the episodes by which the better of trained and untrained policy is chosen."""
HELD_OUT: Final = range(20_000, 20_004)
"""Seeds of the episodes whose figures are reported."""

LEARNING_SHARE: Final = 0.7
"""Of the bar of progress; about right for 20 updates and two backends."""

TRAINED: Final = "hi_ppo"
UNTRAINED: Final = "untrained"
EPISODE_COLUMNS: Final = (
    "rule", "episode", "step", "placement", "reward", "step_time_s", "utilization", "wan_bytes", "cost",
    "cost_unit", "efficiency_term", "cost_term",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AstraSettings:
    """What is trained, and where: in the first of `backends`, evaluated in all. model: a name or config.json."""

    backends: tuple[str, ...]
    fleet: Fleet
    model: str
    updates: int
    seed: int


def train_in_astra(
    settings: AstraSettings,
    out: Path,
    *,
    deadline: float = float("inf"),
    clock: Callable[[], float] = time.monotonic,
    advance: Callable[[float], None] = lambda _share: None,
) -> dict[str, Any]:
    """Train, evaluate, and write everything to `out`; return what was measured, as plain data.

    Learns no longer than to the deadline, and goes on with the policy as it is then. What is kept is the better of
    trained and untrained on episodes of their own. Raises UsageError where there is a run in `out` already,
    MissingPart without a backend's binary, StrataError where it hangs or fails.
    """
    policy_file = out / "policy.onnx"
    if policy_file.exists():
        raise UsageError(f"{policy_file} already exists", hint=f"another --out than {out}")
    envs = {name: _environment(settings, name) for name in settings.backends}
    first = envs[settings.backends[0]]
    candidates = Candidates.of(first.problem, first.weights)
    network, updates, steps = _learnt(settings, candidates, deadline=deadline, clock=clock, advance=advance)
    rules = {TRAINED: greedy(network), UNTRAINED: greedy(Scorer())}
    chosen = list(judge_rules(first, candidates, rules, seeds=CHOSEN_ON, steps=EPISODE_STEPS))
    is_better = _mean(chosen, TRAINED) > _mean(chosen, UNTRAINED)
    kept = network if is_better else Scorer()
    rules[TRAINED] = greedy(kept)
    if candidates.uniform >= 0:
        rules["uniform"] = lambda options: np.full(len(options), candidates.uniform)
    evaluations, files = [], []
    for number, (name, env) in enumerate(envs.items(), 1):
        judged = list(judge_rules(env, candidates, rules, seeds=HELD_OUT, steps=EPISODE_STEPS))
        files.append(out / f"astra_{name}.csv")
        write_text(files[-1], _episodes_csv(judged))
        evaluations.append({"backend": name, "steps": len(HELD_OUT) * EPISODE_STEPS, "rules": _figures(judged)})
        advance(LEARNING_SHARE + (1 - LEARNING_SHARE) * number / len(envs))
    files.append(out / "astra.csv")
    write_text(files[-1], _side_by_side_csv(evaluations))
    answer = {
        "world": "astra", "trained_in": settings.backends[0], "fleet": settings.fleet.name,
        "model": settings.model, "seed": settings.seed, "updates": updates, "steps": steps,
        "placements": len(candidates.plans), "kept": "trained" if is_better else "untrained",
        "evaluations": evaluations,
        "policy": str(policy_file), "results": [str(file) for file in files],
    }  # fmt: skip
    export(kept, policy_file)
    record = {key: answer[key] for key in ("world", "trained_in", "seed", "updates", "steps", "kept")}
    domains = len(settings.fleet.domains)
    write_json(
        policy_file.with_suffix(".json"),
        {"policy_version": VERSION, "most_domains": domains, **record, "evaluation": {"astra": evaluations}},
    )
    return answer


def _environment(settings: AstraSettings, backend: str) -> AstraSimEnv:
    return AstraSimEnv(
        fleet=settings.fleet, task_profile=settings.model, backend=backend, episode_steps=EPISODE_STEPS
    )


def _learnt(
    settings: AstraSettings,
    candidates: Candidates,
    *,
    deadline: float,
    clock: Callable[[], float],
    advance: Callable[[float], None],
) -> tuple[Scorer, int, int]:
    """Return the network after PPO, how many updates it had, and the steps they took."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        network = Scorer()
    envs = [_environment(settings, settings.backends[0]) for _ in range(ENVS)]
    worker = ppo.Worker(network, lambda _round: AstraWorld(envs, candidates), SETTINGS, seed=(settings.seed,))
    optimizer, scale, steps = ppo.optimizer_of(network, SETTINGS), ppo.Scale(), 0
    for number in range(settings.updates):
        if clock() >= deadline:
            return network, number, steps
        progress = number / settings.updates
        advance(LEARNING_SHARE * progress)
        scale, played, _ = ppo.update(worker, optimizer, scale, SETTINGS, number=number, progress=progress)
        steps += played.steps
    return network, settings.updates, steps


def _of(judged: Sequence[Judged], rule: str) -> list[Judged]:
    return [item for item in judged if item.rule == rule]


def _mean(judged: Sequence[Judged], rule: str) -> float:
    return float(np.mean([item.reward for item in _of(judged, rule)]))


def _figures(judged: Sequence[Judged]) -> dict[str, dict[str, float]]:
    """Return of each rule its reward and what it consists of; `gain`: over the untrained policy, step by step."""
    untrained = np.array([item.reward for item in _of(judged, UNTRAINED)])
    figures = {}
    for rule in dict.fromkeys(item.rule for item in judged):
        own = _of(judged, rule)
        reward = np.array([item.reward for item in own])
        rng = np.random.default_rng(0)
        interval, gain = mean_interval(reward, rng=rng), mean_interval(reward - untrained, rng=rng)
        figures[rule] = {
            "mean": interval.estimate, "low": interval.low, "high": interval.high,
            "gain": gain.estimate, "gain_low": gain.low, "gain_high": gain.high,
            **{key: float(np.mean([item.info[key] for item in own]))
               for key in ("step_time_s", "utilization", "cost_term")},
        }  # fmt: skip
    assert BEST in figures
    return figures


def _episodes_csv(judged: Sequence[Judged]) -> str:
    rows = [
        {"rule": item.rule, "episode": item.episode, "step": item.step, "placement": _shown(item.placement),
         "reward": item.reward, **{key: item.info[key] for key in EPISODE_COLUMNS[5:]}}
        for item in judged
    ]  # fmt: skip
    return _csv(EPISODE_COLUMNS, rows)


def _shown(placement: Sequence[int]) -> str:
    """Return a placement as layers and domain of each stage: `28@0 27@1`."""
    return " ".join(f"{len(list(layers))}@{domain}" for domain, layers in groupby(placement))


def _side_by_side_csv(evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Return a line a rule, each figure once for every backend."""
    rules = list(evaluations[0]["rules"])
    rows = [
        {"rule": rule, **{f"{each['backend']}_{key}": value
                          for each in evaluations for key, value in each["rules"][rule].items()}}
        for rule in rules
    ]  # fmt: skip
    return _csv(tuple(rows[0]), rows)


def _csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()
