"""The scorer: one small network for every option, pooled over all of them (Zaheer et al. 2017, Deep Sets).

The same weights score 5 options or 200, in any order (permutation-equivariant), between domains and inside
one. Its output is added to the exact score of the safe rule and starts at zero, so untrained it is that rule.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from strata.training.hi_ppo.features import CONTEXT, FEATURES

SHARPNESS: Final = 60.0
"""Start of the factor on the exact score: 1 % of value is then 0.6 in the logits."""

_COST: Final = FEATURES.index("switch_cost")
_BEHIND: Final = FEATURES.index("behind_best_now")


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
