"""Gated DeltaNet: attention that keeps a state in place of a cache (arXiv 2412.06464; Qwen3-Next, Qwen3.5).

A head's state is a matrix [key_head_dim, value_head_dim] that every token decays and corrects. Prompts and
training go through it in chunks (arXiv 2406.06484, §3): within one the work is that of attention, between them
that of the state, so a block costs as much as one that looks back at `window` tokens, at any length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strata.workload.kernels import MatrixProduct

CHUNK_TOKENS: Final = 64
"""Of flash-linear-attention's kernels, which transformers, vLLM and Megatron-Core call."""


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """Linear heads of the blocks in `layers`; the others attend. kernel: tokens that the convolution sees."""

    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    kernel: int
    layers: frozenset[int]

    @property
    def keys(self) -> int:
        """Width of all keys together."""
        return self.key_heads * self.key_head_dim

    @property
    def values(self) -> int:
        """Width of all values together."""
        return self.value_heads * self.value_head_dim

    def products(self, hidden_size: int) -> tuple[MatrixProduct, ...]:
        """Return the products of a block: queries, keys, values and the output's gate; decay and step; output."""
        return (
            MatrixProduct(hidden_size, 2 * self.keys + 2 * self.values, "outputs"),
            MatrixProduct(hidden_size, 2 * self.value_heads, "outputs"),
            MatrixProduct(self.values, hidden_size, "inputs"),
        )

    @property
    def vectors(self) -> int:
        """Parameters that are no product's: the convolution, two numbers a head, the norm of a head's output."""
        return (2 * self.keys + self.values) * self.kernel + 2 * self.value_heads + self.value_head_dim

    @property
    def state_elements(self) -> int:
        """Numbers that a block keeps for a sequence: the state, and the last tokens of the convolution."""
        convolved = (2 * self.keys + self.values) * (self.kernel - 1)
        return self.value_heads * self.key_head_dim * self.value_head_dim + convolved

    @property
    def pair_flops(self) -> float:
        """FLOPs of one token's attention to one other, if these heads did attend."""
        return 2.0 * self.value_heads * (self.key_head_dim + self.value_head_dim)

    @property
    def window(self) -> int:
        """Tokens that attention of as many FLOPs would look back at.

        Of a token and head in chunks of C: 2 C (3 k + 2 v) within one, C^2 for the inverse of its triangle, and
        6 k v for the state, which is read twice and written.
        """
        k, v, chunk = self.key_head_dim, self.value_head_dim, CHUNK_TOKENS
        flops = 2.0 * chunk * (3 * k + 2 * v) + chunk**2 + 6.0 * k * v
        return round(flops * self.value_heads / self.pair_flops)

    @property
    def kept_elements(self) -> int:
        """Numbers that a token leaves for the backward pass before the output's norm.

        What the products wrote, the same convolved, and its row of the chunk's inverse in each head; states are
        computed again.
        """
        return 4 * self.keys + 3 * self.values + CHUNK_TOKENS * self.value_heads

    @property
    def streamed_elements(self) -> float:
        """Numbers that pass through memory besides: what the convolution and the gated norm read and write."""
        return 2.0 * (2 * self.keys + self.values) + 3.0 * self.values
