"""A decoder-only transformer, as far as its parameters, FLOPs and memory depend on its shape.

Sources: the matrices are those of the Hugging Face implementation of each family; FLOPs count a multiply-add as 2
and attention over the full s x s square, causal or not, which is Megatron-LM's convention (arXiv 2104.04473,
eq. 3) and the one published utilisations use, or over the s x w band of a sliding window w; activations are arXiv
2205.05198, §4.1, eq. 2, term by term with the sizes of this model (see `_activation_bytes`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from strata.decision import UNHASHED, Trust
from strata.workload.kernels import LayerKernels, MatrixProduct
from strata.workload.layers import LayerExchanges, LayerTable

_STATISTIC_BYTES: Final = 4
"""Logits, router scores and softmax statistics are kept in fp32 whatever the compute precision."""

_LOGIT_ELEMENTS: Final = 6
"""16-bit elements moved per logit forward: the product's output read, its fp32 copy written, read for the maximum
and again for the sum of the cross entropy."""

_SMALL_KERNELS: Final = 16
"""Kernels of a block that are no matrix product, as PyTorch runs one: norms, rotations or biases, attention,
residual sums, the activation function, casts and copies."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 §2.1). `q_lora_rank` None: queries direct."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def qk_head_dim(self) -> int:
        """Size of one head's query and key."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in every layer but `dense_layers`.

    intermediate_size: of one routed expert; shared_intermediate_size: of all shared experts together, 0 for none;
    shared_gate: the shared expert's output is gated per token (Qwen2-MoE); bias: experts and router have biases
    (gpt-oss).
    """

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    shared_gate: bool = False
    bias: bool = False
    dense_layers: frozenset[int] = frozenset()
    groups: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class ModelSpec:
    """The shape of a decoder-only transformer.

    embedding_size: width of the token embedding; other than `hidden_size` in OPT-350M only, which projects.
    num_positions: rows of a learned position table, 0 for rotary positions.
    max_sequence_length: what the position table allows; None where positions are computed.
    context_limit: tokens that the model takes according to its config; None where that says nothing. It decides no
    plan, only what launch scripts allow.
    norms_per_layer: norms over the hidden state in one block; qk_norm_params: of the norms on queries and keys.
    embedding_norm: one more after the embedding (BLOOM). attention_sinks: one number a head (gpt-oss).
    windows: tokens that each block's attention looks back at and caches, 0 for all; empty: all blocks take all.
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
    num_positions: int = 0
    max_sequence_length: int | None = None
    context_limit: int | None = field(default=None, metadata={UNHASHED: True})
    norms_per_layer: int = 2
    final_norm: bool = True
    norm_bias: bool = False
    qk_norm_params: int = 0
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    embedding_norm: bool = False
    attention_sinks: bool = False
    windows: tuple[int, ...] = ()
    latent: LatentAttention | None = None
    experts: Experts | None = None
    trust: Trust = Trust.ANALYTIC
    notes: tuple[str, ...] = ()

    @property
    def attention(self) -> str:
        """One of mha, gqa, mqa, mla."""
        if self.latent is not None:
            return "mla"
        if self.num_kv_heads == self.num_heads:
            return "mha"
        return "mqa" if self.num_kv_heads == 1 else "gqa"

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Kind of each layer: embedding, then dense or moe, then head."""
        return ("embedding", *("moe" if self._is_sparse(i) else "dense" for i in range(self.num_layers)), "head")

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
        """Return the bytes all layers together cache for one token, as long as no window is full."""
        return self.num_layers * self.kv_elements_per_layer * element_bytes

    def window(self, layer: int) -> int:
        """Return the tokens that a layer of `kinds` looks back at, 0 for all: those of embedding and head too."""
        return self.windows[layer - 1] if self.windows and 0 < layer <= self.num_layers else 0

    @property
    def kv_elements_per_layer(self) -> int:
        """Numbers one block caches for one token: keys and values, or the latent of both."""
        if self.latent is not None:
            return self.latent.kv_lora_rank + self.latent.qk_rope_head_dim
        return 2 * self.num_kv_heads * self.head_dim

    def token_flops(self, kind: str) -> float:
        """Return the forward FLOPs of one token in a layer: 2 per active matrix element."""
        return 2.0 * self._matrices(kind, active=True)

    def attention_flops(self, *, is_cached: bool = False) -> float:
        """Return the FLOPs of one token's attention to one other in one block.

        is_cached: the other's keys and values are read from the cache. Latents are then not expanded: their
        projections are absorbed into query and output, which takes as many FLOPs a token, but attention works
        on latents (arXiv 2405.04434 §2.1.2).
        """
        if self.latent is None:
            return 2.0 * 2 * self.num_heads * self.head_dim
        mla = self.latent
        if is_cached:
            return 2.0 * self.num_heads * (2 * mla.kv_lora_rank + mla.qk_rope_head_dim)
        return 2.0 * self.num_heads * (mla.qk_head_dim + mla.v_head_dim)

    def routed_params(self, kind: str) -> int:
        """Return the parameters of all routed experts of a layer; shared ones are not among them."""
        if kind != "moe" or self.experts is None:
            return 0
        return sum(product.params for product in self._feed_forward(self.experts.intermediate_size, self.experts))

    def layer_table(
        self,
        sequence_length: int,
        element_bytes: float = 2,
        *,
        input_bytes: float | None = None,
        keeps_expert_outputs: bool = True,
    ) -> LayerTable:
        """Return the per-layer figures of one sequence: embedding, blocks, final norm with LM head.

        input_bytes: of an element that a block's product keeps of its input; None: as all others.
        keeps_expert_outputs: what experts make of a token is weighed when it has come back, and kept for that; not
        where its weight is multiplied in before their last product (Megatron-Core).

        A boundary is one hidden state per token (the head's is never sent). Full recomputation keeps the input of
        every layer; the embedding's are token ids, counted as nothing.
        """
        s, kinds = sequence_length, self.kinds
        hidden = np.full(len(kinds), float(s * self.hidden_size) * element_bytes)
        inputs = np.where(np.array(kinds) == "embedding", 0.0, hidden)
        flops = [self._flops(kind, s, self.window(layer) or s) for layer, kind in enumerate(kinds)]
        kernels = tuple(self._kernels(layer) for layer in range(len(kinds)))
        kept = {
            kind: s * self._kept_bytes(kind, element_bytes, input_bytes or element_bytes) for kind in set(kinds)
        }
        if self.experts is not None and not keeps_expert_outputs:
            kept["moe"] -= s * element_bytes * self.experts.experts_per_token * self.hidden_size
        return LayerTable(
            kinds=kinds,
            forward_flops=np.array(flops),
            params=np.array(self.params_per_layer, dtype=np.float64),
            activation_bytes=np.array([kept[kind] for kind in kinds]),
            checkpoint_bytes=inputs,
            boundary_bytes=hidden,
            kernels=kernels,
            only_some=self._exchanges(flops, s, element_bytes),
        )

    def _exchanges(self, flops: list[float], sequence_length: int, element_bytes: float) -> LayerExchanges:
        """Return what splitting sequences and experts moves, and what `selective` computes again, per layer."""
        s, h, kinds = sequence_length, self.hidden_size, self.kinds
        block = np.array([kind not in ("embedding", "head") for kind in kinds], dtype=np.float64)
        moe = np.array([kind == "moe" for kind in kinds], dtype=np.float64)
        head_dim = self.head_dim if self.latent is None else self.latent.v_head_dim
        matrices = np.array([s * self.token_flops(kind) for kind in kinds])
        experts = self.experts
        per_token, width, stored = 0, 0, 0
        if experts is not None:
            per_token = experts.experts_per_token
            width = (3 if self.gated_mlp else 2) * h * experts.intermediate_size
            stored = width * experts.num_experts
        routed = 0 if experts is None else per_token * experts.intermediate_size + experts.shared_intermediate_size
        # Of latent attention the up-projections are computed again too (arXiv 2412.19437 §3.2.3).
        mla, expanded = self.latent, 0
        if mla is not None:
            expanded = self.num_heads * (2 * mla.qk_head_dim + mla.v_head_dim)
        activated = np.where(moe > 0, routed, float(self.intermediate_size))
        return LayerExchanges(
            kv_bytes=block * (s * self.kv_elements_per_layer * element_bytes),
            query_bytes=block * (s * self.num_heads * head_dim * element_bytes),
            attention_flops=block * (np.array(flops) - matrices),
            expert_params=moe * float(stored),
            routed_bytes=moe * (s * per_token * h * element_bytes),
            routed_flops=moe * (2.0 * s * per_token * width),
            recomputed_bytes=block * s * element_bytes * (2 * h + activated + expanded),
            expert_groups=(1, 1) if experts is None else experts.groups,
        )

    def _is_sparse(self, layer: int) -> bool:
        return self.experts is not None and layer not in self.experts.dense_layers

    @property
    def _norm(self) -> int:
        return self.hidden_size * (2 if self.norm_bias else 1)

    def _products(self, kind: str) -> tuple[MatrixProduct, ...]:
        """Return the matrix products of a layer, in the order they run; a tied head's is the embedding's."""
        h, e = self.hidden_size, self.embedding_size
        if kind == "embedding":
            return () if e == h else (MatrixProduct(e, h, "none"),)  # OPT-350M alone projects
        if kind == "head":
            head = MatrixProduct(e, self.vocab_size, "outputs")
            return (head,) if e == h else (MatrixProduct(h, e, "none"), head)
        return self._attention_products + self._mlp_products(kind)

    def _matrices(self, kind: str, *, active: bool) -> int:
        return sum(product.active_params if active else product.params for product in self._products(kind))

    def _params(self, kind: str, *, active: bool) -> int:
        table = self.vocab_size * self.embedding_size
        if kind == "embedding":
            norm = self._norm if self.embedding_norm else 0
            return table + self._matrices(kind, active=active) + self.num_positions * self.hidden_size + norm
        if kind == "head":
            norm = self._norm if self.final_norm else 0
            bias = self.vocab_size if self.head_bias else 0
            return norm + self._matrices(kind, active=active) + bias - (table if self.tied_embeddings else 0)
        norms = self.norms_per_layer * self._norm + self.qk_norm_params
        vectors = norms + self._attention_vectors + self._mlp_vectors(kind, active=active)
        return vectors + self._matrices(kind, active=active)

    @property
    def _attention_products(self) -> tuple[MatrixProduct, ...]:
        h, a, mla = self.hidden_size, self.num_heads, self.latent
        if mla is None:
            inner = a * self.head_dim
            together = MatrixProduct(h, inner + 2 * self.num_kv_heads * self.head_dim, "outputs")
            return (together, MatrixProduct(inner, h, "inputs"))
        rank = mla.q_lora_rank
        return (
            *(() if rank is None else (MatrixProduct(h, rank, "none"),)),
            MatrixProduct(h if rank is None else rank, a * mla.qk_head_dim, "outputs"),
            MatrixProduct(h, mla.kv_lora_rank + mla.qk_rope_head_dim, "none"),
            MatrixProduct(mla.kv_lora_rank, a * (mla.qk_nope_head_dim + mla.v_head_dim), "outputs"),
            MatrixProduct(a * mla.v_head_dim, h, "inputs"),
        )

    @property
    def _attention_vectors(self) -> int:
        """Biases of the projections, and the norms inside latent attention."""
        bias = (self.hidden_size if self.output_bias else 0) + (self.num_heads if self.attention_sinks else 0)
        if self.latent is None:
            return bias + ((self.num_heads + 2 * self.num_kv_heads) * self.head_dim if self.qkv_bias else 0)
        ranks = (self.latent.q_lora_rank or 0) + self.latent.kv_lora_rank
        return bias + ranks + (ranks + self.latent.qk_rope_head_dim if self.qkv_bias else 0)

    def _mlp_products(self, kind: str) -> tuple[MatrixProduct, ...]:
        moe = self.experts
        if kind == "dense" or moe is None:
            return self._feed_forward(self.intermediate_size)
        router = MatrixProduct(self.hidden_size, moe.num_experts + (1 if moe.shared_gate else 0), "none")
        shared = self._feed_forward(moe.shared_intermediate_size) if moe.shared_intermediate_size else ()
        return (router, *self._feed_forward(moe.intermediate_size, moe), *shared)

    def _feed_forward(self, width: int, experts: Experts | None = None) -> tuple[MatrixProduct, ...]:
        copies, groups = (1, 1) if experts is None else (experts.experts_per_token, experts.num_experts)
        into = (2 if self.gated_mlp else 1) * width
        return (
            MatrixProduct(self.hidden_size, into, "outputs", copies, groups),
            MatrixProduct(width, self.hidden_size, "inputs", copies, groups),
        )

    def _kernels(self, layer: int) -> LayerKernels:
        """Return what a layer computes for a token: 0 is the embedding, the last the head."""
        kind, h = self.kinds[layer], self.hidden_size
        products = self._products(kind)
        if kind == "embedding":
            return LayerKernels(products, 0.0, 0, 0, 2.0 * h, 0.0, 1 + len(products))
        if kind == "head":
            streamed = 2.0 * h + _LOGIT_ELEMENTS * self.vocab_size
            return LayerKernels(products, 0.0, 0, 0, streamed, 0.0, 4 + len(products))
        moe = self.experts if kind == "moe" else None
        width, routed = self.intermediate_size, 0.0
        if moe is not None:
            width = moe.experts_per_token * moe.intermediate_size + moe.shared_intermediate_size
            # Copies are read and written to sort them and to pad each expert's, on the way there and back.
            routed = 8.0 * moe.experts_per_token * h + 2.0 * moe.num_experts
        # A norm reads and writes, a residual sum reads two and writes one, an activation function reads what the
        # first product wrote and writes what the second reads; queries and keys are rotated (and normed) in place.
        streamed = 2.0 * self.norms_per_layer * h + 2 * 3.0 * h + (3.0 if self.gated_mlp else 2.0) * width
        queries_and_keys = (self.num_heads + self.num_kv_heads) * self.head_dim
        streamed += (4.0 if self.qk_norm_params else 2.0) * queries_and_keys
        return LayerKernels(
            products, self.attention_flops(), self.window(layer), self.num_heads, streamed, routed,
            _SMALL_KERNELS + len(products),
        )  # fmt: skip

    def _mlp_vectors(self, kind: str, *, active: bool) -> int:
        """Biases of a dense MLP, or of experts and their router."""
        if kind == "moe" and self.experts is not None:
            moe = self.experts
            routed = moe.experts_per_token if active else moe.num_experts
            return moe.num_experts + routed * self._biases(moe.intermediate_size) if moe.bias else 0
        return self._biases(self.intermediate_size) if self.mlp_bias else 0

    def _biases(self, width: int) -> int:
        return (2 if self.gated_mlp else 1) * width + self.hidden_size

    def _flops(self, kind: str, sequence_length: int, window: int) -> float:
        """Forward FLOPs of one sequence: those of its tokens, plus the attention square.

        A window leaves a band of the square, as wide as the window: its edge at the start is not taken off, as the
        half above the diagonal is not.
        """
        s = sequence_length
        attention = 0.0 if kind in ("embedding", "head") else self.attention_flops()
        return s * self.token_flops(kind) + s * min(s, window) * attention

    def _kept_bytes(self, kind: str, element_bytes: float, input_bytes: float) -> float:
        """Bytes one token leaves for the backward pass, nothing recomputed but the attention scores.

        For GPT this is eq. 2 of arXiv 2205.05198 without `5 a s / h` (flash attention keeps one fp32 statistic a
        head) and without dropout masks: 32 s b h + 4 a s b. The head is that paper's §4.3: norm and projection
        inputs, fp32 logits. Products that read narrower numbers (FP8) leave attention's output twice.
        """
        h, e = self.hidden_size, self.embedding_size
        if kind == "embedding":
            return element_bytes * (e if e != h else 0)
        if kind == "head":
            inputs = (h if self.final_norm else 0) + e + (h if e != h else 0)
            return element_bytes * inputs + _STATISTIC_BYTES * self.vocab_size
        moe = self.experts if kind == "moe" else None
        attended, statistics = self.num_heads * self.head_dim, self.num_heads
        read, width = 2 * h, self.intermediate_size
        elements = self.norms_per_layer * h + self._attention_elements + attended
        if moe is not None:
            # Each routed copy of a token is an MLP input of its own, and an output until the copies are summed.
            width = moe.experts_per_token * moe.intermediate_size + moe.shared_intermediate_size
            elements, read = elements + moe.experts_per_token * h, read + moe.experts_per_token * h
            statistics += moe.num_experts
        elements += (2 if self.gated_mlp else 1) * width
        twice = input_bytes * attended if input_bytes < element_bytes else 0.0
        return element_bytes * elements + input_bytes * (read + width) + twice + _STATISTIC_BYTES * statistics

    @property
    def _attention_elements(self) -> int:
        """Queries, keys and values; latents and norms where used."""
        a, mla = self.num_heads, self.latent
        if mla is not None:
            latents = 2 * ((mla.q_lora_rank or 0) + mla.kv_lora_rank) + mla.qk_rope_head_dim
            return latents + a * (2 * mla.qk_head_dim + mla.v_head_dim)
        queries_and_keys = (a + self.num_kv_heads) * self.head_dim
        return queries_and_keys * (2 if self.qk_norm_params else 1) + self.num_kv_heads * self.head_dim
