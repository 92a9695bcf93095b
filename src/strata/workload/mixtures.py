"""Which blocks of a model have experts, how many and how wide: each family's config says it in its own keys.

Sources: the configuration and modeling classes of Hugging Face transformers.
"""

from __future__ import annotations

from strata.workload.config_keys import ConfigKeys
from strata.workload.experts import Experts
from strata.workload.families import Family


def experts(keys: ConfigKeys, family: Family, layers: int) -> Experts | None:
    """Return the experts of a config, None for a family without. Notes faults in `keys`."""
    if not family.experts or (family.experts == "gemma4" and not keys.flag("enable_moe_block", default=False)):
        return None
    if family.experts == "nemotron" and "mlp-moe" not in keys.data["layers_block_type"]:
        return None
    if family.experts == "hunyuan":
        keys.same("num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size")
    num_experts = keys.size("num_experts")
    per_token = keys.size("num_experts_per_tok")
    if per_token > num_experts and not keys.faults:
        keys.fault("num_experts_per_tok", f"{per_token} is more than the {num_experts} experts there are")
    if family.experts == "mixtral":
        shared = keys.size("shared_intermediate_size", 0, least=0)
        return Experts(num_experts, per_token, keys.size("intermediate_size"), shared, bias=family.expert_bias)
    if family.experts == "hunyuan":
        width = keys.size("moe_intermediate_size", keys.size("intermediate_size"))
        return Experts(num_experts, per_token, width, width * keys.size("num_shared_expert", 1))
    if family.experts == "llama4":
        width, every = keys.size("intermediate_size"), keys.size("interleave_moe_layer_step", 1)
        sparse = _layer_numbers(keys, "moe_layers") or range(every - 1, layers, every)
        dense = frozenset(range(layers)).difference(sparse)
        return Experts(num_experts, per_token, width, width, dense_layers=dense)
    if family.experts == "longcat":
        return _longcat(keys, num_experts, per_token)
    width = keys.size("moe_intermediate_size")
    if family.experts == "gemma4":  # beside the dense MLP of every block
        return Experts(num_experts, per_token, width, keys.size("intermediate_size"), scales=True)
    if family.experts == "nemotron":
        shared, latent = keys.size("moe_shared_expert_intermediate_size"), keys.size("moe_latent_size", 0, least=0)
        groups = keys.size("n_group", 1), keys.size("topk_group", 1)
        return Experts(num_experts, per_token, width, shared, latent_size=latent, groups=groups)
    if family.experts == "step":
        shared = keys.size("share_expert_dim")
        return Experts(num_experts, per_token, width, shared, dense_layers=_deepseek_dense(keys, layers))
    if family.experts in ("deepseek", "ernie"):
        shared = keys.size("n_shared_experts", 0, least=0) * width
        dense = _ernie_dense(keys, layers) if family.experts == "ernie" else _deepseek_dense(keys, layers)
        groups = keys.size("n_group", 1), keys.size("topk_group", 1)
        return Experts(num_experts, per_token, width, shared, dense_layers=dense, groups=groups)
    shared = keys.size("shared_expert_intermediate_size", 0, least=0)
    every = keys.size("decoder_sparse_step", 1)
    listed = _layer_numbers(keys, "mlp_only_layers")
    dense = frozenset(i for i in range(layers) if i in listed or (i + 1) % every)
    return Experts(num_experts, per_token, width, shared, shared_gate=shared > 0, dense_layers=dense)


def _longcat(keys: ConfigKeys, num_experts: int, per_token: int) -> Experts:
    """Return experts beside a layer's two MLPs; a token is counted with as many as it has in the mean, where the
    router chooses among all evenly, those that compute nothing included (arXiv 2509.01322 §2.1).
    """
    zero = keys.size("zero_expert_num", 0, least=0)
    if keys.flag("router_bias", default=False):
        keys.fault("router_bias", "a router with a bias is not supported")
    width, dense = keys.size("expert_ffn_hidden_size"), keys.size("intermediate_size")
    mean = max(1, round(per_token * num_experts / (num_experts + zero)))
    return Experts(num_experts, mean, width, 2 * dense, zero_experts=zero)


def _deepseek_dense(keys: ConfigKeys, layers: int) -> frozenset[int]:
    if keys.given("mlp_layer_types"):
        listed = keys.each_layer("mlp_layer_types", layers, ("dense", "sparse"))
        return frozenset(i for i, kind in enumerate(listed) if kind == "dense")
    first, every = keys.size("first_k_dense_replace", least=0), keys.size("moe_layer_freq", 1)
    return frozenset(i for i in range(layers) if i < first or i % every)


def _ernie_dense(keys: ConfigKeys, layers: int) -> frozenset[int]:
    first, every = keys.size("moe_layer_start_index", least=0), keys.size("moe_layer_interval", 1)
    last = keys.size("moe_layer_end_index", layers - 1, least=0)
    return frozenset(i for i in range(layers) if (i + 1) % every or not first <= i <= last)


def _layer_numbers(keys: ConfigKeys, key: str) -> list[int]:
    """Return the layers that a key lists, none where it is not there."""
    listed = keys.data.get(key) or []
    if not isinstance(listed, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in listed):
        keys.fault(key, "must be a list of layer numbers")
        return []
    return listed
