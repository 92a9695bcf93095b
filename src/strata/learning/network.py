"""The scorer: one small network for every option, pooled over all of them (Zaheer et al. 2017, Deep Sets).

The same weights score 5 options or 200, in any order (permutation-equivariant), between domains and inside
one. Its output is added to the exact score of the safe rule and starts at zero, so untrained it is that rule.
`Seen` is what it sees of decisions, on its device; `by_width` runs it on them without most of their padding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad, silu

from strata.arrays import Ints
from strata.learning.tables.table import Choose
from strata.training.hi_ppo.features import CONTEXT, FEATURES, features
from strata.training.replan.options import Options

SHARPNESS: Final = 60.0
"""Start of the factor on the exact score: 1 % of value is then 0.6 in the logits."""

NUM_OBJECTIVES: Final = 3

_PIECES: Final = 4
_COST: Final = FEATURES.index("switch_cost")
_BEHIND: Final = FEATURES.index("behind_best_now")


@dataclass(frozen=True, slots=True)
class Seen:
    """What the network sees of N decisions: features [N, P, F], context [N, C], legal [N, P]."""

    features: Tensor
    context: Tensor
    legal: Tensor

    @classmethod
    def of(cls, options: Options, device: str | torch.device) -> Seen:
        """Return the features of options, on the device."""
        of_option, of_decision = features(options)
        return cls(*(torch.as_tensor(part, device=device) for part in (of_option, of_decision, options.legal)))

    @classmethod
    def joined(cls, parts: list[Seen]) -> Seen:
        """Return all of these behind each other, filled up to as many options as the longest has."""
        widest = max(part.legal.shape[1] for part in parts)
        gaps = [widest - part.legal.shape[1] for part in parts]
        return cls(
            torch.cat([pad(part.features, (0, 0, 0, gap)) for part, gap in zip(parts, gaps, strict=True)]),
            torch.cat([part.context for part in parts]),
            torch.cat([pad(part.legal, (0, gap)) for part, gap in zip(parts, gaps, strict=True)]),
        )

    @property
    def preference(self) -> Tensor:
        """The weights of the objectives [N, 3], which the context begins with."""
        return self.context[:, :NUM_OBJECTIVES]

    def __getitem__(self, rows: Tensor) -> Seen:
        return Seen(self.features[rows], self.context[rows], self.legal[rows])

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the arguments of a network."""
        return self.features, self.context, self.legal


class Scorer(nn.Module):  # type: ignore[misc]
    """Logits and values of B decisions between P options.

    features: [B, P, F]; context: [B, C]; legal: [B, P]. An illegal option's logit is -1e9.
    """

    def __init__(self, *, width: int = 64, margin: float = 0.5) -> None:
        super().__init__()
        self.margin = margin
        self.log_sharpness = nn.Parameter(torch.tensor(math.log(SHARPNESS)))
        # What all options share goes through its own matrix once, not once an option.
        self.option = nn.Linear(len(FEATURES), width)
        self.decision = nn.Linear(len(CONTEXT), width, bias=False)
        self.hidden = nn.Linear(width, width)
        self.own = nn.Linear(width, width)
        self.pooled = nn.Linear(3 * width, width, bias=False)
        self.score = nn.Linear(width, 1)
        self.critic = nn.Sequential(nn.Linear(3 * width + len(CONTEXT), width), nn.SiLU(), nn.Linear(width, 3))
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.log_sharpness.device

    def forward(self, features: Tensor, context: Tensor, legal: Tensor) -> Tensor:
        """Return the logits [B, P]."""
        return self._logits(features, legal, *self._embedded(features, context, legal))

    def value(self, features: Tensor, context: Tensor, legal: Tensor) -> Tensor:
        """Return the expected return of each objective [B, 3]."""
        return self._value(context, self._embedded(features, context, legal)[1])

    def both(self, features: Tensor, context: Tensor, legal: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and the values of the same decisions for little more than one of them costs."""
        own, pooled = self._embedded(features, context, legal)
        return self._logits(features, legal, own, pooled), self._value(context, pooled)

    def _logits(self, features: Tensor, legal: Tensor, own: Tensor, pooled: Tensor) -> Tensor:
        mixed = silu(self.own(own) + self.pooled(pooled).unsqueeze(1))
        learned = self.score(mixed).squeeze(-1)
        exact = features[..., _BEHIND] - self.margin * features[..., _COST]
        # Both in units of value: the network corrects the exact score, sharpness only says how sure it is.
        logits = self.log_sharpness.exp() * (exact + learned)
        return torch.where(legal, logits, torch.full_like(logits, -1e9))

    def _value(self, context: Tensor, pooled: Tensor) -> Tensor:
        # The critic reads what the policy embeds and does not shape it: its errors are far larger than advantages,
        # and would pull a warm-started policy away.
        return torch.as_tensor(self.critic(torch.cat([pooled.detach(), context], dim=-1)))

    def _embedded(self, features: Tensor, context: Tensor, legal: Tensor) -> tuple[Tensor, Tensor]:
        """Return each option embedded [B, P, W], and mean, maximum and the option in use together [B, 3W]."""
        own = silu(self.option(features) + self.decision(context).unsqueeze(1))
        own = silu(self.hidden(own))
        share = legal.to(own.dtype)
        share = share / share.sum(dim=1, keepdim=True).clamp(min=1.0)
        in_use = features[..., FEATURES.index("in_use")]
        sums = torch.bmm(torch.stack([share, in_use], dim=1), own)  # (B, 2, W)
        most = own.masked_fill(~legal.unsqueeze(-1), -1e4).amax(dim=1)
        return own, torch.cat([sums[:, 0], most, sums[:, 1]], dim=-1)


def by_width(network: Scorer, seen: Seen) -> tuple[Tensor, Tensor]:
    """Return the logits [N, P] and values [N, 3] of decisions.

    Decisions with few options are run apart from those with many: padding costs as much as options do, and random
    tables are half padding. Not so on a CUDA device, where asking how many there are takes longer.
    """
    if seen.legal.device.type != "cpu":
        return network.both(*seen.parts())
    count, most = seen.legal.shape
    width = (seen.legal * torch.arange(1, most + 1, device=seen.legal.device)).amax(dim=1)
    order = width.argsort(stable=True)
    logits, values = [], []
    for rows in order.tensor_split(min(_PIECES, count)):
        widest = max(1, int(width[rows[-1]]))
        piece = seen[rows]
        logit, value = network.both(piece.features[:, :widest], piece.context, piece.legal[:, :widest])
        logits.append(pad(logit, (0, most - widest), value=-1e9))
        values.append(value)
    back = order.argsort()
    return torch.cat(logits)[back], torch.cat(values)[back]


def picked(network: Scorer, seen: Seen) -> Ints:
    """Return the option of the largest logit in each decision."""
    with torch.no_grad():
        return np.asarray(network(*seen.parts()).argmax(dim=1).cpu().numpy())


def greedy(network: Scorer) -> Choose:
    """Return the policy without chance."""
    return lambda options: picked(network, Seen.of(options, network.device))
