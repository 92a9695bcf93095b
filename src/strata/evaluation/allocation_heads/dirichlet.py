"""The seeds' literal action of the inter-domain agent, a distribution over allocation ratios (seed 000 §2.2).

Each domain takes part with some probability; those that do share the job by a Dirichlet distribution of
alpha_i = softplus(h_i) + 1, so that no density is infinite. Kept beside the scorer of candidate plans for
comparison: `strata bench heads`. B decisions, K domains at most; `present` [B, K] tells domains from padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, silu, softplus

from strata.arrays import Floats
from strata.simulate.compute import peak_flops
from strata.simulate.memory import state_bytes
from strata.training.plan.exact.problem import Problem

DOMAIN: Final = (
    "devices", "device_share", "speed", "best_bandwidth", "mean_bandwidth", "best_latency", "mean_latency",
    "state_against_memory",
)  # fmt: skip
CONTEXT: Final = (
    "domains", "parameters", "batch_tokens", "gradients_against_compute", "activations_against_compute", "diloco"
)  # fmt: skip

LEAST: Final = 1e-4
"""No active domain is drawn a smaller ratio: the logarithm of the density would lose its meaning."""


def observe(problem: Problem, members: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Return features [K, DOMAIN] of some domains of a problem and [CONTEXT] of the decision, about 1 in size.

    A problem holds devices that are free, so load shows in them; how long a domain's queue is does not change
    how a job that starts now is best spread.
    """
    job, domains = problem.job, [problem.fleet.domains[i] for i in members]
    devices = np.array([d.num_devices for d in domains], dtype=float)
    flops = np.array([peak_flops(d, job) or 0.0 for d in domains])
    bandwidth = problem.fleet.bandwidth_bytes_per_s()[np.ix_(members, members)]
    latency = problem.fleet.latency_s()[np.ix_(members, members)]
    others = ~np.eye(len(members), dtype=bool)
    alone = len(members) == 1
    wire, late = (np.zeros((1, 1)), np.zeros((1, 1))) if alone else (
        bandwidth[others].reshape(len(members), -1), latency[others].reshape(len(members), -1)
    )  # fmt: skip
    params = float(job.layers.params_before[-1])
    state = state_bytes(job, params, shards=1, zero_stage=0)
    memory = np.array([problem.model.memory_limit_bytes(d) for d in domains])
    known = max(float(flops.mean()), 1.0)
    per_domain = np.stack(
        [
            np.log(devices / devices.mean()), devices / devices.sum(), np.log(np.maximum(flops, 1.0) / known),
            np.log10(wire.max(axis=1) / 1e9 + 1e-3), np.log10(wire.mean(axis=1) / 1e9 + 1e-3),
            late.min(axis=1) * 10, late.mean(axis=1) * 10, np.log10(state / (memory * devices)),
        ],
        axis=1,
    )  # fmt: skip
    compute_s = 3 * float(job.layers.forward_flops.sum()) * job.global_batch / max(float(flops @ devices), 1.0)
    slow = 1 / max(float(wire.mean()), 1e3)
    activations = float(job.layers.hidden_bytes.min()) * job.global_batch
    context = np.array([
        np.log2(len(members)) / 2, np.log10(params) - 10, np.log10(job.tokens_per_step) - 6,
        np.log10(params * job.element_bytes * slow / compute_s), np.log10(activations * slow / compute_s),
        float(bool(job.local_steps)),
    ])  # fmt: skip
    return per_domain, context


@dataclass(frozen=True, slots=True)
class Ratios:
    """Distributions over ratios: alpha [B, K] of the Dirichlet, logit [B, K] of taking part.

    At least one domain takes part: the mask is drawn from independent chances, given that it is not empty.
    """

    alpha: Tensor
    logit: Tensor
    present: Tensor

    def sample(self, rng: np.random.Generator) -> Floats:
        """Return ratios [B, K], 0 for domains that take no part, each row of sum 1."""
        chance = (torch.sigmoid(self.logit) * self.present).double().cpu().numpy()
        drawn = rng.random(chance.shape) < chance
        # The first one that takes part comes from its own distribution, so that there is one.
        before = np.cumprod(1 - chance, axis=1) / np.maximum(1 - chance, 1e-300)
        edges = np.cumsum(chance * before, axis=1)
        first = (rng.random((len(chance), 1)) * edges[:, -1:] >= edges).sum(axis=1, keepdims=True)
        place = np.arange(chance.shape[1])
        active = (place == first) | ((place > first) & drawn)
        shares = np.where(active, rng.standard_gamma(self.alpha.double().cpu().numpy()), 0.0)
        shares = np.where(active, np.maximum(shares / shares.sum(axis=1, keepdims=True), LEAST), 0.0)
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def mean(self) -> Floats:
        """Return the action without chance [B, K]: the mean over those at least as likely in as out."""
        chance = (torch.sigmoid(self.logit) * self.present).double().cpu().numpy()
        active = (chance >= 0.5) | (chance == chance.max(axis=1, keepdims=True))
        alpha = np.where(active, self.alpha.double().cpu().numpy(), 0.0)
        return np.asarray(alpha / alpha.sum(axis=1, keepdims=True))

    def log_prob(self, ratios: Tensor) -> Tensor:
        """Return [B]: log density of ratios as `sample` draws them."""
        active = ratios > 0
        terms = torch.where(active, logsigmoid(self.logit), logsigmoid(-self.logit))
        mask = (terms * self.present).sum(dim=1) - self._log_any()
        alpha = torch.where(active, self.alpha, torch.zeros_like(self.alpha))
        lone = torch.where(
            active, torch.lgamma(self.alpha) - (self.alpha - 1) * ratios.clamp(min=1e-30).log(), 0.0
        )
        return torch.as_tensor(mask + torch.lgamma(alpha.sum(dim=1)) - lone.sum(dim=1))

    def entropy(self, ratios: Tensor) -> Tensor:
        """Return [B]: entropy of the mask, and of the Dirichlet over the domains active in `ratios`."""
        chance, log_any = torch.sigmoid(self.logit) * self.present, self._log_any()
        both = -(chance * logsigmoid(self.logit) + (self.present * 1.0 - chance) * logsigmoid(-self.logit)).sum(
            dim=1
        )
        none = (logsigmoid(-self.logit) * self.present).sum(dim=1)
        mask = (both + none.exp() * none) / log_any.exp() + log_any
        active = (ratios > 0).to(self.alpha.dtype)
        total = (self.alpha * active).sum(dim=1)
        lone = ((torch.lgamma(self.alpha) - (self.alpha - 1) * torch.digamma(self.alpha)) * active).sum(dim=1)
        count = active.sum(dim=1)
        return torch.as_tensor(mask + lone - torch.lgamma(total) + (total - count) * torch.digamma(total))

    def _log_any(self) -> Tensor:
        """Return [B]: log of the chance that at least one domain takes part."""
        none = (logsigmoid(-self.logit) * self.present).sum(dim=1)
        return torch.log(-torch.expm1(none))


class DirichletHead(nn.Module):  # type: ignore[misc]
    """A small permutation-equivariant network (Zaheer et al. 2017) over domains, and its critic.

    domains: [B, K, DOMAIN]; context: [B, CONTEXT]; present: [B, K]. Untrained, all domains share equally.
    """

    def __init__(self, *, width: int = 64) -> None:
        super().__init__()
        self.domain = nn.Linear(len(DOMAIN), width)
        self.decision = nn.Linear(len(CONTEXT), width, bias=False)
        self.hidden = nn.Linear(width, width)
        self.own = nn.Linear(width, width)
        self.pooled = nn.Linear(2 * width, width, bias=False)
        self.action = nn.Linear(width, 2)
        self.critic = nn.Sequential(nn.Linear(2 * width + len(CONTEXT), width), nn.SiLU(), nn.Linear(width, 1))
        nn.init.zeros_(self.action.weight)
        with torch.no_grad():
            self.action.bias.copy_(torch.tensor([0.0, 1.0]))  # 73 % take part: fewer are tried from the start

    def forward(self, domains: Tensor, context: Tensor, present: Tensor) -> tuple[Ratios, Tensor]:
        """Return the distributions, and the expected rewards [B]."""
        own = silu(self.domain(domains) + self.decision(context).unsqueeze(1))
        own = silu(self.hidden(own))
        mask = present.unsqueeze(-1).to(own.dtype)
        mean = (own * mask).sum(dim=1) / mask.sum(dim=1)
        pooled = torch.cat([mean, (own + (mask - 1) * 1e4).amax(dim=1)], dim=-1)
        mixed = silu(self.own(own) + self.pooled(pooled).unsqueeze(1))
        alpha, logit = self.action(mixed).unbind(dim=-1)
        value = self.critic(torch.cat([pooled, context], dim=-1)).squeeze(-1)
        return Ratios(softplus(alpha) + 1, logit.clamp(-8, 8), present), value


def batch(seen: list[tuple[Floats, Floats]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return features of several decisions as the network takes them, padded to the most domains."""
    widest = max(len(domains) for domains, _ in seen)
    domains = np.zeros((len(seen), widest, len(DOMAIN)))
    present = np.zeros((len(seen), widest), dtype=bool)
    for row, (member, _) in enumerate(seen):
        domains[row, : len(member)], present[row, : len(member)] = member, True
    context = np.stack([member for _, member in seen])
    return (
        torch.as_tensor(domains, dtype=torch.float32),
        torch.as_tensor(context, dtype=torch.float32),
        torch.as_tensor(present),
    )
