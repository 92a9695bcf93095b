"""A tiny real transformer, cut by layers and by tensor ranks: what testbeds and exported launch files train, and
serving workers host.

Needs torch at import: `need("torch", extra="train")` first. `strata export --to torchrun` copies this file beside
its `train.py`, so it imports nothing else of strata.

Layer 0 is the embedding, the last the head, as in a LayerTable. Weights depend on the layer and the seed only:
however the model is cut, it is the same model. Weights with a `sharded` mark are cut along their first dimension
(Megatron's cut, arXiv 1909.08053, §3); all others are whole on every tensor rank.

Letters: B batch, T tokens, D hidden, H heads of this rank, K head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import distributed, nn
from torch.nn import functional

Tensor: TypeAlias = Any


@dataclass(frozen=True)
class Size:
    """Shape of the model."""

    num_layers: int
    hidden_size: int = 64
    num_heads: int = 4
    vocab_size: int = 64
    sequence_length: int = 32


@dataclass(frozen=True)
class Shard:
    """Part `rank` of `count` of every sharded weight; `group` is the process group of all parts."""

    rank: int = 0
    count: int = 1
    group: Any = None


class Enter(torch.autograd.Function):  # type: ignore[misc]
    """Into a sharded region: the input as it is; gradients of all ranks are summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        """Return the input."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradients of all ranks, summed."""
        return _sum(gradient, ctx.group), None


class Leave(torch.autograd.Function):  # type: ignore[misc]
    """Out of a sharded region: outputs of all ranks are summed; the gradient as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        """Return the outputs of all ranks, summed."""
        return _sum(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient."""
        return gradient, None


def _sum(x: Tensor, group: Any) -> Tensor:
    if group is None:
        return x
    total = x.contiguous().clone()
    distributed.all_reduce(total, group=group)
    return total


class Embedding(nn.Module):  # type: ignore[misc]
    """Tokens [B, T] to [B, T, D]."""

    def __init__(self, size: Size, new: Any) -> None:
        super().__init__()
        self.token = new(size.vocab_size, size.hidden_size)
        self.position = new(size.sequence_length, size.hidden_size)

    def forward(self, tokens: Tensor, first: int = 0) -> Tensor:
        """Return the hidden state; `first` is the position of the first token."""
        return self.token[tokens] + self.position[first : first + tokens.shape[1]]


class Block(nn.Module):  # type: ignore[misc]
    """One pre-norm layer of causal attention and MLP, [B, T, D] to [B, T, D]."""

    def __init__(self, size: Size, shard: Shard, new: Any) -> None:
        super().__init__()
        head_size = size.hidden_size // size.num_heads
        self.group = shard.group
        self.norms = nn.ParameterList([new(size.hidden_size, ones=True), new(size.hidden_size, ones=True)])
        self.qkv = new(size.num_heads, 3, head_size, size.hidden_size, sharded=True)  # (H, 3, K, D)
        self.out = new(size.num_heads, head_size, size.hidden_size, sharded=True)  # (H, K, D)
        self.up = new(4 * size.hidden_size, size.hidden_size, sharded=True)
        self.down = new(4 * size.hidden_size, size.hidden_size, sharded=True)

    def forward(self, x: Tensor, attend: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None) -> Tensor:
        """Return the next hidden state.

        attend: takes queries, keys and values [B, H, T, K] of these tokens and returns what the queries see
        [B, H, T, K], of tokens before them too; causal attention among these where it is left out.
        """
        inside = Enter.apply(functional.rms_norm(x, x.shape[-1:], self.norms[0]), self.group)
        # One product with the weights as they lie: an einsum over them would copy them every time.
        heads, _, size, _ = self.qkv.shape
        q, k, v = (
            functional.linear(inside, self.qkv.flatten(0, 2))
            .unflatten(-1, (heads, 3, size))
            .permute(3, 0, 2, 1, 4)
        )
        if attend is None:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = attend(q, k, v)
        x = x + Leave.apply(torch.einsum("bhtk,hkd->btd", mixed, self.out), self.group)
        inside = Enter.apply(functional.rms_norm(x, x.shape[-1:], self.norms[1]), self.group)
        return x + Leave.apply(functional.gelu(inside @ self.up.T) @ self.down, self.group)


class Head(nn.Module):  # type: ignore[misc]
    """[B, T, D] to logits [B, T, V]."""

    def __init__(self, size: Size, new: Any) -> None:
        super().__init__()
        self.norm = new(size.hidden_size, ones=True)
        self.weight = new(size.vocab_size, size.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return functional.rms_norm(x, x.shape[-1:], self.norm) @ self.weight.T


def build_layer(size: Size, layer: int, *, shard: Shard = Shard(), seed: int = 0) -> nn.Module:
    """Return one layer of the model, or one tensor rank's part of it, on the CPU."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + layer)

    def new(*shape: int, ones: bool = False, sharded: bool = False) -> nn.Parameter:
        whole = torch.ones(shape) if ones else torch.randn(shape, generator=generator) * shape[-1] ** -0.5
        part = whole.chunk(shard.count)[shard.rank] if sharded else whole
        parameter = nn.Parameter(part.clone())
        parameter.sharded = sharded
        return parameter

    if layer == 0:
        return Embedding(size, new)
    return Head(size, new) if layer == size.num_layers - 1 else Block(size, shard, new)
