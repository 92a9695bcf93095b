"""The heads of attention in a block: how many, and how wide."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from strata.decision import UNHASHED


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of queries over fewer of keys and values.

    head_dim: of a query and a key; value_head_dim: of a value. has_values: projected on their own; else a key is
    the value, too, normed otherwise (Gemma 4), and both are cached. qk_norm_params: of the norms on queries and
    keys. sinks: one number a head, which takes part in the softmax (gpt-oss). index_heads, index_head_dim: of a
    small attention that chooses which tokens to look at (MiniMax M3) and whose heads share a key; 0: of none.
    shares_kv: keys and values are those of an earlier block (Gemma 3n).
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
    shares_kv: bool = field(default=False, metadata={UNHASHED: True})

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
        """Width of queries, and of the keys and values of the block's own, as they are projected."""
        values = self.value_head_dim if self.has_values else 0
        return self.queries if self.shares_kv else self.queries + self.num_kv_heads * (self.head_dim + values)

    @property
    def seen(self) -> int:
        """Numbers read of a token that is looked at: a key and a value of each head that has them, and the
        index's key.
        """
        return self.num_kv_heads * (self.head_dim + self.value_head_dim) + self.index_head_dim

    @property
    def cached(self) -> int:
        """Those of them that the block caches."""
        return 0 if self.shares_kv else self.seen

    @property
    def rotated(self) -> int:
        """Width of queries and of keys of the block's own."""
        return self.queries + (0 if self.shares_kv else self.num_kv_heads * self.head_dim)

    def sharing(self) -> Heads:
        """Return the heads of a block that has queries alone, with a norm of these alone."""
        return replace(self, shares_kv=True, qk_norm_params=self.qk_norm_params // 2)

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


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 §2.1). `q_lora_rank` None: queries direct.

    index_heads, index_head_dim: of the small attention that chooses which tokens to look at (DeepSeek-V3.2); 0:
    all are looked at.
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    index_heads: int = 0
    index_head_dim: int = 0

    @property
    def qk_head_dim(self) -> int:
        """Size of one head's query and key."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


def shares_evenly(ranks: int, kv_heads: Iterable[int]) -> bool:
    """Return whether ranks of tensor parallelism have as many key-value heads each, or each a copy of one."""
    return all(count % ranks == 0 or ranks % count == 0 for count in kv_heads)
