"""Attention that keeps a state in place of a cache.

A head's state is a matrix [key_head_dim, value_head_dim] that every token decays and adds to. Prompts and training
go through it in chunks (arXiv 2406.06484, §3): within one the work is that of attention, between them that of the
state, so a block costs as much as one that looks back at `window` tokens, at any length.

Gated DeltaNet: arXiv 2412.06464 (Qwen3-Next, Qwen3.5). Kimi Delta Attention: arXiv 2510.26692 (Kimi Linear).
Lightning attention: arXiv 2401.04658 (MiniMax-01, M1). Mamba-2: arXiv 2405.21060 (Nemotron-H).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

from strata.workload.kernels import MatrixProduct

CHUNK_TOKENS: Final = 64
"""Of flash-linear-attention's kernels, which transformers, vLLM and Megatron-Core call."""


@dataclass(frozen=True, slots=True)
class LinearAttention(ABC):
    """Linear heads of the blocks in `layers`; the others attend.

    kernel: tokens that the convolution sees, 1 where there is none. chunk: tokens that are gone through together.
    """

    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    kernel: int
    layers: frozenset[int]
    chunk: int = CHUNK_TOKENS

    @property
    def keys(self) -> int:
        """Width of all keys together."""
        return self.key_heads * self.key_head_dim

    @property
    def values(self) -> int:
        """Width of all values together."""
        return self.value_heads * self.value_head_dim

    @property
    def convolved(self) -> int:
        """Width of queries, keys and values together."""
        return 2 * self.keys + self.values

    @property
    def divided(self) -> dict[str, int]:
        """What ranks of tensor parallelism divide: key heads and value heads (vLLM's `gdn_linear_attn.py`)."""
        if self.key_heads == self.value_heads:
            return {"linear heads": self.value_heads}
        return {"linear key heads": self.key_heads, "linear value heads": self.value_heads}

    @property
    def state_elements(self) -> int:
        """Numbers that a block keeps for a sequence: the state, and the last tokens of the convolution."""
        return self.value_heads * self.key_head_dim * self.value_head_dim + self.convolved * (self.kernel - 1)

    @property
    def pair_flops(self) -> float:
        """FLOPs of one token's attention to one other, if these heads did attend."""
        return 2.0 * self.value_heads * (self.key_head_dim + self.value_head_dim)

    @property
    def window(self) -> int:
        """Tokens that attention of as many FLOPs would look back at."""
        return round(self.token_flops / self.pair_flops)

    @property
    @abstractmethod
    def token_flops(self) -> float:
        """FLOPs of a token beside the products: within its chunk, and those of the state."""

    @abstractmethod
    def products(self, hidden_size: int) -> tuple[MatrixProduct, ...]:
        """Return the products of a block."""

    @property
    @abstractmethod
    def vectors(self) -> int:
        """Parameters that are no product's."""

    @property
    @abstractmethod
    def kept_elements(self) -> int:
        """Numbers that a token leaves for the backward pass before the output's norm; states are not kept."""

    @property
    @abstractmethod
    def streamed_elements(self) -> float:
        """Numbers that pass through memory besides."""


@dataclass(frozen=True, slots=True)
class GatedDelta(LinearAttention):
    """Gated DeltaNet: a token corrects what the state says of its key, and all of the state decays alike."""

    @property
    def token_flops(self) -> float:
        """Of a head in chunks of C: 2 C (3 k + 2 v) within one, C^2 for the inverse of its triangle, and 6 k v for
        the state, which is read twice and written.
        """
        k, v, chunk = self.key_head_dim, self.value_head_dim, self.chunk
        return self.value_heads * (2.0 * chunk * (3 * k + 2 * v) + chunk**2 + 6.0 * k * v)

    def products(self, hidden_size: int) -> tuple[MatrixProduct, ...]:
        """Return the products of a block: queries, keys, values and the output's gate; decay and step; output."""
        return (
            MatrixProduct(hidden_size, self.convolved + self.values, "outputs"),
            MatrixProduct(hidden_size, 2 * self.value_heads, "outputs"),
            MatrixProduct(self.values, hidden_size, "inputs"),
        )

    @property
    def vectors(self) -> int:
        """The convolution, two numbers a head, the norm of a head's output."""
        return self.convolved * self.kernel + 2 * self.value_heads + self.value_head_dim

    @property
    def kept_elements(self) -> int:
        """What the products wrote, the same convolved, and its row of the chunk's inverse in each head."""
        return 2 * self.convolved + self.values + self.chunk * self.value_heads

    @property
    def streamed_elements(self) -> float:
        """What the convolution and the gated norm read and write."""
        return 2.0 * self.convolved + 3.0 * self.values


@dataclass(frozen=True, slots=True)
class KimiDelta(GatedDelta):
    """Kimi Delta Attention: Gated DeltaNet whose state decays by channel; decay and gate are of low rank."""

    def products(self, hidden_size: int) -> tuple[MatrixProduct, ...]:
        """Return the products of a block: queries, keys and values; step; latents of decay and gate, and these."""
        latent = self.value_head_dim
        return (
            MatrixProduct(hidden_size, self.convolved, "outputs"),
            MatrixProduct(hidden_size, self.value_heads, "outputs"),
            MatrixProduct(hidden_size, 2 * latent, "none"),
            MatrixProduct(latent, self.keys, "outputs"),
            MatrixProduct(latent, self.values, "outputs"),
            MatrixProduct(self.values, hidden_size, "inputs"),
        )

    @property
    def vectors(self) -> int:
        """The convolution, a number a head and one a channel for the decay, the norm of a head's output."""
        return self.convolved * self.kernel + self.value_heads + self.keys + self.value_head_dim

    @property
    def kept_elements(self) -> int:
        """As of Gated DeltaNet, and the latents, and the decay as it was projected and as it is applied."""
        written = 2 * self.convolved + self.values + 2 * (self.value_head_dim + self.keys)
        return written + self.chunk * self.value_heads

    @property
    def streamed_elements(self) -> float:
        """What the convolution, the decay and the gated norm read and write."""
        return 2.0 * self.convolved + 2.0 * self.keys + 3.0 * self.values


@dataclass(frozen=True, slots=True)
class Lightning(LinearAttention):
    """Lightning attention: the state of a head decays by a number that is fixed."""

    @property
    def token_flops(self) -> float:
        """Of a head in chunks of C: 2 C (k + v) within one, and 4 k v for the state, which is read and written."""
        k, v = self.key_head_dim, self.value_head_dim
        return self.value_heads * (2.0 * self.chunk * (k + v) + 4.0 * k * v)

    def products(self, hidden_size: int) -> tuple[MatrixProduct, ...]:
        """Return the products of a block: queries, keys and values; the output's gate; output."""
        return (
            MatrixProduct(hidden_size, self.convolved, "outputs"),
            MatrixProduct(hidden_size, self.values, "outputs"),
            MatrixProduct(self.values, hidden_size, "inputs"),
        )

    @property
    def vectors(self) -> int:
        """The norm of what all heads put out."""
        return self.values

    @property
    def kept_elements(self) -> int:
        """What the products wrote, and queries, keys and values after the activation function."""
        return 2 * self.convolved + 2 * self.values

    @property
    def streamed_elements(self) -> float:
        """What the activation function, the norm and the gate read and write."""
        return 2.0 * self.convolved + 5.0 * self.values


@dataclass(frozen=True, slots=True)
class Mamba2(LinearAttention):
    """Mamba-2: heads share queries and keys in groups (`key_heads`), and a state decays by a number of the token.

    conv_bias: of the convolution.
    """

    conv_bias: bool = True

    @property
    def divided(self) -> dict[str, int]:
        """Heads, and the groups that share queries and keys (Megatron-LM's `mamba_mixer.py` asserts both)."""
        return {"Mamba heads": self.value_heads, "Mamba groups": self.key_heads}

    @property
    def token_flops(self) -> float:
        """In chunks of C: scores of 2 C k a group, 2 C v a head, and 4 k v for the state, read and written."""
        scores = 2.0 * self.chunk * self.keys
        return scores + self.values * (2.0 * self.chunk + 4.0 * self.key_head_dim)

    def products(self, hidden_size: int) -> tuple[MatrixProduct, ...]:
        """Return the products of a block: queries, keys, values, the output's gate and the step; output."""
        return (
            MatrixProduct(hidden_size, self._projected, "outputs"),
            MatrixProduct(self.values, hidden_size, "inputs"),
        )

    @property
    def vectors(self) -> int:
        """The convolution, three numbers a head, the norm of what all heads put out."""
        convolution = self.convolved * (self.kernel + (1 if self.conv_bias else 0))
        return convolution + 3 * self.value_heads + self.values

    @property
    def kept_elements(self) -> int:
        """What the first product wrote, and queries, keys and values after the convolution."""
        return self._projected + self.convolved

    @property
    def streamed_elements(self) -> float:
        """What the convolution and the gated norm read and write."""
        return 2.0 * self.convolved + 3.0 * self.values

    @property
    def _projected(self) -> int:
        return self.convolved + self.values + self.value_heads
