"""Proximal policy optimisation (Schulman et al. 2017) of a scorer of options, top to bottom in one file.

T steps are played in B environments at once, then the network takes a few epochs of clipped steps on them.
Rewards, values and advantages have three parts (efficiency, utilisation, communication cost; more is better),
mixed as late as possible and by the preference of each decision: see `tchebycheff`. With all weight on
efficiency this is ordinary PPO.

One `Worker` plays and computes gradients. Alone it is handed to `update` itself; several, in processes of
their own, stand behind `workers.RayWorkers`, which averages what they answer.

Letters in shapes: T steps, B environments, N = T x B decisions, P options, F and C features of an option and of
the decision (`features.py`). The layout follows CleanRL's ppo.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Final, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from strata.arrays import Floats
from strata.learning.draws import Draws, draws
from strata.learning.network import NUM_OBJECTIVES, Scorer, Seen, by_width
from strata.learning.settings import PpoSettings
from strata.learning.tables.environment import TABLES
from strata.training.replan.arrays import Array
from strata.training.replan.options import Options

WARM_UP: Final = 10
"""Updates of the policy in which the step grows: Adam's first ones are of full size whatever the gradient is, and
carried warm starts away."""


class Env(Protocol):
    """B = `num_envs` problems that go on for ever, cut into episodes. What was handed out is not written to.

    Arrays are NumPy's, or torch's on one device; picks and random numbers come as they are.
    """

    num_envs: int
    kinds: tuple[tuple[str, int], ...]
    """How many of the problems are of each kind, kind by kind: what one earns is no measure of another."""

    def reset(self, rng: Draws) -> Options:
        """Start new episodes everywhere, and return the first decisions."""
        ...

    def step(self, picks: Array, rng: Draws) -> tuple[Options, Array, Array]:
        """Take option `picks` [B]; return the next decisions, rewards [B, 3] and done [B].

        done: the decision returned belongs to another episode (the old one was cut; it did not come to an
        end that is worth nothing).
        """
        ...


MakeEnv = Callable[[int], Env]


@dataclass(frozen=True, slots=True)
class Scale:
    """Mean and spread of returns, per objective: the unit the critic answers in, the same for all workers."""

    mean: tuple[float, ...] = (0.0,) * NUM_OBJECTIVES
    std: tuple[float, ...] = (1.0,) * NUM_OBJECTIVES
    updates: int = 0

    def follow(self, played: Played, config: PpoSettings) -> Scale:
        """Return the scale after an update: a running mean over about the last 20.

        The mean return is that of the rewards played, for ever: returns as the critic sees them would start at
        what it first guessed, and take long to leave that.
        """
        share = max(1 / (self.updates + 1), 0.05)
        new_mean = (1 - share) * np.array(self.mean) + share * played.reward / (1 - config.gamma)
        new_std = (1 - share) * np.array(self.std) + share * np.maximum(played.return_std, 1e-4)
        return Scale(tuple(map(float, new_mean)), tuple(map(float, new_std)), self.updates + 1)


@dataclass(frozen=True, slots=True)
class Batch:
    """N decisions played: what was seen, picked [N], how likely that was [N], and what came of it [N, 3].

    taught [N, P]: how likely each option was before PPO, where that is to be kept; else zeros.
    """

    seen: Seen
    picks: Tensor
    log_prob: Tensor
    advantages: Tensor
    returns: Tensor
    taught: Tensor

    def __getitem__(self, rows: Tensor) -> Batch:
        return Batch(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Played:
    """What the learner is told of T x B steps: rewards a step [3], and the spread of the returns [3]."""

    reward: Floats
    return_std: Floats
    steps: int


@dataclass(frozen=True, slots=True)
class Losses:
    """Of one minibatch, or the mean of several. kl: how far the policy moved since it was played with."""

    policy: float
    value: float
    entropy: float
    kl: float


def gae(rewards: Tensor, values: Tensor, done: Tensor, *, gamma: float, gae_lambda: float) -> Tensor:
    """Return the generalised advantages [T, B, 3] (Schulman et al. 2016) of each objective.

    rewards: [T, B, 3]; values: [T + 1, B, 3]; done: [T, B]. Where an episode was cut, what followed is taken
    to be worth what the state before it was: the problem went on, nobody saw how.
    """
    advantages = torch.zeros_like(rewards)
    tail = torch.zeros_like(rewards[0])
    for step in reversed(range(len(rewards))):
        cut = done[step].unsqueeze(-1)
        following = torch.where(cut, values[step], values[step + 1])
        surprise = rewards[step] + gamma * following - values[step]
        tail = surprise + gamma * gae_lambda * torch.where(cut, 0.0, tail)
        advantages[step] = tail
    return advantages


def by_kind(advantages: Tensor, kinds: Sequence[tuple[str, int]]) -> Tensor:
    """Return advantages [T, B, 3] with mean 0 and spread 1 for each objective within each kind of problem.

    Before objectives are mixed: none is drowned by the size of another. By kind: the critic cannot tell kinds
    apart, so what it is wrong about in one would push up or down whatever was picked there.
    """
    parts = advantages.split([count for _, count in kinds], dim=1)
    scaled = [(part - part.mean(dim=(0, 1))) / (part.std(dim=(0, 1)) + 1e-8) for part in parts]
    return torch.cat(scaled, dim=1)


def tchebycheff(preference: Tensor, value: Tensor, *, augmentation: float) -> Tensor:
    """Return the weights [N, 3] by which advantages are mixed; rows sum to 1.

    The gradient of the augmented Tchebycheff utility -max_k g_k - rho sum_k g_k (Steuer and Choo 1983), where
    g_k = w_k (ideal_k - value_k) is how far objective k, weighted, falls short. A weighted sum of rewards
    instead would reach only the convex part of a Pareto front. `value` [N, 3] is in units of `Scale`; the
    ideal of each objective is two standard deviations above its mean, and ranges are equal in these units.
    """
    short = preference * (2.0 - value)
    # An objective nobody asked for is never the worst one, not even where the others are above their ideal.
    worst = torch.where(preference > 0, short, -torch.inf).argmax(dim=1, keepdim=True)
    mixed = preference * (augmentation + torch.zeros_like(preference).scatter_(1, worst, 1.0))
    return mixed / mixed.sum(dim=1, keepdim=True)


class _Decided(NamedTuple):
    """One step of all environments: see Batch; value [B, 3] in units of `Scale`."""

    seen: Seen
    picks: Tensor
    log_prob: Tensor
    value: Tensor


class Worker:
    """Plays its own environments, and says where its network should go.

    make_env: what makes its environments, by number of the round. seed: names all its random numbers. device: of
    the network. arrays: the device of the environments' arrays, None where they are NumPy's. taught: the network
    that imitation left, whose answers on tables are kept.
    """

    def __init__(
        self, network: Scorer, make_env: MakeEnv, config: PpoSettings, *, seed: tuple[int, ...],
        device: str = "cpu", arrays: str | None = None, taught: Scorer | None = None,
    ) -> None:  # fmt: skip
        self.network = network
        self._taught = taught
        self.config = config
        self.device = device
        self._arrays = arrays
        self._make_env = make_env
        self._env = make_env(0)
        self._seed = seed
        self._options: Options | None = None
        self._batch: Batch | None = None
        self._shuffle: torch.Generator | None = None
        self._order = torch.empty(0, dtype=torch.int64)

    def begin(self, number: int) -> None:
        """Leave the environments for those of a round. What is played then depends on nothing played before."""
        self._env = self._make_env(number)
        self._options = None

    def play(self, number: int, scale: Scale) -> Played:
        """Play T steps, and keep them for `gradients`. `number` of the update decides all that is random."""
        source = np.random.SeedSequence((*self._seed, number))
        rng = draws(source, self._arrays)
        sampling, shuffle = (int(word) for word in source.generate_state(2))
        self._shuffle = torch.Generator(self.device).manual_seed(shuffle)
        generator = torch.Generator(self.device).manual_seed(sampling)
        options = self._options if self._options is not None else self._env.reset(rng)
        decisions: list[_Decided] = []
        rewards, done = [], []
        with torch.no_grad():
            for _ in range(self.config.steps):
                decided = self._decide(options, generator)
                picks = decided.picks.cpu().numpy() if self._arrays is None else decided.picks
                options, reward, is_cut = self._env.step(picks, rng)
                decisions.append(decided)
                rewards.append(self._tensor(reward))
                done.append(torch.as_tensor(is_cut, device=self.device))
            self._options = options
            last = self._decide(options, generator).value
            return self._learnt_from(decisions, torch.stack(rewards), torch.stack(done), last, scale)

    def _decide(self, options: Options, generator: torch.Generator) -> _Decided:
        seen = Seen.of(options, self.device)
        logits, value = by_width(self.network, seen)
        log_probs = torch.log_softmax(logits, dim=-1)
        noise = torch.rand(log_probs.shape, generator=generator, device=self.device)
        # The largest of log-probabilities and Gumbel noise is a draw from the softmax.
        picks = (log_probs - torch.log(-torch.log(noise.clamp(1e-10, 1 - 1e-7)))).argmax(dim=1)
        log_prob = log_probs.gather(1, picks[:, None]).squeeze(1)
        return _Decided(seen, picks, log_prob, value)

    def _learnt_from(
        self, decisions: list[_Decided], reward: Tensor, done: Tensor, last: Tensor, scale: Scale
    ) -> Played:
        """Turn what was played into the batch, with advantages and returns; `reward` and `done` as in `gae`."""
        config, count = self.config, done.numel()
        mean, std = self._tensors(scale)
        if scale.updates == 0:
            mean = reward.mean(dim=(0, 1)) / (1 - config.gamma)  # what the scale will begin with
        values = torch.stack([*(decision.value for decision in decisions), last]) * std + mean  # (T + 1, B, 3)
        advantages = gae(reward, values, done, gamma=config.gamma, gae_lambda=config.gae_lambda)
        returns = (advantages + values[:-1]).reshape(count, NUM_OBJECTIVES)
        advantages = by_kind(advantages, self._env.kinds)
        seen = Seen.joined([decision.seen for decision in decisions])
        taught = torch.zeros_like(seen.legal, dtype=torch.float32)
        if self._taught is not None and TABLES in dict(self._env.kinds):
            kinds = [torch.full((size,), kind == TABLES, device=self.device) for kind, size in self._env.kinds]
            is_taught = torch.cat(kinds).repeat(len(decisions))
            taught[is_taught] = by_width(self._taught, seen[is_taught])[0].softmax(dim=-1)
            advantages = advantages * ~is_taught.reshape(len(decisions), -1, 1)
        self._batch = Batch(
            seen=seen,
            picks=torch.cat([decision.picks for decision in decisions]),
            log_prob=torch.cat([decision.log_prob for decision in decisions]),
            advantages=advantages.reshape(count, NUM_OBJECTIVES),
            returns=returns,
            taught=taught,
        )
        moments = torch.stack([reward.mean(dim=(0, 1)), returns.std(dim=0)])
        mean_reward, return_std = moments.double().cpu().numpy()
        return Played(mean_reward, return_std, count)

    def gradients(self, minibatch: int, scale: Scale, *, only_critic: bool) -> Losses:
        """Leave the gradient of a minibatch in the network; minibatches are numbered over all epochs."""
        assert self._batch is not None, "play first"
        config, batch = self.config, self._batch
        within = minibatch % config.minibatches
        if within == 0:
            self._order = torch.randperm(len(batch.picks), generator=self._shuffle, device=self.device)
        rows = batch[self._order.tensor_split(config.minibatches)[within]]
        mean, std = self._tensors(scale)

        logits, value = by_width(self.network, rows.seen)
        log_probs = torch.log_softmax(logits, dim=-1)
        log_ratio = log_probs.gather(1, rows.picks[:, None]).squeeze(1) - rows.log_prob
        ratio = log_ratio.exp()

        weights = tchebycheff(rows.seen.preference, value.detach(), augmentation=config.augmentation)
        mixed = (weights * rows.advantages).sum(dim=1)

        clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
        policy_loss = -torch.minimum(ratio * mixed, clipped * mixed).mean()
        value_loss = 0.5 * (value - (rows.returns - mean) / std).square().mean()
        entropy = -(log_probs.exp() * log_probs.clamp(min=-50.0)).sum(dim=1).mean()
        loss = config.value_weight * value_loss
        if not only_critic:
            forgotten = -(rows.taught * log_probs.clamp(min=-50.0)).sum(dim=1).mean()
            loss = loss + policy_loss - config.entropy * entropy + config.keep * forgotten

        self.network.zero_grad()
        loss.backward()
        for name, parameter in self.network.named_parameters():
            if only_critic and not name.startswith("critic"):
                parameter.grad = None
        kl = ((ratio - 1) - log_ratio).mean()  # never negative: http://joschu.net/blog/kl-approx.html
        return Losses(*torch.stack([policy_loss, value_loss, entropy, kl]).detach().tolist())

    def _tensor(self, values: Array) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float32, device=self.device)

    def _tensors(self, scale: Scale) -> tuple[Tensor, Tensor]:
        return self._tensor(np.array(scale.mean)), self._tensor(np.array(scale.std))


class WorkerGroup(Protocol):
    """A `Worker`, or several that answer as one; the methods are those of Worker."""

    @property
    def network(self) -> Scorer:
        """What is trained, and gets the gradients."""
        ...

    def begin(self, number: int) -> None: ...  # noqa: D102

    def play(self, number: int, scale: Scale) -> Played: ...  # noqa: D102

    def gradients(self, minibatch: int, scale: Scale, *, only_critic: bool) -> Losses: ...  # noqa: D102


def optimizer_of(network: Scorer, config: PpoSettings) -> torch.optim.Adam:
    """Return the optimiser of a training."""
    return torch.optim.Adam(network.parameters(), lr=config.learning_rate, eps=1e-5)


def update(
    workers: WorkerGroup,
    optimizer: torch.optim.Adam,
    scale: Scale,
    config: PpoSettings,
    *,
    number: int,
    progress: float,
) -> tuple[Scale, Played, Losses]:
    """Play once and learn from it. `number` counts updates from 0; `progress` in [0, 1] anneals the step."""
    for group in optimizer.param_groups:
        warm = min(1.0, (max(0, number - config.critic_first) + 1) / WARM_UP)
        group["lr"] = config.learning_rate * (1 - 0.9 * progress) * warm
    played = workers.play(number, scale)
    scale = scale.follow(played, config)
    losses = []
    for minibatch in range(config.epochs * config.minibatches):
        losses.append(workers.gradients(minibatch, scale, only_critic=number < config.critic_first))
        if losses[-1].kl > 1.5 * config.target_kl:
            break  # what was played tells nothing of a policy this far from it; this gradient is not used
        torch.nn.utils.clip_grad_norm_(workers.network.parameters(), config.max_gradient)
        optimizer.step()
    return scale, played, mean_losses(losses)


def mean_losses(losses: list[Losses]) -> Losses:
    """Return the means of several losses."""
    return Losses(*(float(np.mean([getattr(loss, field.name) for loss in losses])) for field in fields(Losses)))
