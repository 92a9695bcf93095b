"""A range of the small transformer's layers, made from the seed when it is loaded, and run token by token.

Needs torch at import: `need("torch", extra="train")` first. On a CPU the same tokens follow however the layers
are cut and whoever is served beside, to the last bit: all matrices are multiplied by one thread, in the same
shapes, from the same strides. Steps of decoding go ROWS at a time, of several sequences; each attends alone.

Letters: T tokens, R rows (one token of some sequence each), D hidden, H heads, K head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from strata.serving.tokens import VOCAB_SIZE
from strata.serving.worker.holder import ROWS, DecodeRow
from strata.serving.worker.kv import KvCache, LayerKv
from strata.serving.worker.layer_range import Activations, LayerRange
from strata.serving.worker.shape import Shape
from strata.workload.tiny import Size, Tensor, build_layer


def use_one_thread() -> None:
    """Let this thread multiply matrices alone: sums are then always taken in the same order."""
    torch.set_num_threads(1)


@dataclass(frozen=True, slots=True)
class LayerMaker:
    """Makes layers, numbered as in `workload.tiny`: 0 embeds, then come the blocks, the last is the head."""

    shape: Shape
    device: str = "cpu"

    def layer(self, number: int) -> Any:
        """Return one layer."""
        size = Size(
            self.shape.num_layers + 2,
            hidden_size=self.shape.hidden_size,
            num_heads=self.shape.num_heads,
            vocab_size=VOCAB_SIZE,
            sequence_length=self.shape.max_positions,
        )
        return build_layer(size, number, seed=self.shape.seed).to(self.device)

    def part(self, first: int, end: int, layers: Mapping[int, Any]) -> BlockRange:
        """Return blocks [first, end), taken from made layers, as something that runs."""
        return BlockRange(self.shape, first, end, layers, self.device)

    def cache(self, max_tokens: int) -> KvCache:
        """Return the empty cache of a sequence."""
        return KvCache(max_tokens, device=self.device)


@dataclass(frozen=True, slots=True)
class BlockRange(LayerRange):
    """Blocks [first, end) with the embedding before and the head after, where they are an end of the model."""

    shape: Shape
    first: int
    end: int
    layers: Mapping[int, Any]
    device: str = "cpu"

    def prompt(self, cache: KvCache, given: Sequence[int] | Activations, position: int) -> Activations:
        """Return the hidden states [T, D] of tokens of a prompt."""
        with torch.inference_mode():
            # A copy: what came over the network may lie anywhere, and sums may depend on how it is aligned.
            x = torch.tensor(given, device=self.device)[None]
            if self.first == 0:
                x = self.layers[0](x, position)
            for number in range(self.first + 1, self.end + 1):
                x = self.layers[number](x, cache[number])
            hidden: Activations = x[0].cpu().numpy()
            return hidden

    def lump(self, rows: Sequence[DecodeRow]) -> Activations:
        """Return the hidden states [R, D] of at most ROWS rows."""
        with torch.inference_mode():
            if self.first == 0:
                given = torch.zeros(ROWS, dtype=torch.long)
                given[: len(rows)] = torch.tensor([row.given for row in rows])
                places = torch.tensor(
                    [row.position for row in rows] + [0] * (ROWS - len(rows)), device=self.device
                )
                x = (self.layers[0].token[given.to(self.device)] + self.layers[0].position[places])[:, None]
            else:
                hidden = np.zeros((ROWS, 1, self.shape.hidden_size), np.float32)
                hidden[: len(rows), 0] = [row.given for row in rows]
                x = torch.tensor(hidden, device=self.device)
            for number in range(self.first + 1, self.end + 1):
                caches = [row.cache[number] for row in rows]

                def attend(q: Tensor, k: Tensor, v: Tensor, caches: Sequence[LayerKv] = caches) -> Tensor:
                    mixed = torch.zeros_like(q, memory_format=torch.contiguous_format)
                    for i, cache in enumerate(caches):
                        mixed[i] = cache(q[i : i + 1], k[i : i + 1], v[i : i + 1])[0]
                    return mixed

                x = self.layers[number](x, attend)
            activations: Activations = x[: len(rows), 0].cpu().numpy()
            return activations

    def logits(self, hidden: Activations) -> Tensor:
        """Return the logits [R, V] of hidden states [R, D]."""
        head = self.layers[self.shape.num_layers + 1]
        with torch.inference_mode():
            return head(torch.tensor(hidden, device=self.device))
