"""Warm start: learn from exact solutions of small random tables, on the states the learner itself gets into.

Dataset aggregation (Ross et al. 2011, DAgger): the network runs on the tables, the exact worth of every
option in every state it met is the label, and what it expects to lose is the loss. Labels cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strata.arrays import Bools, Floats, Ints
from strata.learning.network import Scorer
from strata.learning.settings import ImitationSettings
from strata.learning.tables.table import Choose
from strata.learning.tables.value_iteration import Solution
from strata.training.hi_ppo.features import features
from strata.training.replan.options import HORIZONS, LINK_FEATURES, Options

STILL_OPTIONS: Final = 24
"""More would only be more of the same: all options share one network."""

Samples = tuple[NDArray[np.float32], NDArray[np.float32], Bools, NDArray[np.float32]]


def greedy(network: Scorer) -> Choose:
    """Return the policy that takes the option of the largest logit."""

    def choose(options: Options) -> Ints:
        inputs = (*features(options), options.legal)
        with torch.no_grad():
            logits = network(*(torch.as_tensor(part, device=_device(network)) for part in inputs))
        return np.asarray(logits.argmax(dim=1).cpu().numpy())

    return choose


def imitate(
    network: Scorer,
    solutions: Sequence[Solution],
    *,
    settings: ImitationSettings,
    rng: np.random.Generator,
    progress: Callable[[int, float], None] = lambda _round, _loss: None,
) -> None:
    """Fit the network to exact solutions. `progress` is told each round and its loss (regret, share of value)."""
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
    rounds, device = settings.rounds, _device(network)
    for number in range(rounds):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * 0.5 * (1 + np.cos(np.pi * number / rounds)) + 1e-5
        samples = _joined(_gather(network, solutions, settings, rng), _still(settings.still, rng))
        count = len(samples[0])
        losses = []
        for _ in range(settings.epochs):
            order = rng.permutation(count)
            for start in range(0, count - settings.batch + 1, settings.batch):
                rows = order[start : start + settings.batch]
                loss, regret = _loss(network, *(torch.as_tensor(part[rows], device=device) for part in samples))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(regret)
        progress(number, float(np.mean(losses)))


def _device(network: Scorer) -> torch.device:
    return next(network.parameters()).device


def _loss(network: Scorer, seen: Tensor, context: Tensor, legal: Tensor, regret: Tensor) -> tuple[Tensor, float]:
    """Expected regret, and cross-entropy with the best option where it matters which one is taken."""
    logits = network(seen, context, legal)
    share = torch.softmax(logits, dim=1)
    expected = (share * regret).sum(dim=1)
    target = torch.softmax(torch.where(legal, -regret / 0.004, torch.full_like(regret, -1e9)), dim=1)
    matters = (regret.masked_fill(~legal, 0.0).amax(dim=1) / 0.05).clamp(max=1.0)
    cross = -(target * torch.log_softmax(logits, dim=1).clamp(min=-50.0)).sum(dim=1)
    return (20.0 * expected + 0.1 * matters * cross).mean(), float(expected.detach().mean())


def _gather(
    network: Scorer, solutions: Sequence[Solution], settings: ImitationSettings, rng: np.random.Generator
) -> Samples:
    """Return what the network met on every table, padded to the most options: features, context, legal, regret."""
    most = max(solution.table.reward.shape[1] for solution in solutions)
    choose = greedy(network)
    samples: list[Samples] = []
    for solution in solutions:
        table = solution.table
        plans = table.reward.shape[1]
        states = table.chains.paths(settings.episodes, settings.steps, rng)
        current = rng.integers(plans, size=settings.episodes)
        for now in states:
            options = table.options(now, current)
            seen, context = features(options)
            samples.append(_padded(seen, context, options.legal, _regret(solution, now, current), most))
            chance = rng.random(len(now))
            current = np.where(chance < settings.astray, rng.integers(plans, size=len(now)), choose(options))
            current = np.where(chance < settings.astray / 4, -1, current)
    return tuple(np.concatenate(parts) for parts in zip(*samples, strict=True))  # type: ignore[return-value]


def _still(count: int, rng: np.random.Generator) -> Samples:
    """Return first decisions where nothing changes: any objective, many options, some of them nearly as good."""
    value = 1 - rng.exponential(rng.uniform(0.01, 0.5, size=(count, 1)), size=(count, STILL_OPTIONS))
    legal = np.arange(STILL_OPTIONS) < rng.integers(2, STILL_OPTIONS + 1, size=(count, 1))
    options = Options(
        value=np.repeat(value[..., None], len(HORIZONS), axis=2),
        cost=np.zeros_like(value),
        links=np.ones((count, STILL_OPTIONS, len(LINK_FEATURES))),
        current=np.full(count, -1),
        legal=legal,
        preference=rng.dirichlet(np.ones(3), size=count),
    )
    best = np.where(legal, value, -np.inf).max(axis=1, keepdims=True)
    # A difference that stays is worth many steps of it.
    return _padded(*features(options), legal, np.where(legal, 8 * (best - value), 0.0), STILL_OPTIONS)


def _joined(first: Samples, second: Samples) -> Samples:
    most = max(part[0].shape[1] for part in (first, second))
    pairs = zip(*(_padded(*part, most) for part in (first, second)), strict=True)
    return tuple(np.concatenate(pair) for pair in pairs)  # type: ignore[return-value]


def _regret(solution: Solution, states: Ints, current: Ints) -> Floats:
    """Return [B, P]: what each option loses against the best one, as a share of the best reward now."""
    worth = solution.worth(states, current)
    reward = solution.table.reward[states].max(axis=1, keepdims=True)
    return np.asarray((worth.max(axis=1, keepdims=True) - worth) / reward)


def _padded(
    seen: NDArray[np.float32], context: NDArray[np.float32], legal: Bools, regret: NDArray[Any], most: int
) -> Samples:
    extra = most - legal.shape[1]
    return (
        np.pad(seen, ((0, 0), (0, extra), (0, 0))),
        context,
        np.pad(legal, ((0, 0), (0, extra))),
        np.pad(regret, ((0, 0), (0, extra))).astype(np.float32),
    )
