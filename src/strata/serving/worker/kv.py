"""Keys and values of sequences, layer by layer, and attention to them. Needs torch at import.

Letters: T tokens, H query heads, G of them a key-value head, K head size.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
from torch.nn import functional

from strata.serving.worker.handover import KvError
from strata.workload.tiny import Tensor

PART_TOKENS: Final = 64
"""Tokens that travel together: a block of the cache."""
_PART: Final = struct.Struct("<IHHH")
_DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16)
NO_WINDOWS: Final[Mapping[int, int]] = MappingProxyType({})


class LayerKv:
    """Keys and values of one sequence in one layer: of its last `window` tokens, or of all; calling it attends.

    Token p lies at p modulo the room: where depends on nothing but its position, so that what is summed in which
    order does not either, however often a sequence was interrupted.
    """

    def __init__(self, max_tokens: int, window: int = 0) -> None:
        self._room = min(max_tokens, window) if window else max_tokens
        self._window = window
        self._rows: Tensor | None = None  # (2, room, H / G, K): strides do not depend on how many there may be
        self._used = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
        """Keep keys and values [1, H / G, T, K]; return what queries [1, H, T, K] see of all, in their shape."""
        new, count = torch.stack((k[0], v[0])).transpose(1, 2), k.shape[2]
        if self._rows is None:
            self._rows = new.new_empty(2, self._room, *new.shape[2:])
        begin, end = self._used, self._used + count
        assert self._window or end <= self._room, "who reserves the cache counts the tokens"
        if count > 1:
            mixed = self._prompt(q, new, begin, scale)
        kept = min(count, self._room)
        self._rows[:, torch.arange(end - kept, end, device=new.device) % self._room] = new[:, count - kept :]
        self._used = end
        if count > 1:
            return mixed
        keys, values = self._rows[:, None, : min(end, self._room)].transpose(2, 3)
        grouped = q.reshape(1, keys.shape[1], -1, q.shape[3])  # G queries of a key side by side: no key is copied
        return functional.scaled_dot_product_attention(grouped, keys, values, scale=scale).reshape(q.shape)

    def _prompt(self, q: Tensor, new: Tensor, begin: int, scale: float | None) -> Tensor:
        """Return what several tokens from `begin` on see. new: their keys and values [2, T, H / G, K]."""
        assert self._rows is not None
        low = max(0, begin - self._window + 1) if self._window else 0
        places = torch.arange(low, begin + q.shape[2], device=q.device)
        seen = torch.cat((self._rows[:, places[: begin - low] % self._room], new), dim=1)
        keys, values = seen[:, None].transpose(2, 3)
        if not begin and not 0 < self._window < q.shape[2]:
            return functional.scaled_dot_product_attention(
                q, keys, values, is_causal=True, scale=scale, enable_gqa=True
            )
        at = places[begin - low :, None]
        mask = places <= at
        if self._window:
            mask &= places > at - self._window
        return functional.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, scale=scale, enable_gqa=True
        )

    def taken(self, tokens: int) -> list[bytes]:
        """Return the first so many tokens' keys and values, a part each `PART_TOKENS` of them. Raises KvError."""
        if self._rows is None or self._used < tokens or self._used > self._room:
            raise KvError(f"{self._used} tokens are cached in room for {self._room}, not the first {tokens}")
        _, _, heads, size = self._rows.shape
        header = _PART.pack(tokens, heads, size, _DTYPES.index(self._rows.dtype))
        return [
            header + part.cpu().contiguous().view(torch.uint8).numpy().tobytes()
            for part in self._rows[:, :tokens].split(PART_TOKENS, dim=1)
        ]

    def fill(self, tokens: int, parts: Sequence[bytes], device: str) -> None:
        """Take what `taken` returned elsewhere. Raises KvError where it is something else."""
        for i, part in enumerate(parts):
            begin = i * PART_TOKENS
            count = min(PART_TOKENS, tokens - begin)
            if len(part) < _PART.size:
                raise KvError(f"{len(part)} bytes are no keys and values")
            of, heads, size, kind = _PART.unpack_from(part)
            if of != tokens or count < 1 or kind >= len(_DTYPES) or tokens > self._room:
                raise KvError(f"keys and values of {of} tokens are not those of {tokens} in room for {self._room}")
            dtype = _DTYPES[kind]
            if len(part) - _PART.size != 2 * count * heads * size * dtype.itemsize:
                raise KvError(f"{len(part)} bytes are not the keys and values of {count} tokens")
            values = torch.frombuffer(bytearray(part[_PART.size :]), dtype=dtype).view(2, count, heads, size)
            if self._rows is None:
                self._rows = torch.empty(2, self._room, heads, size, dtype=dtype, device=device)
            if self._rows.shape[2:] != values.shape[2:] or self._rows.dtype != dtype:
                raise KvError("the parts of a layer differ")
            self._rows[:, begin : begin + count] = values.to(device)
            self._used = begin + count
        if self._used != tokens:
            raise KvError(f"{self._used} of {tokens} tokens came")


class KvCache(dict[int, LayerKv]):
    """Keys and values of one sequence of at most so many tokens, a layer an entry. windows: by layer."""

    def __init__(self, max_tokens: int, windows: Mapping[int, int] = NO_WINDOWS, device: str = "cpu") -> None:
        super().__init__()
        self._max_tokens, self._windows, self._device = max_tokens, windows, device

    def taken(self, layer: int, tokens: int) -> list[bytes]:
        """Return the keys and values of the first so many tokens in one layer, which goes. Raises KvError."""
        if layer not in self:
            raise KvError(f"nothing is cached in layer {layer}")
        return self.pop(layer).taken(tokens)

    def fill(self, layer: int, tokens: int, parts: Sequence[bytes]) -> None:
        """Take what another cache had of one layer. Raises KvError."""
        self[layer].fill(tokens, parts, self._device)

    def __missing__(self, layer: int) -> LayerKv:
        self[layer] = made = LayerKv(self._max_tokens, self._windows.get(layer, 0))
        return made
