"""PPO of the Dirichlet head: one decision an episode, reward the seeds' R_eff of the best plan that follows it.

A yard is one job on some sites; a decision spreads the job over a random few of them, so that what was built for
the yard serves all its decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import torch
from torch import Tensor

from strata.arrays import Floats
from strata.evaluation.allocation_heads.allocation import Allocator
from strata.evaluation.allocation_heads.dirichlet import DirichletHead, Ratios, batch, observe
from strata.learning.settings import PpoSettings
from strata.training.plan.exact.problem import Problem

Members = tuple[int, ...]

SETTINGS: Final = PpoSettings(
    steps=16, epochs=6, minibatches=2, learning_rate=3e-3, entropy=0.003, max_gradient=1.0, target_kl=0.05
)
"""steps: decisions an update takes from each yard it plays."""

YARDS: Final = 4
"""Yards an update plays."""


@dataclass(frozen=True, eq=False)
class Yard:
    """One job on some sites, of which each decision may use 2 to `most`."""

    problem: Problem
    most: int

    @cached_property
    def allocator(self) -> Allocator:
        """What makes plans of ratios."""
        return Allocator(self.problem)

    @cached_property
    def alone_s(self) -> Floats:
        """[sites]: step of the best plan found on each site alone, inf where the job does not fit."""
        allocations = self.allocator.allocate(np.eye(len(self.problem.fleet.domains)))
        return np.array([item.best.report.step_time_s if item.best else np.inf for item in allocations])

    def draw(self, rng: np.random.Generator) -> Members:
        """Return some sites, one of which at least can run the job alone: what R_eff is measured against."""
        count = len(self.alone_s)
        able = int(rng.choice(np.flatnonzero(np.isfinite(self.alone_s))))
        others = rng.permutation([i for i in range(count) if i != able])
        more = int(rng.integers(1, min(self.most, count)))
        return tuple(sorted([able, *(int(i) for i in others[:more])]))

    def rewards(self, members: Sequence[Members], ratios: Floats) -> Floats:
        """Return the reward [B] of ratios [B, K], K in the order of each decision's members."""
        spread = np.zeros((len(members), len(self.alone_s)))
        for row, (chosen, shares) in enumerate(zip(members, ratios, strict=True)):
            spread[row, list(chosen)] = shares[: len(chosen)]
        allocations = self.allocator.allocate(spread)
        return np.array(
            [
                item.reward(self.alone_s[list(chosen)].min())
                for item, chosen in zip(allocations, members, strict=True)
            ]
        )


@dataclass(frozen=True, slots=True)
class UpdateProgress:
    """One update: its number, the decisions evaluated so far, and the mean reward of those it played."""

    number: int
    decisions: int
    reward: float


def learn(
    yards: Sequence[Yard],
    *,
    rng: np.random.Generator,
    keep_on: Callable[[UpdateProgress], bool],
    config: PpoSettings = SETTINGS,
    width: int = 64,
) -> DirichletHead:
    """Return a head trained by PPO until `keep_on` says no. Yards whose job fits no site alone are left out."""
    torch.manual_seed(int(rng.integers(2**31)))
    network = DirichletHead(width=width)
    optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate, eps=1e-5)
    usable = [yard for yard in yards if np.isfinite(yard.alone_s).any()]
    number = decisions = 0
    going = bool(usable)
    while going:
        picked = [usable[i] for i in rng.permutation(len(usable))[:YARDS]]
        members = [[yard.draw(rng) for _ in range(config.steps)] for yard in picked]
        seen = batch(
            [
                observe(yard.problem, member)
                for yard, drawn in zip(picked, members, strict=True)
                for member in drawn
            ]
        )
        with torch.no_grad():
            policy, value = network(*seen)
            ratios = policy.sample(rng)
            actions = torch.as_tensor(ratios, dtype=torch.float32)
            old = policy.log_prob(actions)
        parts = ratios.reshape(len(picked), config.steps, -1)
        reward = np.concatenate(
            [yard.rewards(drawn, part) for yard, drawn, part in zip(picked, members, parts, strict=True)]
        )
        returns = torch.as_tensor(reward, dtype=torch.float32)
        _improve(network, optimizer, config, seen, actions, old, returns, returns - value, rng)
        number, decisions = number + 1, decisions + len(reward)
        going = keep_on(UpdateProgress(number, decisions, float(reward.mean())))
    return network


def _improve(
    network: DirichletHead, optimizer: torch.optim.Adam, config: PpoSettings, seen: tuple[Tensor, Tensor, Tensor],
    actions: Tensor, old: Tensor, returns: Tensor, advantages: Tensor, rng: np.random.Generator,
) -> None:  # fmt: skip
    """Take the clipped steps of one update."""
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    for _ in range(config.epochs):
        for rows in torch.as_tensor(rng.permutation(len(old))).tensor_split(config.minibatches):
            policy, value = network(*(part[rows] for part in seen))
            log_ratio = policy.log_prob(actions[rows]) - old[rows]
            ratio = log_ratio.exp()
            if float(((ratio - 1) - log_ratio).detach().mean()) > 1.5 * config.target_kl:
                return
            clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
            gain = torch.minimum(ratio * advantages[rows], clipped * advantages[rows]).mean()
            value_loss = 0.5 * (value - returns[rows]).square().mean()
            loss = config.value_weight * value_loss - gain - config.entropy * policy.entropy(actions[rows]).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), config.max_gradient)
            optimizer.step()


def decide(network: DirichletHead, problem: Problem) -> Floats:
    """Return the head's ratios [K] for all domains of a problem, without chance."""
    with torch.no_grad():
        policy: Ratios = network(*batch([observe(problem, tuple(range(len(problem.fleet.domains))))]))[0]
    return np.asarray(policy.mean()[0])
