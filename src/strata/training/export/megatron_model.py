"""The flags of Megatron-LM that follow from a model: activation, norm, positions, attention and experts.

Names and meaning of the arguments: megatron/training/arguments.py of Megatron-LM.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from strata.training.plan.planned import PlannedModel


def model_arguments(model: PlannedModel, num_layers: int) -> Iterator[str]:
    """Yield the arguments of a model with `num_layers` transformer layers."""
    if model.gated_mlp:
        yield "--swiglu"
    yield f"--normalization {'LayerNorm' if model.norm_bias else 'RMSNorm'}"
    yield f"--position-embedding-type {'rope' if model.max_positions is None else 'learned_absolute'}"
    yield f"--vocab-size {model.vocab_size}"
    if not model.tied_embeddings:
        yield "--untie-embeddings-and-output-weights"
    if not (model.output_bias or model.mlp_bias):
        yield "--disable-bias-linear"
        if model.qkv_bias:
            yield "--add-qkv-bias"
    if model.qk_norm or model.latent is not None:  # latent attention has norms of its own on queries and keys
        yield "--qk-layernorm"
    if model.latent is None:
        yield f"--kv-channels {model.head_dim}"
    else:
        yield "--multi-latent-attention"
        if model.latent.q_lora_rank is not None:
            yield f"--q-lora-rank {model.latent.q_lora_rank}"
        yield f"--kv-lora-rank {model.latent.kv_lora_rank}"
        yield f"--qk-head-dim {model.latent.qk_nope_head_dim}"
        yield f"--qk-pos-emb-head-dim {model.latent.qk_rope_head_dim}"
        yield f"--v-head-dim {model.latent.v_head_dim}"
    if model.gated_attention:
        yield "--attention-output-gate"
    if model.linear is not None:
        yield "--experimental-attention-variant gated_delta_net"
        yield f"--linear-attention-freq {_pattern(set(model.linear.layers), num_layers)}"
        yield f"--linear-conv-kernel-dim {model.linear.kernel}"
        yield f"--linear-key-head-dim {model.linear.key_head_dim}"
        yield f"--linear-value-head-dim {model.linear.value_head_dim}"
        yield f"--linear-num-key-heads {model.linear.key_heads}"
        yield f"--linear-num-value-heads {model.linear.value_heads}"
    if model.experts is not None:
        yield f"--num-experts {model.experts.num_experts}"
        yield f"--moe-router-topk {model.experts.experts_per_token}"
        yield f"--moe-ffn-hidden-size {model.experts.ffn_hidden_size}"
        if model.experts.shared_ffn_hidden_size:
            yield f"--moe-shared-expert-intermediate-size {model.experts.shared_ffn_hidden_size}"
        if model.experts.shared_gate:
            yield "--moe-shared-expert-gate"
        sparse = set(range(num_layers)).difference(model.experts.dense_layers)
        yield f"--moe-layer-freq {_pattern(sparse, num_layers)}"


def _pattern(layers: set[int], num_layers: int) -> str:
    runs = groupby(int(layer in layers) for layer in range(num_layers))
    return "+".join(f"[{chosen}]*{len(list(run))}" for chosen, run in runs)


def missing(model: PlannedModel) -> Iterator[str]:
    """Yield what of a model the arguments do not say: a reader must, or Megatron cannot."""
    given = ["--norm-epsilon"]
    if model.max_positions is None:
        given.append("--rotary-base (and scaling)")
    if model.experts is not None:
        given.append("how the router scores, scales and groups experts (--moe-router-...)")
    yield f"the plan does not hold all of the {model.model_type} config, pass the rest: {', '.join(given)}"
    if model.model_type in _OTHERWISE:
        yield f"{model.model_type} {_OTHERWISE[model.model_type]}"
    if model.norms_per_layer != 2:
        yield f"{model.model_type} has {model.norms_per_layer} norms a layer, and Megatron's layers have 2"
    if model.latent is not None and model.latent.index_heads:
        yield f"{model.model_type} chooses the tokens to attend to, which is not among these arguments"
    if model.output_bias != model.mlp_bias or (model.mlp_bias and not model.qkv_bias):
        yield "some projections have biases and others none, and Megatron has them in all or in none"


_GEGLU: Final = "has the activation GeGLU, not Megatron's"
_BESIDE: Final = "gives attention and MLP the same input, and Megatron one after the other"
_NORMS_AFTER: Final = "has norms after attention and MLP, and Megatron before them"
_ZERO_CENTRED: Final = "has zero-centred weights of norms (--apply-layernorm-1p)"
_SQUARED: Final = "has the activation squared ReLU (--squared-relu)"
_MULTIPLIES: Final = "multiplies embeddings, residuals and logits"
_OTHERWISE: Final = {
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), _GEGLU),
    **dict.fromkeys(
        ("gemma4_text", "gemma4_unified_text"), f"{_GEGLU}, and other heads in blocks of full attention"
    ),
    "gemma3n_text": f"{_GEGLU}, embeddings of each layer, keys and values that blocks share, AltUp and LAuReL",
    "opt": "has the activation ReLU, not Megatron's",
    "gpt_neo": "attends to a window in every other layer (--window-size, --window-attn-skip-freq)",
    **dict.fromkeys(("gpt_neox", "gptj", "phi", "cohere", "cohere2"), _BESIDE),
    **dict.fromkeys(("olmo2", "olmo3", "flex_olmo", "exaone4"), _NORMS_AFTER),
    "arcee": _SQUARED,
    "nemotron": f"{_SQUARED} and {_ZERO_CENTRED.removeprefix('has ')}",
    **dict.fromkeys(("granite", "granitemoe", "granitemoeshared"), _MULTIPLIES),
    **dict.fromkeys(("granite_swa", "granitemoe_swa"), f"{_MULTIPLIES}, and its attention has windows and sinks"),
    "olmo": "has norms without parameters, not Megatron's",
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _ZERO_CENTRED),
    "mimo_v2_flash": "has other heads in blocks that slide a window, with sinks, and values narrower than keys",
    "step3p5": "has more heads in blocks that slide a window, and a gate of one number a head",
    "persimmon": _SQUARED,
    "mpt": "has layer norms without bias and, in place of positions, a bias on scores that falls with distance",
    **dict.fromkeys(("minimax", "minimax_text_01", "minimax_m1"), "has lightning attention, and Megatron none"),
    "longcat_flash": "has two attentions and MLPs a layer, experts on a shortcut, and some that compute nothing",
    "kimi_linear": "has Kimi Delta Attention in most blocks, and attention without positions in the others",
    "nemotron_h": f"has blocks of Mamba, attention or an MLP alone (--hybrid-layer-pattern), and {_SQUARED}",
    "minimax_m3_vl_text": "chooses in most blocks the tokens to attend to, which is not among these arguments",
    "minimax_m2": "norms queries and keys of all heads together, and Megatron each head's",
}
"""What families of models do that the arguments above do not say."""
