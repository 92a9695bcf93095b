"""The heads of attention in a block: how many, and how wide."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of queries over fewer of keys and values.

    head_dim: of a query and a key; value_head_dim: of a value. has_values: projected on their own; else a key is
    the value, too, normed otherwise (Gemma 4), and both are cached. qk_norm_params: of the norms on queries and
    keys. sinks: one number a head, which takes part in the softmax (gpt-oss). index_heads, index_head_dim: of a
    small attention that chooses which tokens to look at (MiniMax M3) and whose heads share a key; 0: of none.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_head_dim: int
    has_values: bool = True
    qk_norm_params: int = 0
    sinks: bool = False
    index_heads: int = 0
    index_head_dim: int = 0

    @property
    def queries(self) -> int:
        """Width of all queries together."""
        return self.num_heads * self.head_dim

    @property
    def outputs(self) -> int:
        """Width of what all heads together put out."""
        return self.num_heads * self.value_head_dim

    @property
    def projected(self) -> int:
        """Width of queries, keys and values as they are projected."""
        values = self.value_head_dim if self.has_values else 0
        return self.queries + self.num_kv_heads * (self.head_dim + values)

    @property
    def cached(self) -> int:
        """Numbers cached for a token: a key and a value of each head that has them, and the index's key."""
        return self.num_kv_heads * (self.head_dim + self.value_head_dim) + self.index_head_dim

    @property
    def pair_flops(self) -> float:
        """FLOPs of one token's attention to one other: its score, the sum of values, and the index's score."""
        index = self.index_heads * self.index_head_dim
        return 2.0 * (self.num_heads * (self.head_dim + self.value_head_dim) + index)


@dataclass(frozen=True, slots=True)
class OtherHeads:
    """Heads of the blocks in `layers`, where they are not the model's; `name` begins the kind of these blocks."""

    name: str
    layers: frozenset[int]
    heads: Heads
