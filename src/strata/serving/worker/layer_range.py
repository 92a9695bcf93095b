"""A range of a model's layers as something that runs, whatever the layers are: prompts, steps of decoding, tokens.

Needs torch at import: `need("torch", extra="train")` first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from strata.serving.worker.holder import ROWS, DecodeRow, Draw
from strata.workload.tiny import Tensor

Activations = NDArray[np.float32]


class LayerRange(ABC):
    """Blocks [first, end) of a model, with the embedding before and the head after where they are an end of it.

    Letters: T tokens, R rows (one token of some sequence each), D hidden, V vocabulary.
    """

    __slots__ = ()

    @property
    def rows(self) -> int:
        """Steps of decoding that go together."""
        return ROWS

    @abstractmethod
    def prompt(self, cache: Any, given: Sequence[int] | Activations, position: int) -> Activations:
        """Return the hidden states [T, D] of tokens of a prompt from `position` on.

        given: the tokens, or their hidden states [T, D] after the block before.
        """

    @abstractmethod
    def lump(self, rows: Sequence[DecodeRow]) -> Activations:
        """Return the hidden states [R, D] of at most `self.rows` rows; those of one sequence in their order."""

    @abstractmethod
    def logits(self, hidden: Activations) -> Tensor:
        """Return the logits [R, V] of hidden states [R, D]. Only for the end of the model."""

    def run(
        self, cache: Any, given: Sequence[int] | Activations, *, position: int, replayed: int = 0
    ) -> Activations:
        """Return the hidden state [T, D] after the last block.

        given: T tokens for the first blocks, hidden states [T, D] for others. A prompt's tokens go at once; the
        last `replayed`, and one alone at a later position, as steps of decoding.
        """
        at_once = 0 if position and len(given) == 1 else len(given) - replayed
        rows = [DecodeRow(cache, token, position + i) for i, token in enumerate(given) if i >= at_once]
        out = [self.prompt(cache, given[:at_once], position)] if at_once else []
        return np.concatenate([*out, *([self.step(rows)] if rows else [])])

    def step(self, rows: Sequence[DecodeRow]) -> Activations:
        """Return the hidden states [R, D] after the last block; rows of one sequence come in their order."""
        return np.concatenate([self.lump(rows[i : i + self.rows]) for i in range(0, len(rows), self.rows)])

    def choose(self, hidden: Activations, draws: Sequence[Draw]) -> list[int]:
        """Return a token for each of the hidden states [R, D]. Only for the end of the model."""
        chosen = list[int]()
        for start in range(0, len(draws), ROWS):
            lump = np.zeros((ROWS, hidden.shape[1]), np.float32)
            some = draws[start : start + ROWS]
            lump[: len(some)] = hidden[start : start + ROWS]
            logits = self.logits(lump)[: len(some)].cpu().double()
            chosen += [_drawn(draw, row) for draw, row in zip(some, logits, strict=True)]
        return chosen


def _drawn(draw: Draw, logits: Tensor) -> int:
    """Return the token, of logits [V] in double precision."""
    if draw.temperature == 0:
        return int(logits.argmax())
    generator = torch.Generator().manual_seed((draw.seed * 1_000_003 + draw.position) % 2**63)
    return int(torch.multinomial((logits / draw.temperature).softmax(0), 1, generator=generator))
