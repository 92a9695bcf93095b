"""Warm start: learn from exact solutions of small random tables, on the states the learner itself gets into.

Dataset aggregation (Ross et al. 2011, DAgger): the network runs on the tables, the exact worth of every
option in every state it met is the label, and what it expects to lose is the loss. Labels cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from strata.arrays import Floats, Ints
from strata.learning.network import Scorer, Seen, picked
from strata.learning.settings import ImitationSettings
from strata.learning.tables.value_iteration import Solution
from strata.training.replan.options import HORIZONS, LINK_FEATURES, Options

STILL_OPTIONS: Final = 24
"""More would only be more of the same: all options share one network."""

Sample = tuple[Seen, Floats]
"""Decisions, and what each of their options loses [N, P]."""


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
    rounds, device = settings.rounds, network.device
    for number in range(rounds):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * 0.5 * (1 + np.cos(np.pi * number / rounds)) + 1e-5
        samples = [*_gather(network, solutions, settings, rng), _still(settings.still, rng, device)]
        seen = Seen.joined([part for part, _ in samples])
        count, most = seen.legal.shape
        regret = torch.cat([pad(_single(part, device), (0, most - part.shape[1])) for _, part in samples])
        losses = []
        for _ in range(settings.epochs):
            order = rng.permutation(count)
            for start in range(0, count - settings.batch + 1, settings.batch):
                rows = torch.as_tensor(order[start : start + settings.batch], device=device)
                loss, missed = _loss(network, seen[rows], regret[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(missed)
        progress(number, float(np.mean(losses)))


def _loss(network: Scorer, seen: Seen, regret: Tensor) -> tuple[Tensor, float]:
    """Expected regret, and cross-entropy with the best option where it matters which one is taken."""
    logits, legal = network(*seen.parts()), seen.legal
    share = torch.softmax(logits, dim=1)
    expected = (share * regret).sum(dim=1)
    target = torch.softmax(torch.where(legal, -regret / 0.004, torch.full_like(regret, -1e9)), dim=1)
    matters = (regret.masked_fill(~legal, 0.0).amax(dim=1) / 0.05).clamp(max=1.0)
    cross = -(target * torch.log_softmax(logits, dim=1).clamp(min=-50.0)).sum(dim=1)
    return (20.0 * expected + 0.1 * matters * cross).mean(), float(expected.detach().mean())


def _gather(
    network: Scorer, solutions: Sequence[Solution], settings: ImitationSettings, rng: np.random.Generator
) -> Iterator[Sample]:
    """Yield what the network meets on every table, step by step."""
    for solution in solutions:
        table = solution.table
        plans = table.reward.shape[1]
        states = table.chains.paths(settings.episodes, settings.steps, rng)
        current = rng.integers(plans, size=settings.episodes)
        for now in states:
            seen = Seen.of(table.options(now, current), network.device)
            yield seen, _regret(solution, now, current)
            chance = rng.random(len(now))
            astray = rng.integers(plans, size=len(now))
            current = np.where(chance < settings.astray, astray, picked(network, seen))
            current = np.where(chance < settings.astray / 4, -1, current)


def _still(count: int, rng: np.random.Generator, device: torch.device) -> Sample:
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
    return Seen.of(options, device), np.where(legal, 8 * (best - value), 0.0)


def _regret(solution: Solution, states: Ints, current: Ints) -> Floats:
    """Return [B, P]: what each option loses against the best one, as a share of the best reward now."""
    worth = solution.worth(states, current)
    reward = solution.table.reward[states].max(axis=1, keepdims=True)
    return np.asarray((worth.max(axis=1, keepdims=True) - worth) / reward)


def _single(values: Floats, device: torch.device) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float32, device=device)
