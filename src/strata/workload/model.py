"""A decoder-only transformer: its shape, and the parameters and FLOPs of a token that follow from it.

The matrices are those of the Hugging Face implementation of each family; FLOPs count a multiply-add as 2. What the
layers of a sequence take is in `layer_table.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import gcd

from strata.decision import UNHASHED, Trust
from strata.workload.experts import Experts
from strata.workload.heads import Heads, LatentAttention, OtherHeads
from strata.workload.kernels import MatrixProduct
from strata.workload.layer_kinds import has_attention, has_mlp, is_linear, is_sparse, shares_kv
from strata.workload.linear_attention import LinearAttention
from strata.workload.shared_kv import SharedKv
from strata.workload.side_inputs import AltUp, LayerEmbeddings


@dataclass(frozen=True)
class ModelSpec:
    """The shape of a decoder-only transformer.

    embedding_size: width of the token embedding; other than `hidden_size` in OPT-350M only, which projects.
    added_rows: of the embedding, for tokens that the head never gives (Molmo 2).
    num_positions: rows of a learned position table, 0 for rotary positions.
    max_sequence_length: what the position table allows; None where positions are computed.
    context_limit: tokens that the model takes according to its config; None where that says nothing. It decides no
    plan, only what launch scripts allow and a serving plan says of longer requests.
    norms_per_layer: norms over the hidden state in one block; norm_params: whether they hold any (OLMo's do not);
    qk_norm_params: of the norms on queries and keys.
    embedding_norm: one more after the embedding (BLOOM). attention_sinks: one number a head (gpt-oss).
    gated_attention: attention's output is multiplied by a gate as wide (Qwen3-Next); gated_heads: by one number a
    head (Step 3.5).
    value_head_dim: of a value, 0: as wide as a key. other: heads of some blocks that are not those named here.
    windows: tokens that each block's attention looks back at and caches, 0 for all; empty: all blocks take all.
    linear: of the blocks that keep a state in place of a cache.
    lone: the kind of each block where blocks are attention or an MLP alone (Nemotron-H); empty: they are both.
    attentions: of a layer, each with an MLP (LongCat-Flash has two).
    shared: which blocks take keys and values of earlier ones. layer_embeddings, altup: what flows beside the
    hidden state. The layer table and `ModelInfo` hold all that these four decide, and are hashed.
    notes: what a reader of the figures should know.
    """

    name: str
    model_type: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    intermediate_size: int
    embedding_size: int
    gated_mlp: bool = True
    tied_embeddings: bool = False
    added_rows: int = 0
    num_positions: int = 0
    max_sequence_length: int | None = None
    context_limit: int | None = field(default=None, metadata={UNHASHED: True})
    norms_per_layer: int = 2
    final_norm: bool = True
    norm_bias: bool = False
    norm_params: bool = True
    qk_norm_params: int = 0
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    embedding_norm: bool = False
    attention_sinks: bool = False
    gated_attention: bool = False
    gated_heads: bool = False
    value_head_dim: int = 0
    other: OtherHeads | None = None
    windows: tuple[int, ...] = ()
    latent: LatentAttention | None = None
    linear: LinearAttention | None = None
    lone: tuple[str, ...] = ()
    experts: Experts | None = None
    attentions: int = field(default=1, metadata={UNHASHED: True})
    shared: SharedKv | None = field(default=None, metadata={UNHASHED: True})
    layer_embeddings: LayerEmbeddings | None = field(default=None, metadata={UNHASHED: True})
    altup: AltUp | None = field(default=None, metadata={UNHASHED: True})
    trust: Trust = Trust.ANALYTIC
    notes: tuple[str, ...] = ()

    @property
    def attention(self) -> str:
        """One of mha, gqa, mqa, mla; of the blocks that attend."""
        if self.latent is not None:
            return "mla"
        if self.num_kv_heads == self.num_heads:
            return "mha"
        return "mqa" if self.num_kv_heads == 1 else "gqa"

    @property
    def divided(self) -> dict[str, int]:
        """How many there are of what no two ranks of tensor parallelism share: heads, and groups of heads."""
        heads = self.num_heads if self.other is None else gcd(self.num_heads, self.other.heads.num_heads)
        linear = self.linear.divided if self.linear is not None and self.linear.layers else {}
        if linear and self.lone and "attention" not in self.lone:
            return linear
        return {"attention heads": heads, **linear}

    @property
    def divided_heads(self) -> int:
        """The number that ranks divide in training: what all numbers of heads and groups are multiples of."""
        return gcd(*self.divided.values())

    @property
    def served_heads(self) -> int:
        """The number that ranks divide in serving: a single group of Mamba each rank has a copy of (vLLM's
        `mamba_mixer2.py`), more groups they divide.
        """
        return gcd(*(count for what, count in self.divided.items() if (what, count) != ("Mamba groups", 1)))

    @property
    def kv_heads(self) -> tuple[int, ...]:
        """The numbers of key-value heads of blocks: each divides a tensor degree or is divided by it, and every
        rank has as many, or a copy of one (Megatron-LM, vLLM).
        """
        if self.latent is not None or (self.lone and "attention" not in self.lone):
            return ()
        others = () if self.other is None else (self.other.heads.num_kv_heads,)
        return tuple(dict.fromkeys((self.num_kv_heads, *others)))

    @property
    def can_be_profiled(self) -> bool:
        """Whether `strata profile` times its blocks: heads all alike, without an index or a state."""
        odd = self.linear is not None or self.other is not None or self.value_head_dim or self.lone
        is_indexed = self.latent is not None and self.latent.index_heads > 0
        return not (odd or is_indexed or self.attentions > 1 or self.is_whole)

    @property
    def is_whole(self) -> bool:
        """Whether blocks need more of earlier ones than a hidden state: keys and values, or what flows beside."""
        return any((self.shared, self.layer_embeddings, self.altup))

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Kind of each layer: embedding, then dense or moe, after `linear-`, the name of other heads and `shared-`
        (keys and values) where that holds, or `double-` (two attentions), or one of LONE_KINDS, then head.
        """
        return ("embedding", *(self._kind(i) for i in range(self.num_layers)), "head")

    @cached_property
    def params_per_layer(self) -> tuple[int, ...]:
        """Stored parameters of each layer, as in `kinds`.

        Tied embeddings count once, in the embedding; the copy a pipeline keeps on its last stage is not counted.
        """
        return tuple(self._params(kind, active=False) for kind in self.kinds)

    @cached_property
    def active_params_per_layer(self) -> tuple[int, ...]:
        """Parameters one token passes through, the whole embedding included, as model cards count."""
        return tuple(self._params(kind, active=True) for kind in self.kinds)

    @property
    def num_params(self) -> int:
        """Stored parameters."""
        return sum(self.params_per_layer)

    @property
    def num_active_params(self) -> int:
        """Parameters one token passes through."""
        return sum(self.active_params_per_layer)

    def kv_bytes_per_token(self, element_bytes: float = 2) -> float:
        """Return the bytes all layers together cache for one token, as long as no window is full.

        What linear attention keeps is none of it: `state_bytes`.
        """
        return element_bytes * sum(self.kv_elements(kind) for kind in self.kinds[1:-1] if not is_linear(kind))

    def state_bytes(self, element_bytes: float = 2) -> float:
        """Return the bytes that all blocks of linear attention keep for a sequence of any length."""
        return 0.0 if self.linear is None else len(self.linear.layers) * self.linear.state_elements * element_bytes

    def window(self, layer: int) -> int:
        """Return the tokens that a layer of `kinds` looks back at, 0 for all: those of embedding and head too.

        Of linear attention: as many as cost the same.
        """
        if self.linear is not None and is_linear(self.kinds[layer]):
            return self.linear.window
        return self.windows[layer - 1] if self.windows and 0 < layer <= self.num_layers else 0

    def kv_elements(self, kind: str) -> float:
        """Return how many numbers a block caches for one token in its window: keys and values, or the latent of
        both; of linear attention its state, spread over the window.
        """
        if not has_attention(kind):
            return 0
        if self.linear is not None and is_linear(kind):
            return self.linear.state_elements / self.linear.window
        if self.latent is not None:
            cached = self.latent.kv_lora_rank + self.latent.qk_rope_head_dim + self.latent.index_head_dim
            return self.attentions * cached
        return self.heads(kind).cached

    def seen_elements(self, kind: str) -> float:
        """Return how many numbers a block reads of a token that it looks at, whichever block caches them."""
        return self.heads(kind).seen if shares_kv(kind) else self.kv_elements(kind)

    def crossing_elements(self, layer: int) -> int:
        """Return how many numbers of a token later layers need of those up to `layer`, beside the hidden state:
        further hidden states, embeddings of each layer, keys and values that are shared.
        """
        further = (self.altup.num_inputs - 1) * self.hidden_size if self.altup is not None else 0
        if self.layer_embeddings is not None:
            further += self.layer_embeddings.size * max(0, self.num_layers - layer)
        owners = self.shared.crossing(layer - 1) if self.shared is not None else ()
        return further + sum(self.heads(self.kinds[owner + 1]).cached for owner in owners)

    def heads(self, kind: str) -> Heads:
        """Return the heads of a block that attends, of no latent attention."""
        if self.other is not None and kind.startswith(self.other.name):
            heads = self.other.heads
        else:
            heads = Heads(
                self.num_heads, self.num_kv_heads, self.head_dim, self.value_head_dim or self.head_dim,
                qk_norm_params=self.qk_norm_params, sinks=self.attention_sinks,
            )  # fmt: skip
        return heads.sharing() if shares_kv(kind) else heads

    def token_flops(self, kind: str) -> float:
        """Return the forward FLOPs of one token in a layer: 2 per active matrix element, and AltUp's sums."""
        flops = 2.0 * self._matrices(kind, active=True)
        is_block = kind not in ("embedding", "head")
        return flops + self.altup.mixing_flops(self.hidden_size) if self.altup is not None and is_block else flops

    def attention_flops(self, kind: str = "dense", *, is_cached: bool = False) -> float:
        """Return the FLOPs of one token's attention to one other in a block of a kind.

        is_cached: the other's keys and values are read from the cache. Latents are then not expanded: their
        projections are absorbed into query and output, which takes as many FLOPs a token, but attention works
        on latents (arXiv 2405.04434 §2.1.2).
        """
        if not has_attention(kind):
            return 0.0
        if self.linear is not None and is_linear(kind):
            return self.linear.pair_flops
        if self.latent is None:
            return self.heads(kind).pair_flops
        mla = self.latent
        index = 2.0 * mla.index_heads * mla.index_head_dim
        width = 2 * mla.kv_lora_rank + mla.qk_rope_head_dim if is_cached else mla.qk_head_dim + mla.v_head_dim
        return self.attentions * (2.0 * self.num_heads * width + index)

    def routed_params(self, kind: str) -> int:
        """Return the parameters of all routed experts of a layer; shared ones are not among them."""
        if not is_sparse(kind) or self.experts is None:
            return 0
        return sum(product.params for product in self._feed_forward(self.experts.intermediate_size, self.experts))

    @property
    def routed_size(self) -> int:
        """Width of what routed experts read and write."""
        return self.hidden_size if self.experts is None else self.experts.latent_size or self.hidden_size

    def mlp_width(self, kind: str) -> int:
        """Width inside the MLP of a block, of all experts of a token together; 0 without."""
        if not has_mlp(kind):
            return 0
        moe = self.experts
        if moe is None or not is_sparse(kind):
            return self._dense_width(kind)
        return moe.experts_per_token * moe.intermediate_size + moe.shared_intermediate_size

    def _dense_width(self, kind: str) -> int:
        factor = self.shared.mlp_factor if self.shared is not None and shares_kv(kind) else 1
        return factor * self.intermediate_size

    def _kind(self, layer: int) -> str:
        if self.lone:
            return self.lone[layer]
        mlp = "dense" if self.experts is None or layer in self.experts.dense_layers else "moe"
        if self.shared is not None and layer >= self.shared.first:
            mlp = f"shared-{mlp}"
        if self.attentions > 1:
            return f"double-{mlp}"
        if self.other is not None and layer in self.other.layers:
            return f"{self.other.name}-{mlp}"
        return mlp if self.linear is None or layer not in self.linear.layers else f"linear-{mlp}"

    @property
    def _norm(self) -> int:
        return self.hidden_size * (2 if self.norm_bias else 1) if self.norm_params else 0

    def products(self, kind: str) -> tuple[MatrixProduct, ...]:
        """Return the matrix products of a layer, in the order they run; a tied head's is the embedding's."""
        h, e = self.hidden_size, self.embedding_size
        further = self.altup.projections(h) if self.altup is not None else ()
        if kind == "embedding":
            each = self.layer_embeddings
            more = (*further, MatrixProduct(h, each.width, "outputs")) if each is not None else further
            return more if e == h else (MatrixProduct(e, h, "none"), *more)  # OPT-350M alone projects
        if kind == "head":
            head = MatrixProduct(e, self.vocab_size, "outputs")
            return (*further, head) if e == h else (MatrixProduct(h, e, "none"), head)
        mlp = self._mlp_products(kind) if has_mlp(kind) else ()
        mlp += tuple(product for part in self.beside for product in part.products(h))
        if self.linear is not None and is_linear(kind):
            return self.linear.products(h) + mlp
        return (self._attention_products(kind) * self.attentions if has_attention(kind) else ()) + mlp

    @property
    def beside(self) -> tuple[LayerEmbeddings | AltUp, ...]:
        """What flows beside the hidden state."""
        return tuple(part for part in (self.layer_embeddings, self.altup) if part is not None)

    def _matrices(self, kind: str, *, active: bool) -> int:
        return sum(product.active_params if active else product.params for product in self.products(kind))

    def _params(self, kind: str, *, active: bool) -> int:
        table = self.vocab_size * self.embedding_size
        if kind == "embedding":
            norm = self._norm if self.embedding_norm else 0
            table += self.added_rows * self.embedding_size
            if self.layer_embeddings is not None:  # and a norm of what is projected for a block
                table += self.layer_embeddings.rows * self.layer_embeddings.width + self.layer_embeddings.size
            return table + self._matrices(kind, active=active) + self.num_positions * self.hidden_size + norm
        if kind == "head":
            norm = self._norm if self.final_norm else 0
            bias = self.vocab_size if self.head_bias else 0
            return norm + self._matrices(kind, active=active) + bias - (table if self.tied_embeddings else 0)
        vectors = self.norms_per_layer * self._norm + sum(part.norms for part in self.beside) * self.hidden_size
        vectors += self._mlp_vectors(kind, active=active) if has_mlp(kind) else 0
        if self.linear is not None and is_linear(kind):
            vectors += self.linear.vectors
        elif has_attention(kind):
            vectors += self.attentions * self._attention_vectors(kind)
        return vectors + self._matrices(kind, active=active)

    def _attention_products(self, kind: str) -> tuple[MatrixProduct, ...]:
        h, a, mla = self.hidden_size, self.num_heads, self.latent
        if mla is None:
            heads = self.heads(kind)
            gate = heads.outputs if self.gated_attention else heads.num_heads if self.gated_heads else 0
            index = MatrixProduct(h, (heads.index_heads + 1) * heads.index_head_dim, "none")
            return (
                MatrixProduct(h, heads.projected + gate, "outputs"),
                *((index,) if heads.index_heads else ()),
                MatrixProduct(heads.outputs, h, "inputs"),
            )
        rank = mla.q_lora_rank
        of_index = (
            MatrixProduct(h if rank is None else rank, mla.index_heads * mla.index_head_dim, "none"),
            MatrixProduct(h, mla.index_head_dim, "none"),
            MatrixProduct(h, mla.index_heads, "none"),
        )
        return (
            *(() if rank is None else (MatrixProduct(h, rank, "none"),)),
            MatrixProduct(h if rank is None else rank, a * mla.qk_head_dim, "outputs"),
            MatrixProduct(h, mla.kv_lora_rank + mla.qk_rope_head_dim, "none"),
            MatrixProduct(mla.kv_lora_rank, a * (mla.qk_nope_head_dim + mla.v_head_dim), "outputs"),
            *(of_index if mla.index_heads else ()),
            MatrixProduct(a * mla.v_head_dim, h, "inputs"),
        )

    def _attention_vectors(self, kind: str) -> int:
        """Biases of the projections, sinks, and the norms inside attention."""
        bias = self.hidden_size if self.output_bias else 0
        if self.latent is None:
            heads = self.heads(kind)
            bias += heads.qk_norm_params + (heads.num_heads if heads.sinks else 0)
            bias += 2 * heads.index_head_dim  # norms of the index's queries and key
            return bias + (heads.projected if self.qkv_bias else 0)
        ranks = (self.latent.q_lora_rank or 0) + self.latent.kv_lora_rank
        bias += 2 * self.latent.index_head_dim  # a layer norm
        return bias + ranks + (ranks + self.latent.qk_rope_head_dim if self.qkv_bias else 0)

    def _mlp_products(self, kind: str) -> tuple[MatrixProduct, ...]:
        moe = self.experts
        if not is_sparse(kind) or moe is None:
            return self._feed_forward(self._dense_width(kind))
        scores = moe.num_experts + moe.zero_experts + (1 if moe.shared_gate else 0)
        router = MatrixProduct(self.hidden_size, scores, "none")
        shared = self._feed_forward(moe.shared_intermediate_size) if moe.shared_intermediate_size else ()
        routed = self._feed_forward(moe.intermediate_size, moe)
        if moe.latent_size:
            into = MatrixProduct(self.hidden_size, moe.latent_size, "none")
            back = MatrixProduct(moe.latent_size, self.hidden_size, "none")
            return (router, into, *routed, back, *shared)
        return (router, *routed, *shared)

    def _feed_forward(self, width: int, experts: Experts | None = None) -> tuple[MatrixProduct, ...]:
        copies, groups = (1, 1) if experts is None else (experts.experts_per_token, experts.num_experts)
        into = (2 if self.gated_mlp else 1) * width
        hidden = self.hidden_size if experts is None else self.routed_size
        return (
            MatrixProduct(hidden, into, "outputs", copies, groups),
            MatrixProduct(width, hidden, "inputs", copies, groups),
        )

    def _mlp_vectors(self, kind: str, *, active: bool) -> int:
        """Biases of a dense MLP, or of experts and their router."""
        if is_sparse(kind) and self.experts is not None:
            moe = self.experts
            routed = moe.experts_per_token if active else moe.num_experts
            biases = moe.num_experts + routed * self._biases(moe.intermediate_size) if moe.bias else 0
            return biases + (routed if moe.scales else 0)
        return self._biases(self.intermediate_size) if self.mlp_bias else 0

    def _biases(self, width: int) -> int:
        return (2 if self.gated_mlp else 1) * width + self.hidden_size
