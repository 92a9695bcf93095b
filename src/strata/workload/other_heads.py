"""Blocks whose heads are not those of the model's other blocks, as each family's config says it.

Sources: the configuration and modeling classes of Hugging Face transformers (gemma4, mimo_v2_flash,
step3p7, minimax_m3_vl).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from strata.workload.config_keys import ConfigKeys
from strata.workload.heads import Heads, OtherHeads


def other_heads(
    keys: ConfigKeys, model_type: object, base: Heads, *, windows: tuple[int, ...], layers: int
) -> OtherHeads | None:
    """Return the heads of the blocks that have others than `base`, None where there are none."""
    sliding = frozenset(layer for layer, window in enumerate(windows) if window)
    full = frozenset(range(len(windows))) - sliding
    if model_type in ("gemma4_text", "gemma4_unified_text") and full:
        return OtherHeads("full", full, _gemma4(keys, base, full))
    if model_type == "mimo_v2_flash" and sliding:
        return OtherHeads("sliding", sliding, _mimo(keys, base))
    if model_type == "step3p5" and sliding:
        return OtherHeads("sliding", sliding, replace(base, num_heads=_step(keys, base)))
    if model_type == "minimax_m3_vl_text":
        kinds = keys.each_layer("layer_types", layers, ("full_attention", "minimax_m3_sparse"))
        chosen = frozenset(layer for layer, kind in enumerate(kinds) if kind == "minimax_m3_sparse")
        if not chosen:
            return None
        heads, size = keys.size("index_n_heads"), keys.size("index_head_dim")
        return OtherHeads("indexed", chosen, replace(base, index_heads=heads, index_head_dim=size))
    return None


def _gemma4(keys: ConfigKeys, base: Heads, full: frozenset[int]) -> Heads:
    has_values = not keys.flag("attention_k_eq_v", default=False)
    given = _of_layers(keys, full)
    if given is None:
        given = {"head_dim": keys.size("global_head_dim", 512)}
        if not has_values and keys.data.get("num_global_key_value_heads") is not None:
            given["num_key_value_heads"] = keys.size("num_global_key_value_heads")
    head_dim = given.get("head_dim", base.head_dim)
    kv_heads = given.get("num_key_value_heads", base.num_kv_heads)
    return Heads(base.num_heads, kv_heads, head_dim, head_dim, has_values, qk_norm_params=2 * head_dim)


def _of_layers(keys: ConfigKeys, layers: frozenset[int]) -> dict[str, int] | None:
    """Return what `per_layer_config` says of these layers, all the same; None where it is not there."""
    written = keys.data.get("per_layer_config")
    if written is None:
        return None
    ours = [written[key] for key in written] if isinstance(written, Mapping) else []
    numbers = {int(key) for key in written if str(key).isdecimal()} if isinstance(written, Mapping) else set()
    sizes: dict[str, Any] = dict(ours[0]) if ours and isinstance(ours[0], Mapping) else {}
    known = sizes.keys() <= {"head_dim", "num_key_value_heads"}
    if (
        numbers != layers
        or any(each != sizes for each in ours)
        or not known
        or not all(map(_is_size, sizes.values()))
    ):
        keys.fault(
            "per_layer_config", "must give each layer of full attention the same head_dim and key-value heads"
        )
        return {}
    return sizes


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _mimo(keys: ConfigKeys, base: Heads) -> Heads:
    return Heads(
        num_heads=keys.size("swa_num_attention_heads", base.num_heads),
        num_kv_heads=keys.size("swa_num_key_value_heads", 2 * base.num_kv_heads),
        head_dim=keys.size("swa_head_dim", base.head_dim),
        value_head_dim=keys.size("swa_v_head_dim", base.value_head_dim),
        sinks=keys.flag("add_swa_attention_sink_bias", default=True),
    )


def _step(keys: ConfigKeys, base: Heads) -> int:
    if keys.data.get("num_sliding_attention_heads") is not None:
        return keys.size("num_sliding_attention_heads")
    setting = keys.data.get("attention_other_setting") or {}
    if not isinstance(setting, Mapping):
        keys.fault("attention_other_setting", "must be a JSON object")
        return base.num_heads
    same = {"num_attention_groups": base.num_kv_heads, "head_dim": base.head_dim}
    if any(setting.get(key, size) != size for key, size in same.items()):
        keys.fault("attention_other_setting", "other key-value heads or head sizes are not supported")
    heads = setting.get("num_attention_heads", base.num_heads)
    if not _is_size(heads):
        keys.fault("attention_other_setting", f"num_attention_heads: {heads!r} is not a whole number from 1 on")
        return base.num_heads
    return int(heads)
