"""Configs that say in keys of their own what others say in common keys: the same in the common keys.

Sources: the configuration classes of Hugging Face transformers, and the configs that came before them, which these
classes read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from strata.workload.config_keys import MAX_LAYERS, ConfigKeys


def in_common_keys(keys: ConfigKeys, model_type: object) -> None:
    """Put what a family says in its own keys into the common ones, where these do not say it."""
    form = _FORMS.get(model_type) if isinstance(model_type, str) else None
    if form is not None:
        keys.data = {**keys.data, **form(keys)}


def _gpt_bigcode(keys: ConfigKeys) -> Mapping[str, Any]:
    return {"num_key_value_heads": 1} if keys.flag("multi_query", default=True) else {}


def _solar_open(keys: ConfigKeys) -> Mapping[str, Any]:
    """It has no dense block, and no key that says so."""
    return {"first_k_dense_replace": keys.data.get("first_k_dense_replace", 0)}


def _gemma4(keys: ConfigKeys) -> Mapping[str, Any]:
    """The last block takes all tokens, whatever is said of it; the unified models have no embeddings of layers."""
    common: dict[str, Any] = {"num_kv_shared_layers": keys.data.get("num_kv_shared_layers", 0)}
    if keys.data.get("model_type") != "gemma4_text":
        common["hidden_size_per_layer_input"] = 0
    if all(keys.flag(key, default=False) for key in ("use_double_wide_mlp", "enable_moe_block")):
        keys.fault("use_double_wide_mlp", "beside experts is not supported")
    if keys.data.get("use_bidirectional_attention") == "all":
        keys.fault("use_bidirectional_attention", "attention to later tokens is not supported")
    listed, layers = keys.data.get("layer_types"), keys.size("num_hidden_layers")
    if not isinstance(listed, list):
        listed = [_sliding((layer + 1) % 6 != 0) for layer in range(min(layers, MAX_LAYERS))]
    return {**common, "layer_types": [*listed[:-1], "full_attention"], **_window(keys)}


def _gemma3n(keys: ConfigKeys) -> Mapping[str, Any]:
    """Widths are listed for each layer; every fifth block takes all tokens."""
    keys.same("intermediate_size")
    layers = range(keys.size("num_hidden_layers", most=MAX_LAYERS))
    listed = keys.data.get("layer_types") or [_sliding((layer + 1) % 5 != 0) for layer in layers]
    width = keys.data.get("intermediate_size")
    return {"intermediate_size": width, "use_double_wide_mlp": False, "layer_types": listed, **_window(keys)}


def _mimo(keys: ConfigKeys) -> Mapping[str, Any]:
    layers = range(min(keys.size("num_hidden_layers"), MAX_LAYERS))
    pattern, experts = keys.data.get("hybrid_layer_pattern"), keys.data.get("moe_layer_freq")
    common: dict[str, Any] = {}
    if not keys.data.get("layer_types"):
        slides = pattern if isinstance(pattern, list) else [layer > 0 and (layer + 1) % 6 != 0 for layer in layers]
        common["layer_types"] = [_sliding(does) for does in slides]
    if not keys.data.get("mlp_layer_types"):
        sparse = experts if isinstance(experts, list) else [layer > 0 for layer in layers]
        common["mlp_layer_types"] = ["sparse" if has else "dense" for has in sparse]
    if keys.data.get("sliding_window_size") is not None:  # it does not count the token that looks back
        return {**common, "sliding_window": keys.size("sliding_window_size") + 1, "use_sliding_window": True}
    return {**common, **_window(keys)}


def _step(keys: ConfigKeys) -> Mapping[str, Any]:
    """Lists of layers may go on with those that predict further tokens, which are not counted."""
    layers = keys.size("num_hidden_layers", most=MAX_LAYERS)
    common = _window(keys) if "sliding_attention" in str(keys.data.get("layer_types")) else {}
    for key in ("layer_types", "mlp_layer_types"):
        listed = keys.data.get(key)
        if isinstance(listed, list):
            common[key] = listed[:layers]
    if "mlp_layer_types" not in common:
        given = keys.data.get("moe_layers_enum")
        sparse = given.split(",") if isinstance(given, str) else range(3, layers) if given is None else given
        if not isinstance(sparse, list | range) or not all(str(layer).strip().isdecimal() for layer in sparse):
            keys.fault("moe_layers_enum", "must be a list of layer numbers")
            sparse = []
        numbers = {int(layer) for layer in sparse}
        common["mlp_layer_types"] = ["sparse" if layer in numbers else "dense" for layer in range(layers)]
    return common


def _kimi_linear(keys: ConfigKeys) -> Mapping[str, Any]:
    """Published configs list, from 1 on, the layers of each kind beside the sizes of the linear heads."""
    layers = range(keys.size("num_hidden_layers", most=MAX_LAYERS))
    given = keys.data.get("linear_attn_config") or {}
    if not isinstance(given, Mapping):
        keys.fault("linear_attn_config", "must be a JSON object")
        return {}
    names = {"head_dim": "linear_head_dim", "num_heads": "linear_num_heads",
             "short_conv_kernel_size": "linear_conv_kernel_dim"}  # fmt: skip
    common = {name: given[own] for own, name in names.items() if own in given}
    if not keys.data.get("layer_types"):
        full = given.get("full_attn_layers")
        if full and not isinstance(full, list):
            keys.fault("linear_attn_config.full_attn_layers", "must be a list of layer numbers")
            full = []
        attending = {number - 1 for number in full if isinstance(number, int)} if full else set(layers[4::4])
        common["layer_types"] = ["full_attention" if i in attending else "linear_attention" for i in layers]
    if not keys.data.get("mlp_layer_types"):
        common["first_k_dense_replace"] = keys.data.get("first_k_dense_replace", 1)
    if "max_position_embeddings" not in keys.data:
        common["max_position_embeddings"] = keys.data.get("model_max_length")
    return common


def _longcat(keys: ConfigKeys) -> Mapping[str, Any]:
    """A layer has two attentions, which transformers counts as two hidden layers."""
    return {"num_hidden_layers": keys.data.get("num_layers")}


def _minimax(keys: ConfigKeys) -> Mapping[str, Any]:
    """The first configs say 0 for linear attention."""
    kinds = keys.data.get("attn_type_list")
    if keys.data.get("layer_types") or not isinstance(kinds, list):
        return {}
    return {"layer_types": ["full_attention" if kind else "linear_attention" for kind in kinds]}


def _nemotron_h(keys: ConfigKeys) -> Mapping[str, Any]:
    """Each block is attention, Mamba-2, an MLP or experts alone, by a word in a list or a letter of a pattern."""
    for key in ("use_bias", "attention_bias", "mlp_bias", "mamba_proj_bias"):
        if keys.data.get(key):
            keys.fault(key, "biases are not supported")
    older = {"n_groups": "mamba_n_groups", "conv_kernel": "mamba_d_conv", "use_conv_bias": "mamba_conv_bias",
             "chunk_size": "mamba_chunk_size"}  # fmt: skip
    common = {name: keys.data[own] for name, own in older.items() if keys.data.get(own) is not None}
    if keys.data.get("head_dim") is None:
        common["head_dim"] = keys.data.get("attention_head_dim")
    listed = keys.data.get("layers_block_type") or keys.data.get("hybrid_override_pattern")
    kinds = [_LONE.get(str(each), "") for each in listed] if isinstance(listed, str | list) else []
    if not kinds or "" in kinds:
        keys.fault("layers_block_type", f"must be a list of {', '.join(key for key in _LONE if len(key) > 1)}")
        kinds = ["attention"]
    return {**common, "layers_block_type": kinds, "num_hidden_layers": len(kinds)}


_LONE: Final = {
    "full_attention": "attention", "attention": "attention", "*": "attention",
    "linear_attention": "linear", "mamba": "linear", "M": "linear",
    "mlp": "mlp-dense", "-": "mlp-dense", "moe": "mlp-moe", "E": "mlp-moe",
}  # fmt: skip


def _minimax_m3(keys: ConfigKeys) -> Mapping[str, Any]:
    """`intermediate_size` is an expert's; sizes of the index may stand apart, with a flag a layer."""
    layers, apart = keys.size("num_hidden_layers", most=MAX_LAYERS), keys.data.get("sparse_attention_config") or {}
    if not isinstance(apart, Mapping):
        keys.fault("sparse_attention_config", "must be a JSON object")
        apart = {}
    names = {"sparse_num_index_heads": "index_n_heads", "sparse_index_dim": "index_head_dim",
             "sparse_topk_blocks": "index_topk_blocks"}  # fmt: skip
    common = {name: apart[own] for own, name in names.items() if own in apart}
    chosen, sparse = apart.get("sparse_attention_freq"), keys.data.get("moe_layer_freq")
    if not keys.data.get("layer_types"):
        flags = chosen if isinstance(chosen, list) else [0] * layers
        common["layer_types"] = ["minimax_m3_sparse" if flag else "full_attention" for flag in flags]
    if not keys.data.get("mlp_layer_types"):
        flags = sparse if isinstance(sparse, list) else [1] * layers
        common["mlp_layer_types"] = ["sparse" if flag else "dense" for flag in flags]
    common["moe_intermediate_size"] = keys.data.get("intermediate_size")
    common["sliding_window"] = None  # no block has
    common["intermediate_size"] = keys.data.get("dense_intermediate_size")
    common["share_expert_dim"] = keys.data.get("shared_intermediate_size")
    return common


def _mpt(keys: ConfigKeys) -> Mapping[str, Any]:
    """What transformers runs is what all published ones are: no biases, ALiBi, four times as wide an MLP."""
    attention = keys.data.get("attn_config") or {}
    if not isinstance(attention, Mapping):
        keys.fault("attn_config", "must be a JSON object")
        attention = {}
    usual = {"attn_type": "multihead_attention", "qk_ln": False, "alibi": True}
    if odd := next((key for key, value in usual.items() if attention.get(key, value) != value), None):
        keys.fault(f"attn_config.{odd}", f"{attention[odd]!r} is not supported")
    for key, value in {"no_bias": True, "expansion_ratio": 4}.items():
        if keys.data.get(key, value) != value:
            keys.fault(key, f"{keys.data[key]!r} is not supported")
    return {"max_position_embeddings": keys.data.get("max_seq_len")}


def _window(keys: ConfigKeys) -> dict[str, Any]:
    """Return the window, which must be there where the heads of a block depend on whether it slides."""
    return {"sliding_window": keys.size("sliding_window"), "use_sliding_window": True}


def _sliding(does: object) -> str:
    return "sliding_attention" if does else "full_attention"


_FORMS: Final[Mapping[str, Callable[[ConfigKeys], Mapping[str, Any]]]] = {
    "gpt_bigcode": _gpt_bigcode,
    "solar_open": _solar_open,
    "gemma3n_text": _gemma3n,
    "gemma4_text": _gemma4,
    "gemma4_unified_text": _gemma4,
    "mimo_v2_flash": _mimo,
    "step3p5": _step,
    "mpt": _mpt,
    "minimax_m3_vl_text": _minimax_m3,
    "nemotron_h": _nemotron_h,
    "longcat_flash": _longcat,
    "kimi_linear": _kimi_linear,
    "minimax": _minimax,
    "minimax_text_01": _minimax,
    "minimax_m1": _minimax,
}
