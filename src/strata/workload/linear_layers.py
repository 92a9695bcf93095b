"""Which blocks of a model keep a state in place of a cache, and how large: each family's config in its own keys.

Sources: the configuration and modeling classes of Hugging Face transformers.
"""

from __future__ import annotations

from strata.workload.config_keys import ConfigKeys
from strata.workload.families import Linear
from strata.workload.layer_kinds import LONE_KINDS
from strata.workload.linear_attention import GatedDelta, KimiDelta, Lightning, LinearAttention, Mamba2


def linear_attention(
    keys: ConfigKeys, form: Linear, layers: int, *, heads: int, head_dim: int
) -> LinearAttention | None:
    """Return the linear attention of a config, None for a family without. Notes faults in `keys`."""
    if form == "lightning":
        linear = _linear_layers(keys, layers, ["full_attention", "linear_attention"])
        chunk = keys.size("block_size", 256)
        return Lightning(heads, heads, head_dim, head_dim, kernel=1, layers=linear, chunk=chunk)
    if form == "kimi-delta":
        size, count = keys.size("linear_head_dim"), keys.size("linear_num_heads")
        kernel = keys.size("linear_conv_kernel_dim")
        return KimiDelta(count, count, size, size, kernel, _linear_layers(keys, layers, ["linear_attention"]))
    if form == "gated-delta":
        every = keys.size("full_attention_interval", 4)
        return GatedDelta(
            key_heads=keys.size("linear_num_key_heads"),
            value_heads=keys.size("linear_num_value_heads"),
            key_head_dim=keys.size("linear_key_head_dim"),
            value_head_dim=keys.size("linear_value_head_dim"),
            kernel=keys.size("linear_conv_kernel_dim"),
            layers=_linear_layers(keys, layers, ["linear_attention"] * (every - 1) + ["full_attention"]),
        )
    if form == "mamba2":
        kinds = keys.each_layer("layers_block_type", layers, LONE_KINDS)
        return Mamba2(
            key_heads=keys.size("n_groups"),
            value_heads=keys.size("mamba_num_heads"),
            key_head_dim=keys.size("ssm_state_size"),
            value_head_dim=keys.size("mamba_head_dim"),
            kernel=keys.size("conv_kernel"),
            layers=frozenset(layer for layer, kind in enumerate(kinds) if kind == "linear"),
            chunk=keys.size("chunk_size"),
            conv_bias=keys.flag("use_conv_bias", default=True),
        )
    return None


def _linear_layers(keys: ConfigKeys, layers: int, pattern: list[str]) -> frozenset[int]:
    """Return the blocks that are linear: as `layer_types` says, or by the pattern that the family repeats."""
    listed = keys.each_layer("layer_types", layers, ("linear_attention", "full_attention"))
    kinds = listed or [pattern[layer % len(pattern)] for layer in range(layers)]
    return frozenset(layer for layer, kind in enumerate(kinds) if kind == "linear_attention")
