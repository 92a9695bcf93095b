"""A range of the small transformer's layers, made from the seed when it is loaded, and run token by token.

Needs torch at import: `need("torch", extra="train")` first. On a CPU the same tokens follow however the layers
are cut and whoever is served beside, to the last bit: all matrices are multiplied by one thread, in the same
shapes, from the same strides. Steps of decoding go ROWS at a time, of several sequences; each attends alone.

Letters: T tokens, R rows (one token of some sequence each), D hidden, H heads, K head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from strata.serving.tokens import VOCAB_SIZE
from strata.serving.worker.holder import DecodeRow
from strata.serving.worker.shape import Shape
from strata.workload.tiny import Size, Tensor, build_layer

Activations = NDArray[np.float32]

ROWS: Final = 8
"""Rows of every matrix of a decoding step, empty ones included: how sums are rounded depends on how many there
are, and no token may depend on who is served beside."""


def use_one_thread() -> None:
    """Let this thread multiply matrices alone: sums are then always taken in the same order."""
    torch.set_num_threads(1)


class LayerCache:
    """Keys and values of one sequence in one layer; called with new ones, it attends to all."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._rows: Tensor | None = None  # (2, max_tokens, H, K): strides do not depend on how many there may be
        self._used = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Keep keys and values [1, H, T, K]; return what the queries see of all tokens [1, H, T, K].

        One token a time, or all from the first.
        """
        new = torch.stack((k[0], v[0])).transpose(1, 2)
        if self._rows is None:
            self._rows = new.new_empty(2, self._max_tokens, *new.shape[2:])
        end = self._used + new.shape[1]
        assert end <= self._max_tokens, "who reserves the cache counts the tokens"
        self._rows[:, self._used : end] = new
        self._used = end
        keys, values = self._rows[:, None, :end].transpose(2, 3)
        return functional.scaled_dot_product_attention(q, keys, values, is_causal=q.shape[2] == end)


class Cache(dict[int, LayerCache]):
    """Keys and values of one sequence of at most so many tokens, a layer an entry."""

    def __init__(self, max_tokens: int) -> None:
        super().__init__()
        self.max_tokens = max_tokens

    def __missing__(self, layer: int) -> LayerCache:
        self[layer] = made = LayerCache(self.max_tokens)
        return made


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

    def cache(self, max_tokens: int) -> Cache:
        """Return the empty cache of a sequence."""
        return Cache(max_tokens)


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Blocks [first, end) with the embedding before and the head after, where they are an end of the model."""

    shape: Shape
    first: int
    end: int
    layers: Mapping[int, Any]
    device: str = "cpu"

    def run(
        self, cache: Cache, given: Sequence[int] | Activations, *, position: int, replayed: int = 0
    ) -> Activations:
        """Return the hidden state [T, D] after the last block.

        given: T tokens for the first blocks, hidden states [T, D] for others. A prompt's tokens go at once; the
        last `replayed`, and all at a later position, as steps of decoding.
        """
        at_once = 0 if position else len(given) - replayed
        rows = [DecodeRow(cache, token, position + i) for i, token in enumerate(given) if i >= at_once]
        out = [self._prompt(cache, given[:at_once])] if at_once else []
        return np.concatenate([*out, *([self.step(rows)] if rows else [])])

    def step(self, rows: Sequence[DecodeRow]) -> Activations:
        """Return the hidden states [R, D] after the last block; rows of one sequence come in their order."""
        with torch.inference_mode():
            return np.concatenate([self._lump(rows[i : i + ROWS]) for i in range(0, len(rows), ROWS)])

    def _prompt(self, cache: Cache, given: Sequence[int] | Activations) -> Activations:
        with torch.inference_mode():
            # A copy: what came over the network may lie anywhere, and sums may depend on how it is aligned.
            x = torch.tensor(given, device=self.device)[None]
            if self.first == 0:
                x = self.layers[0](x)
            for number in range(self.first + 1, self.end + 1):
                x = self.layers[number](x, cache[number])
            hidden: Activations = x[0].cpu().numpy()
            return hidden

    def _lump(self, rows: Sequence[DecodeRow]) -> Activations:
        if self.first == 0:
            given = torch.zeros(ROWS, dtype=torch.long)
            given[: len(rows)] = torch.tensor([row.given for row in rows])
            places = torch.tensor([row.position for row in rows] + [0] * (ROWS - len(rows)), device=self.device)
            x = (self.layers[0].token[given.to(self.device)] + self.layers[0].position[places])[:, None]
        else:
            hidden = np.zeros((ROWS, 1, self.shape.hidden_size), np.float32)
            hidden[: len(rows), 0] = [row.given for row in rows]
            x = torch.tensor(hidden, device=self.device)
        for number in range(self.first + 1, self.end + 1):
            caches = [row.cache[number] for row in rows]

            def attend(q: Tensor, k: Tensor, v: Tensor, caches: Sequence[LayerCache] = caches) -> Tensor:
                mixed = torch.zeros_like(q, memory_format=torch.contiguous_format)
                for i, cache in enumerate(caches):
                    mixed[i] = cache(q[i : i + 1], k[i : i + 1], v[i : i + 1])[0]
                return mixed

            x = self.layers[number](x, attend)
        activations: Activations = x[: len(rows), 0].cpu().numpy()
        return activations

    def choose(self, hidden: Activations, *, temperature: float, seed: int, position: int) -> int:
        """Return the token at `position`: the likeliest at temperature 0, else one drawn for (seed, position).

        hidden: [T, D], of which the last row counts. Only for the end of the model.
        """
        head = self.layers[self.shape.num_layers + 1]
        with torch.inference_mode():
            logits = head(torch.tensor(hidden[-1:], device=self.device))[0].cpu().double()
            if temperature == 0:
                return int(logits.argmax())
            generator = torch.Generator().manual_seed((seed * 1_000_003 + position) % 2**63)
            return int(torch.multinomial((logits / temperature).softmax(0), 1, generator=generator))
