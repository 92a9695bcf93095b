"""Parameters and FLOPs of every family, beside what transformers builds and runs from the same config."""

import json

import pytest

from strata.workload.families import FAMILIES
from strata.workload.huggingface import model_from_keys
from strata.workload.layer_table import layer_table

pytestmark = [pytest.mark.real("torch", "transformers"), pytest.mark.timeout(300)]

GIVEN = {
    "deepseek_v2": {"num_experts_per_tok": 6, "moe_intermediate_size": 1408, "first_k_dense_replace": 1},
    "dots1": {
        "n_routed_experts": 128,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "num_experts_per_tok": 6,
    },
    "gemma4_text": {
        "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 2,
        "enable_moe_block": True, "num_experts": 16, "top_k_experts": 2, "moe_intermediate_size": 704,
    },
    "glm4_moe": {"head_dim": 128, "attention_bias": True, "use_qk_norm": True},
    "glm4v_moe_text": {"head_dim": 128, "attention_bias": True},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 16, "moe_topk": 2},
    "kimi_k2": {},
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention"] * 3 + ["minimax_m3_sparse"] * 57,
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 57,
    },
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "qwen3_moe": {"head_dim": 128},
    "step3p5": {
        "num_sliding_attention_heads": 96, "sliding_window": 512,
        "layer_types": ["full_attention", *["sliding_attention"] * 4] * 9,
    },
}  # fmt: skip
"""What a family's configuration class leaves open, or what its default does not try."""

OFF = {"ernie4_5_moe": 1e-5, "afmoe": 1e-6, "apertus": 1e-7}
"""How far we may be off: transformers counts what corrects a router's balance as a parameter; the activation of
Apertus has two numbers a layer."""

UNUSED = {"longcat_flash": 28 * 256 * 2 * 2048 * 6144}
"""Parameters that transformers holds and never reads: the first products of experts that compute nothing."""

UNMAPPED = {"step3p5": "Step3p7TextModel"}
"""Text models that transformers builds inside others only."""

SMALL = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 32, "vocab_size": 512, "pad_token_id": 0,
}  # fmt: skip
E2B = {
    "num_hidden_layers": 12, "num_kv_shared_layers": 5, "use_double_wide_mlp": True,
    "layer_types": [*["sliding_attention"] * 2, "full_attention"] * 4,
}  # fmt: skip
NANO = {
    "num_hidden_layers": 6, "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 3,
    "sliding_window": 4096, "vocab_size_per_layer_input": 512, "hidden_size_per_layer_input": 16,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
ROUTED = {**EXPERTS, "n_routed_experts": 8, "num_key_value_heads": 8, "first_k_dense_replace": 1}

# Windows are wider than what is run: transformers' plain attention multiplies out what a window leaves out.
GEMMA4 = {
    "global_head_dim": 64, "attention_k_eq_v": True, "num_global_key_value_heads": 2, "sliding_window": 4096,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
MIXTURE4 = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 64}
STEP = {
    **ROUTED, "num_key_value_heads": 4, "share_expert_dim": 64, "num_sliding_attention_heads": 12,
    "sliding_window": 4096, "layer_types": ["full_attention", "sliding_attention"] * 2,
    "mlp_layer_types": ["dense", *["sparse"] * 3],
}  # fmt: skip

MINIMAX3 = {
    "num_local_experts": 8, "num_experts_per_tok": 2,
    "dense_intermediate_size": 384, "shared_intermediate_size": 96,
    "layer_types": ["full_attention", *["minimax_m3_sparse"] * 3], "mlp_layer_types": ["dense", *["sparse"] * 3],
    "index_head_dim": 16, "index_block_size": 64, "rotary_dim": 16,
}  # fmt: skip
LONGCAT = {
    "n_routed_experts": 8, "moe_topk": 2, "zero_expert_num": 0, "expert_ffn_hidden_size": 64, "num_layers": 2,
    "ffn_hidden_size": 384, "num_key_value_heads": 8, "head_dim": 64,
}  # fmt: skip
NEMOTRON = {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], **EXPERTS, "n_routed_experts": 8,
    "moe_shared_expert_intermediate_size": 96, "moe_latent_size": 128, "mamba_num_heads": 8, "mamba_head_dim": 32,
    "n_groups": 8, "ssm_state_size": 16,
}  # fmt: skip


def built(kind, more, *, device):
    import torch
    import transformers
    from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    config = CONFIG_MAPPING[kind](**more)
    config._attn_implementation = config._experts_implementation = "eager"
    with torch.device(device):
        if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
            model = AutoModelForCausalLM.from_config(config).eval()
        else:  # the text model inside one of images has no head of its own
            text_model = getattr(transformers, UNMAPPED[kind]) if kind in UNMAPPED else None
            model = (text_model(config) if text_model else AutoModel.from_config(config)).eval()
            if not getattr(config, "tie_word_embeddings", False):
                model.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
    return model, model_from_keys(json.loads(config.to_json_string(use_diff=False)), path="config.json", name=kind)


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_a_family_has_the_parameters_that_transformers_builds(kind):
    from transformers import CONFIG_MAPPING

    if kind not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {kind}")
    model, spec = built(kind, GIVEN.get(kind, {}), device="meta")
    held = sum(each.numel() for each in model.parameters()) - UNUSED.get(kind, 0)
    assert spec.num_params == pytest.approx(held, rel=OFF.get(kind, 0))


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("cohere", {"use_qk_norm": True}),
        ("phimoe", {"lm_head_bias": True, "attention_bias": True}),
        ("seed_oss", {"attention_out_bias": True}),
        ("starcoder2", {"use_bias": False}),
        ("granite", {"attention_bias": True, "mlp_bias": True}),
        ("glm", {"attention_bias": False}),
        ("gpt_bigcode", {"multi_query": False}),
        ("llama", {"tie_word_embeddings": True}),
        ("stablelm", {"use_qkv_bias": True}),
        ("stablelm", {"use_parallel_residual": True, "qk_layernorm": True, "num_key_value_heads": 8}),
        ("gemma4_text", {"hidden_size_per_layer_input": 0}),
        (
            "gemma4_text",
            {"hidden_size_per_layer_input": 0, "num_global_key_value_heads": 2, "global_head_dim": 128},
        ),
        (
            "gemma4_unified_text",
            {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "attention_bias": True},
        ),
        ("gemma4_text", {**E2B, "attention_bias": True}),
        ("gemma4_text", {**E2B, "attention_k_eq_v": True, "num_global_key_value_heads": 2}),
        (
            "gemma4_text",
            {"num_hidden_layers": 6, "hidden_size_per_layer_input": 64, "vocab_size_per_layer_input": 9},
        ),
        ("gemma4_unified_text", E2B),
        ("gemma3n_text", {"num_hidden_layers": 10, "num_kv_shared_layers": 5, "altup_num_inputs": 1}),
        ("gemma3n_text", {"num_hidden_layers": 7, "num_kv_shared_layers": 0, "intermediate_size": [512] * 7}),
        ("mimo_v2_flash", {"attention_bias": True}),
        ("nemotron_h", {"hybrid_override_pattern": "M-M*ME", "use_conv_bias": False}),
        ("nemotron_h", {"moe_latent_size": 1024}),
        ("persimmon", {"qk_layernorm": False}),
        ("molmo2_text", {"qk_norm_type": "olmo", "attention_bias": True, "additional_vocab_size": 0}),
        ("hunyuan_v1_moe", {"head_dim": 64, "num_experts": 4, "moe_topk": [2, 2]}),
    ],
)
def test_what_a_config_turns_on_or_off_changes_the_parameters_as_in_transformers(kind, more):
    model, spec = built(kind, {"num_hidden_layers": 2, **more}, device="meta")
    assert spec.num_params == sum(each.numel() for each in model.parameters())


@pytest.mark.parametrize("length", [256, 1024])
@pytest.mark.parametrize(
    ("kind", "more", "off"),
    [
        ("llama", {}, 0),
        ("qwen3", {}, 0),
        ("glm4", {}, 0),
        ("cohere2", {}, 0),
        ("olmo2", {}, 0),
        ("exaone4", {}, 0),
        ("ministral3", {}, 0),
        ("apertus", {}, 0),
        ("granite_swa", {"sliding_window": 4096}, 0),
        ("stablelm", {}, 0),
        ("persimmon", {}, 0),
        ("mpt", {"d_model": 256, "n_heads": 8, "n_layers": 4, "intermediate_size": 1024}, 0),
        ("gemma4_unified_text", GEMMA4, 0),
        ("gemma4_text", {**GEMMA4, **MIXTURE4, "hidden_size_per_layer_input": 0}, 0),
        ("gemma4_text", {**GEMMA4, **NANO, "attention_k_eq_v": False, "use_double_wide_mlp": True}, 0),
        ("gemma4_text", {**GEMMA4, **NANO, **MIXTURE4}, 0),
        ("gemma3n_text", {**NANO, "laurel_rank": 16}, 0),
        ("mimo_v2_flash", {**ROUTED, "num_key_value_heads": 2, "v_head_dim": 16, "sliding_window": 4096}, 0),
        ("step3p5", STEP, 0),
        ("minimax_m3_vl_text", MINIMAX3, 0),
        ("minimax", {"num_local_experts": 8, "block_size": 64}, 0),
        ("hunyuan_v1_moe", {"num_experts": 8, "moe_topk": 2}, 0),
        ("afmoe", {**EXPERTS, "num_experts": 8, "num_dense_layers": 1}, 0),
        ("longcat_flash", LONGCAT, 0),
        ("solar_open", {**EXPERTS, "n_routed_experts": 8}, 0),
        ("minimax_m2", {"num_local_experts": 8, "num_experts_per_tok": 2}, 0),
        # Sums over heads of what the index says are no product of ours.
        ("glm_moe_dsa", ROUTED, 0.005),
        # torch counts the convolution, and how states pass from chunk to chunk; a group is a head here, for each
        # head works out the scores of its group there.
        ("nemotron_h", NEMOTRON, 0.003),
        # torch does not count the triangular systems that chunks of linear attention are solved by.
        ("qwen3_5_text", {}, 0.09),
        ("qwen3_next", {**EXPERTS, "num_experts": 8, "shared_expert_intermediate_size": 64}, 0.09),
        ("kimi_linear", {**EXPERTS, "num_local_experts": 8, "linear_num_heads": 8, "linear_head_dim": 32}, 0.09),
    ],
)
def test_a_forward_pass_takes_the_flops_that_torch_counts(kind, more, off, length):
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model, spec = built(kind, {**SMALL, **more}, device="cpu")
    tokens = torch.randint(0, 512, (1, length), generator=torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        out = model(tokens, use_cache=False)
        if "logits" not in out:
            model.lm_head(out.last_hidden_state)
    assert layer_table(spec, length).forward_flops.sum() == pytest.approx(counter.get_total_flops(), rel=off)
