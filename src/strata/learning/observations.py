"""Decisions as the network sees them, on its device; and the network run on them without their padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from strata.training.hi_ppo.features import features
from strata.training.replan.options import Options

Both = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

_PIECES: Final = 4


@dataclass(frozen=True, slots=True)
class Seen:
    """What the network sees of N decisions: features [N, P, F], context [N, C], legal [N, P]."""

    features: Tensor
    context: Tensor
    legal: Tensor

    @classmethod
    def of(cls, options: Options, device: str) -> Seen:
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

    def __getitem__(self, rows: Tensor) -> Seen:
        return Seen(self.features[rows], self.context[rows], self.legal[rows])

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the arguments of a network."""
        return self.features, self.context, self.legal


def by_width(both: Both, seen: Seen) -> tuple[Tensor, Tensor]:
    """Return what `both` says of the decisions: logits [N, P] and values [N, 3].

    Decisions with few options are run apart from those with many: padding costs as much as options do, and random
    tables are half padding. Not so on a CUDA device, where asking how many there are takes longer.
    """
    if seen.legal.device.type != "cpu":
        return both(*seen.parts())
    count, most = seen.legal.shape
    width = (seen.legal * torch.arange(1, most + 1, device=seen.legal.device)).amax(dim=1)
    order = width.argsort(stable=True)
    logits, values = [], []
    for rows in order.tensor_split(min(_PIECES, count)):
        widest = max(1, int(width[rows[-1]]))
        piece = seen[rows]
        logit, value = both(piece.features[:, :widest], piece.context, piece.legal[:, :widest])
        logits.append(pad(logit, (0, most - widest), value=-1e9))
        values.append(value)
    back = order.argsort()
    return torch.cat(logits)[back], torch.cat(values)[back]
