"""Attention as it is timed (`layer_timing.py`): a tensor rank's heads, with random weights of the model's shapes.

Needs torch at import. Rotations are left out, and the norms on queries and keys of each head.

Letters: B samples, T tokens, D hidden, H heads of this rank, K head size.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from strata.workload.heads import LatentAttention
from strata.workload.model import ModelSpec
from strata.workload.tiny import Shard, Tensor


def attention(spec: ModelSpec, shard: Shard) -> nn.Module:
    """Return what maps normed hidden states [B, T, D] to a rank's part of attention's output [B, T, D]."""
    return _Heads(spec, shard) if spec.latent is None else _Latent(spec, spec.latent, shard)


class _Heads(nn.Module):  # type: ignore[misc]
    """Plain heads, whose output a gate as wide or of one number a head may multiply."""

    def __init__(self, spec: ModelSpec, shard: Shard) -> None:
        super().__init__()
        self.size = spec.head_dim
        heads, kv_heads = spec.num_heads // shard.count, spec.num_kv_heads // shard.count
        gates = heads * spec.head_dim if spec.gated_attention else heads if spec.gated_heads else 0
        self.splits = [heads * spec.head_dim, kv_heads * spec.head_dim, kv_heads * spec.head_dim]
        self.qkv = nn.Linear(spec.hidden_size, sum(self.splits), bias=spec.qkv_bias)
        self.gate = nn.Linear(spec.hidden_size, gates, bias=False) if gates else None
        self.out = nn.Linear(heads * spec.head_dim, spec.hidden_size, bias=False)

    def forward(self, inside: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (-1, self.size)).transpose(1, 2) for part in self.qkv(inside).split(self.splits, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        mixed = mixed.transpose(1, 2)  # (B, T, H, K)
        if self.gate is not None:
            mixed = mixed * self.gate(inside).sigmoid().unflatten(-1, (mixed.shape[2], -1))
        return self.out(mixed.flatten(2))


class _Latent(nn.Module):  # type: ignore[misc]
    """Multi-head latent attention as it trains: every rank makes the latents, and its heads' keys and values."""

    def __init__(self, spec: ModelSpec, latent: LatentAttention, shard: Shard) -> None:
        super().__init__()
        hidden, rank, self.latent = spec.hidden_size, latent.q_lora_rank, latent
        self.heads = spec.num_heads // shard.count
        self.q_down = None if rank is None else nn.Linear(hidden, rank, bias=spec.qkv_bias)
        self.q_norm = None if rank is None else nn.RMSNorm(rank)
        self.q_up = nn.Linear(rank or hidden, self.heads * latent.qk_head_dim, bias=False)
        self.kv_down = nn.Linear(hidden, latent.kv_lora_rank + latent.qk_rope_head_dim, bias=spec.qkv_bias)
        self.kv_norm = nn.RMSNorm(latent.kv_lora_rank)
        expanded = latent.qk_nope_head_dim + latent.v_head_dim
        self.kv_up = nn.Linear(latent.kv_lora_rank, self.heads * expanded, bias=False)
        self.out = nn.Linear(self.heads * latent.v_head_dim, hidden, bias=False)

    def forward(self, inside: Tensor) -> Tensor:
        sizes = self.latent
        queries = inside if self.q_down is None or self.q_norm is None else self.q_norm(self.q_down(inside))
        q = self.q_up(queries).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, T, K)
        down, turned = self.kv_down(inside).split([sizes.kv_lora_rank, sizes.qk_rope_head_dim], -1)
        expanded = self.kv_up(self.kv_norm(down)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = expanded.split([sizes.qk_nope_head_dim, sizes.v_head_dim], -1)
        k = torch.cat([k, turned[:, None].expand(-1, self.heads, -1, -1)], -1)  # all heads share what is rotated
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))
