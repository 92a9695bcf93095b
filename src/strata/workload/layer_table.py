"""The layers of a model as the cost model needs them: FLOPs, parameters, memory and messages, one row per layer.

FLOPs count attention over the full s x s square, causal or not, which is Megatron-LM's convention (arXiv
2104.04473, eq. 3) and the one published utilisations use, or over the s x w band of a sliding window w.
Activations are arXiv 2205.05198, §4.1, eq. 2, term by term with the sizes of the model (see `_kept_bytes`).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.workload.kernels import LayerKernels
from strata.workload.layer_kinds import has_attention, has_mlp, is_linear, is_sparse
from strata.workload.layers import LayerExchanges, LayerTable
from strata.workload.model import ModelSpec

_STATISTIC_BYTES: Final = 4
"""Logits, router scores and softmax statistics are kept in fp32 whatever the compute precision."""

_LOGIT_ELEMENTS: Final = 6
"""16-bit elements moved per logit forward: the product's output read, its fp32 copy written, read for the maximum
and again for the sum of the cross entropy."""

_SMALL_KERNELS: Final = 16
"""Kernels of a block that are no matrix product, as PyTorch runs one: norms, rotations or biases, attention,
residual sums, the activation function, casts and copies."""


def layer_table(
    spec: ModelSpec,
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
    s, kinds = sequence_length, spec.kinds
    hidden = np.full(len(kinds), float(s * spec.hidden_size) * element_bytes)
    inputs = np.where(np.array(kinds) == "embedding", 0.0, hidden + _beside(spec) * s * element_bytes)
    crossing = np.array([spec.crossing_elements(layer) for layer in range(len(kinds))], dtype=np.float64)
    flops = [_flops(spec, kind, s, spec.window(layer) or s) for layer, kind in enumerate(kinds)]
    kernels = tuple(_kernels(spec, layer) for layer in range(len(kinds)))
    kept = {kind: s * _kept_bytes(spec, kind, element_bytes, input_bytes or element_bytes) for kind in set(kinds)}
    if spec.experts is not None and not keeps_expert_outputs:
        for kind in filter(is_sparse, kept):
            kept[kind] -= s * element_bytes * spec.experts.experts_per_token * spec.routed_size
    return LayerTable(
        kinds=kinds,
        forward_flops=np.array(flops),
        params=np.array(spec.params_per_layer, dtype=np.float64),
        activation_bytes=np.array([kept[kind] for kind in kinds]),
        checkpoint_bytes=inputs,
        boundary_bytes=hidden + s * crossing * element_bytes,
        kernels=kernels,
        only_some=_exchanges(spec, flops, s, element_bytes),
        tied_params=_table_params(spec) if spec.tied_embeddings else None,
        only_hidden=hidden if spec.is_whole else None,
    )


def _beside(spec: ModelSpec) -> Floats:
    """Return how many numbers of a token each layer takes beside a hidden state, keys and values left out [L]."""
    further = (spec.altup.num_inputs - 1) * spec.hidden_size if spec.altup is not None else 0
    own = spec.layer_embeddings.size if spec.layer_embeddings is not None else 0
    each = {"embedding": 0, "head": further}
    return np.array([float(each.get(kind, further + own)) for kind in spec.kinds])


def _table_params(spec: ModelSpec) -> Floats:
    is_head = np.array([kind == "head" for kind in spec.kinds])
    return np.where(is_head, float(spec.vocab_size * spec.embedding_size), 0.0)


def _exchanges(spec: ModelSpec, flops: list[float], sequence_length: int, element_bytes: float) -> LayerExchanges:
    """Return what splitting sequences and experts moves, and what `selective` computes again, per layer."""
    s, h, kinds = sequence_length, spec.hidden_size, spec.kinds
    block = np.array([kind not in ("embedding", "head") for kind in kinds], dtype=np.float64)
    moe = np.array([is_sparse(kind) for kind in kinds], dtype=np.float64)
    widths = np.array([float(_attended(spec, kind)) for kind in kinds])
    kept_tokens = np.array([min(s, spec.window(i)) if is_linear(kind) else s for i, kind in enumerate(kinds)])
    cached = kept_tokens * np.array([spec.seen_elements(kind) for kind in kinds])
    matrices = np.array([s * spec.token_flops(kind) for kind in kinds])
    experts = spec.experts
    per_token, width, stored = 0, 0, 0
    if experts is not None:
        per_token = experts.experts_per_token
        width = (3 if spec.gated_mlp else 2) * spec.routed_size * experts.intermediate_size
        stored = width * experts.num_experts
    # Of latent attention the up-projections are computed again too (arXiv 2412.19437 §3.2.3).
    mla, expanded = spec.latent, np.zeros(len(kinds))
    if mla is not None:
        expanded[[not is_linear(kind) for kind in kinds]] = (
            spec.attentions * spec.num_heads * (2 * mla.qk_head_dim + mla.v_head_dim)
        )
    parts = np.array([_parts(spec, kind) for kind in kinds])
    activated = np.array([float(spec.mlp_width(kind)) for kind in kinds])
    return LayerExchanges(
        kv_bytes=block * cached * element_bytes,
        query_bytes=block * (s * widths * element_bytes),
        attention_flops=block * (np.array(flops) - matrices),
        expert_params=moe * float(stored),
        routed_bytes=moe * (s * per_token * spec.routed_size * element_bytes),
        routed_flops=moe * (2.0 * s * per_token * width),
        recomputed_bytes=block * s * element_bytes * (parts * h + activated + expanded),
        expert_groups=(1, 1) if experts is None else experts.groups,
    )


def _kernels(spec: ModelSpec, layer: int) -> LayerKernels:
    """Return what a layer computes for a token: 0 is the embedding, the last the head."""
    kind, h = spec.kinds[layer], spec.hidden_size
    products = spec.products(kind)
    if kind == "embedding":
        streamed = 2.0 * h
        if spec.layer_embeddings is not None:  # looked up, projected, normed and added
            streamed += 8.0 * spec.layer_embeddings.width
        return LayerKernels(products, 0.0, 0, 0, streamed, 0.0, 1 + len(products), is_block=False)
    if kind == "head":
        streamed = 2.0 * h + _LOGIT_ELEMENTS * spec.vocab_size
        return LayerKernels(products, 0.0, 0, 0, streamed, 0.0, 4 + len(products), is_block=False)
    moe = spec.experts if is_sparse(kind) else None
    parts, routed = _parts(spec, kind), 0.0
    if moe is not None:
        # Copies are read and written to sort them and to pad each expert's, on the way there and back.
        routed = 8.0 * moe.experts_per_token * spec.routed_size + 2.0 * moe.num_experts
    # A norm reads and writes, a residual sum reads two and writes one, an activation function reads what the
    # first product wrote and writes what the second reads; queries and keys are rotated (and normed) in place.
    streamed = 2.0 * spec.norms_per_layer * h + parts * 3.0 * h
    streamed += (3.0 if spec.gated_mlp else 2.0) * spec.mlp_width(kind)
    streamed += sum(part.streamed_elements(h) for part in spec.beside)
    num_heads = 0
    if spec.linear is not None and is_linear(kind):
        num_heads, streamed = spec.linear.value_heads, streamed + spec.linear.streamed_elements
    elif has_attention(kind):
        heads = spec.heads(kind)
        num_heads = spec.attentions * heads.num_heads
        streamed += (4.0 if heads.qk_norm_params else 2.0) * spec.attentions * heads.rotated
        streamed += 3.0 * heads.outputs if spec.gated_attention else 0.0
        streamed += 2.0 * heads.outputs + heads.num_heads if spec.gated_heads else 0.0
    return LayerKernels(
        products, spec.attention_flops(kind), spec.window(layer), num_heads, streamed, routed,
        _SMALL_KERNELS * parts // 2 + len(products), is_linear(kind),
    )  # fmt: skip


def _flops(spec: ModelSpec, kind: str, sequence_length: int, window: int) -> float:
    """Forward FLOPs of one sequence: those of its tokens, plus the attention square.

    A window leaves a band of the square, as wide as the window: its edge at the start is not taken off, as the
    half above the diagonal is not.
    """
    s = sequence_length
    attention = 0.0 if kind in ("embedding", "head") else spec.attention_flops(kind)
    return s * spec.token_flops(kind) + s * min(s, window) * attention


def _kept_bytes(spec: ModelSpec, kind: str, element_bytes: float, input_bytes: float) -> float:
    """Bytes one token leaves for the backward pass, nothing recomputed but the attention scores.

    For GPT this is eq. 2 of arXiv 2205.05198 without `5 a s / h` (flash attention keeps one fp32 statistic a
    head) and without dropout masks: 32 s b h + 4 a s b. The head is that paper's §4.3: norm and projection
    inputs, fp32 logits. Products that read narrower numbers (FP8) leave attention's output twice.
    """
    h, e = spec.hidden_size, spec.embedding_size
    further = (spec.altup.num_inputs - 1) * h if spec.altup is not None else 0
    if kind == "embedding":
        each = spec.layer_embeddings
        read = e if e != h or each is not None or further else 0  # products read the token's embedding
        return element_bytes * (read + further + (each.width if each is not None else 0))
    if kind == "head":
        inputs = (h if spec.final_norm else 0) + e + (h if e != h else 0) + 2 * further
        return element_bytes * inputs + _STATISTIC_BYTES * spec.vocab_size
    moe = spec.experts if is_sparse(kind) else None
    attended = _attended(spec, kind)
    if spec.linear is not None and is_linear(kind):
        statistics, kept = 2 * spec.linear.value_heads, spec.linear.kept_elements
    elif has_attention(kind):
        statistics = spec.attentions * spec.heads(kind).num_heads
        kept = spec.attentions * _attention_elements(spec, kind)
    else:
        statistics, kept = 0, 0
    read, width = _parts(spec, kind) * h, spec.mlp_width(kind)
    elements = spec.norms_per_layer * h + kept + attended + sum(part.kept_elements(h) for part in spec.beside)
    if moe is not None:
        # Each routed copy of a token is an MLP input of its own, and an output until the copies are summed.
        copies = moe.experts_per_token * spec.routed_size
        elements, read = elements + copies + 2 * moe.latent_size, read + copies
        statistics += moe.num_experts
    elements += (2 if spec.gated_mlp else 1) * width
    twice = input_bytes * attended if input_bytes < element_bytes else 0.0
    return element_bytes * elements + input_bytes * (read + width) + twice + _STATISTIC_BYTES * statistics


def _parts(spec: ModelSpec, kind: str) -> int:
    """Return how many of attention and MLP a block has."""
    return spec.attentions * (has_attention(kind) + has_mlp(kind))


def _attended(spec: ModelSpec, kind: str) -> int:
    """Width of what attention puts out, before its last product."""
    if not has_attention(kind):
        return 0
    if spec.linear is not None and is_linear(kind):
        return spec.linear.values
    return spec.attentions * spec.heads(kind).outputs


def _attention_elements(spec: ModelSpec, kind: str) -> int:
    """Queries, keys and values; latents and norms where used."""
    a, mla = spec.num_heads, spec.latent
    if mla is not None:
        latents = 2 * ((mla.q_lora_rank or 0) + mla.kv_lora_rank) + mla.qk_rope_head_dim
        return latents + a * (2 * mla.qk_head_dim + mla.v_head_dim)
    heads = spec.heads(kind)
    gates = 0  # what gates, and the output that it multiplied
    if spec.gated_attention or spec.gated_heads:
        gates = heads.outputs + (heads.outputs if spec.gated_attention else heads.num_heads)
    queries_and_keys = heads.queries + heads.num_kv_heads * heads.head_dim
    values = heads.num_kv_heads * heads.value_head_dim
    return queries_and_keys * (2 if heads.qk_norm_params else 1) + values + gates
