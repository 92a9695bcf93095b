"""Families beside llama: parameters as their cards publish them, from the keys of their config.json."""

from __future__ import annotations

import json

import pytest

from strata.errors import BadFile
from strata.workload.huggingface import model_from_config, model_from_keys
from strata.workload.inference import ModelInfo
from strata.workload.layer_table import layer_table
from strata.workload.model import ModelSpec

CONFIGS = {
    "phi-2": {
        "model_type": "phi", "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "intermediate_size": 10240, "vocab_size": 51200, "tie_word_embeddings": False,
        "hidden_act": "gelu_new", "qk_layernorm": False, "max_position_embeddings": 2048,
    },
    "gpt-j-6b": {
        "model_type": "gptj", "n_embd": 4096, "n_layer": 28, "n_head": 16, "n_inner": None, "n_positions": 2048,
        "rotary_dim": 64, "vocab_size": 50400, "tie_word_embeddings": False,
    },
    "falcon-7b": {
        "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
        "num_kv_heads": 71, "vocab_size": 65024, "multi_query": True, "new_decoder_architecture": False,
        "parallel_attn": True, "bias": False, "alibi": False,
    },
    "falcon-40b": {
        "model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128,
        "num_kv_heads": 8, "vocab_size": 65024, "new_decoder_architecture": True, "parallel_attn": True,
        "bias": False,
    },
    "falcon-rw-1b": {
        "model_type": "falcon", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32,
        "vocab_size": 50304, "multi_query": False, "new_decoder_architecture": False, "parallel_attn": False,
        "bias": True, "alibi": True,
    },
    "bloom-560m": {
        "model_type": "bloom", "n_embed": 1024, "n_layer": 24, "num_attention_heads": 16, "vocab_size": 250880,
    },
    "bloom": {
        "model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "vocab_size": 250880,
    },
    "olmoe-1b-7b": {
        "model_type": "olmoe", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16,
        "num_key_value_heads": 16, "intermediate_size": 1024, "vocab_size": 50304, "num_experts": 64,
        "num_experts_per_tok": 8, "tie_word_embeddings": False,
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "vocab_size": 201088,
        "num_local_experts": 32, "num_experts_per_tok": 4, "attention_bias": True, "sliding_window": 128,
        "tie_word_embeddings": False, "layer_types": ["sliding_attention", "full_attention"] * 12,
    },
    "gpt-oss-120b": {
        "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "vocab_size": 201088,
        "num_local_experts": 128, "num_experts_per_tok": 4, "attention_bias": True, "sliding_window": 128,
    },
    "kimi-k2": {
        "model_type": "kimi_k2", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 64,
        "num_key_value_heads": 64, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 163840,
    },
    "llama-4-scout": {
        "model_type": "llama4",
        "text_config": {
            "model_type": "llama4_text", "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
            "num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1,
            "vocab_size": 202048, "attention_chunk_size": 8192, "no_rope_layers": [],
        },
    },
    "llama-4-maverick": {
        "model_type": "llama4",
        "text_config": {
            "model_type": "llama4_text", "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
            "num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2,
            "vocab_size": 202048, "attention_chunk_size": 8192,
        },
    },
    "gemma-4-31b": {
        "model_type": "gemma4",
        "text_config": {
            "model_type": "gemma4_text", "hidden_size": 5376, "num_hidden_layers": 60, "num_attention_heads": 32,
            "num_key_value_heads": 16, "head_dim": 256, "num_global_key_value_heads": 4, "global_head_dim": 512,
            "attention_k_eq_v": True, "intermediate_size": 21504, "vocab_size": 262144, "sliding_window": 1024,
            "hidden_size_per_layer_input": 0,
        },
    },
    "gemma-4-26b-a4b": {
        "model_type": "gemma4",
        "text_config": {
            "model_type": "gemma4_text", "hidden_size": 2816, "num_hidden_layers": 30, "num_attention_heads": 16,
            "num_key_value_heads": 8, "head_dim": 256, "num_global_key_value_heads": 2, "global_head_dim": 512,
            "attention_k_eq_v": True, "intermediate_size": 2112, "vocab_size": 262144, "sliding_window": 1024,
            "hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 128, "top_k_experts": 8,
            "moe_intermediate_size": 704,
        },
    },
    "mimo-v2-flash": {
        "model_type": "mimo_v2_flash", "hidden_size": 4096, "num_hidden_layers": 48, "num_attention_heads": 64,
        "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "swa_num_attention_heads": 64,
        "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128, "intermediate_size": 16384,
        "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": None, "num_experts_per_tok": 8,
        "hybrid_layer_pattern": [0, *[1, 1, 1, 1, 0, 1] * 7, 1, 1, 1, 1, 0], "moe_layer_freq": [0, *[1] * 47],
        "sliding_window": 128, "sliding_window_size": 128, "vocab_size": 152576,
    },
    "nemotron-3-nano-30b-a3b": {
        "model_type": "nemotron_h", "hidden_size": 2688, "num_hidden_layers": 52, "num_attention_heads": 32,
        "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 131072, "intermediate_size": 1856,
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "n_groups": 8,
        "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "conv_kernel": 4, "chunk_size": 128,
        "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856, "n_shared_experts": 1,
        "moe_shared_expert_intermediate_size": 3712, "mamba_ssm_cache_dtype": "float32",
    },
    "minimax-text-01": {
        "model_type": "minimax_text_01", "hidden_size": 6144, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 9216, "num_local_experts": 32,
        "num_experts_per_tok": 2, "vocab_size": 200064, "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
        "shared_intermediate_size": 0, "sliding_window": None,
    },
    "kimi-linear-48b-a3b": {
        "model_type": "kimi_linear", "hidden_size": 2304, "num_hidden_layers": 27, "num_attention_heads": 32,
        "num_key_value_heads": 32, "head_dim": 72, "intermediate_size": 9216, "moe_intermediate_size": 1024,
        "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1, "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 163840,
        "linear_attn_config": {
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32,
            "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
            "short_conv_kernel_size": 4,
        },
    },
    "longcat-flash": {
        "model_type": "longcat_flash", "num_layers": 28, "hidden_size": 6144, "num_attention_heads": 64,
        "ffn_hidden_size": 12288, "expert_ffn_hidden_size": 2048, "n_routed_experts": 512, "zero_expert_num": 256,
        "moe_topk": 12, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "vocab_size": 131072,
    },
    "step-3.5-flash": {
        "model_type": "step3p5", "hidden_size": 4096, "num_hidden_layers": 45, "num_attention_heads": 64,
        "num_attention_groups": 8, "head_dim": 128, "intermediate_size": 11264, "moe_num_experts": 288,
        "moe_top_k": 8, "moe_intermediate_size": 1280, "share_expert_dim": 1280, "vocab_size": 128896,
        "moe_layers_enum": ",".join(map(str, range(3, 45))), "sliding_window": 512, "num_nextn_predict_layers": 3,
        "layer_types": ["full_attention", *["sliding_attention"] * 3] * 12,
        "attention_other_setting": {"num_attention_heads": 96, "num_attention_groups": 8, "head_dim": 128},
    },
}  # fmt: skip


def spec(name: str) -> ModelSpec:
    return model_from_keys(CONFIGS[name], path="config.json", name=name)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("phi-2", 2_779_683_840),
        ("gpt-j-6b", 6_050_882_784),
        ("falcon-7b", 6_921_720_704),
        ("falcon-40b", 41_303_293_952),
        ("falcon-rw-1b", 1_311_625_216),
        ("bloom-560m", 559_214_592),
        ("bloom", 176_247_271_424),
        ("olmoe-1b-7b", 6_919_161_856),
        ("gpt-oss-20b", 20_914_757_184),
        ("gpt-oss-120b", 116_829_156_672),
    ],
)
def test_a_model_has_the_parameters_of_its_checkpoint(name, params):
    assert spec(name).num_params == params


@pytest.mark.parametrize(
    ("name", "params", "active"),
    [
        # Cards round, and Llama 4's totals have a vision tower of less than a billion in them.
        ("gpt-oss-20b", 20.9e9, 3.61e9),
        ("gpt-oss-120b", 116.8e9, 5.13e9),
        ("olmoe-1b-7b", 6.9e9, 1.3e9),
        ("kimi-k2", 1.026e12, 32.6e9),
        ("llama-4-scout", 108e9, 17e9),
        ("llama-4-maverick", 400e9, 17e9),
        ("gemma-4-31b", 30.7e9, 30.7e9),
        ("gemma-4-26b-a4b", 25.2e9, 3.8e9),
        ("mimo-v2-flash", 309e9, 15e9),
        ("step-3.5-flash", 196e9, 11e9),
        ("minimax-text-01", 456e9, 45.9e9),
        ("kimi-linear-48b-a3b", 49.1e9, 3e9),
        ("nemotron-3-nano-30b-a3b", 31.6e9, 3.6e9),
        ("longcat-flash", 560e9, 27e9),
    ],
)
def test_a_mixture_has_the_parameters_of_its_card(name, params, active):
    found = spec(name)
    assert found.num_params == pytest.approx(params, rel=0.005)
    # Some cards count the embedding among the active parameters, some do not, and some not the head either.
    table = found.vocab_size * found.hidden_size
    assert found.num_active_params - 2 * table * 1.02 <= active <= found.num_active_params * 1.02


def test_mistral_looks_back_at_its_window_only():
    """Mistral-7B over 32k tokens: 16 GFLOP a token; all of the sequence would make it 31."""
    keys = {
        "model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000,
    }  # fmt: skip
    whole = model_from_keys({**keys, "sliding_window": None}, path="", name="v0.2")
    sliding = model_from_keys({**keys, "sliding_window": 4096}, path="", name="v0.1")
    assert layer_table(whole, 32768).forward_flops.sum() / 32768 == pytest.approx(31.4e9, rel=0.01)
    assert layer_table(sliding, 32768).forward_flops.sum() / 32768 == pytest.approx(16.4e9, rel=0.01)
    assert (layer_table(sliding, 4096).forward_flops == layer_table(whole, 4096).forward_flops).all()


TINY = {
    "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 128, "vocab_size": 1000, "sliding_window": 16,
}  # fmt: skip
W = 16


@pytest.mark.parametrize(
    ("keys", "windows"),
    [
        ({"model_type": "llama"}, ()),
        ({"model_type": "mistral"}, (W,) * 6),
        ({"model_type": "phi3"}, (W,) * 6),
        ({"model_type": "qwen2"}, ()),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 4}, (0, 0, 0, 0, W, W)),
        ({"model_type": "gemma2"}, (W, 0, W, 0, W, 0)),
        ({"model_type": "gemma3_text"}, (W, W, W, W, W, 0)),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 2}, (W, 0, W, 0, W, 0)),
        ({"model_type": "gemma3_text", "layer_types": ["full_attention"] * 5 + ["sliding_attention"]},
         (0, 0, 0, 0, 0, W)),
        ({"model_type": "mistral", "layer_types": ["full_attention"] * 6}, ()),
        ({"model_type": "mistral", "sliding_window": None}, ()),
        ({"model_type": "cohere2", "tie_word_embeddings": True}, (W, W, W, 0, W, W)),
        ({"model_type": "exaone4", "sliding_window_pattern": "LLG"}, (W, W, 0, W, W, 0)),
        ({"model_type": "granite_swa"}, (0, W, W, W, 0, W)),
    ],
)  # fmt: skip
def test_a_config_or_its_family_says_which_blocks_slide(keys, windows):
    assert model_from_keys({**TINY, **keys}, path="", name="tiny").windows == windows


def test_llama_4_looks_at_everything_in_every_fourth_block():
    assert spec("llama-4-scout").windows == (8192, 8192, 8192, 0) * 12


def test_blocks_of_other_heads_cache_what_these_have():
    """Gemma 4 in full attention: 4 heads of 512 in place of 16 of 256, keys and values both cached."""
    gemma = spec("gemma-4-31b")
    assert gemma.windows == ((1024,) * 5 + (0,)) * 10
    assert gemma.kv_bytes_per_token(2) == 2 * 2 * (50 * 16 * 256 + 10 * 4 * 512)
    cached = ModelInfo.of(gemma).kv_bytes(10_000)
    assert cached.sum() == 2 * 2 * (50 * 16 * 256 * 1024 + 10 * 4 * 512 * 10_000)


def test_a_value_may_be_narrower_than_a_key_and_a_window_have_more_of_both():
    mimo = spec("mimo-v2-flash")
    assert mimo.windows[:7] == (0, 129, 129, 129, 129, 0, 129)
    assert mimo.kv_bytes_per_token(2) == 2 * (9 * 4 + 39 * 8) * (192 + 128)


def test_lightning_attention_costs_its_chunk_and_its_state_at_any_length():
    lightning = spec("minimax-text-01")
    assert list(lightning.kinds[1:9]) == ["linear-moe"] * 7 + ["moe"]
    assert lightning.linear.window == 256 + 128
    assert lightning.state_bytes(2) == 2 * 70 * 64 * 128 * 128
    assert lightning.kv_bytes_per_token(2) == 2 * 10 * 2 * 8 * 128


def test_kimi_linear_keeps_states_and_latents():
    kimi = spec("kimi-linear-48b-a3b")
    assert [layer for layer in range(27) if layer not in kimi.linear.layers] == [3, 7, 11, 15, 19, 23, 26]
    assert kimi.kinds[1:5] == ("linear-dense", "linear-moe", "linear-moe", "moe")
    assert kimi.state_bytes(2) == 2 * 20 * (32 * 128 * 128 + 3 * 3 * 32 * 128)
    assert kimi.kv_bytes_per_token(2) == 2 * 7 * (512 + 64)
    exchanged = layer_table(kimi, 4096).exchanges
    assert exchanged.recomputed_bytes[2] < exchanged.recomputed_bytes[4]  # it has no latents to expand


def test_a_layer_may_have_two_attentions_and_experts_that_compute_nothing():
    longcat = spec("longcat-flash")
    assert longcat.kinds[1:-1] == ("double-moe",) * 28
    assert longcat.kv_bytes_per_token(2) == 2 * 28 * 2 * (512 + 64)
    assert (longcat.experts.num_experts, longcat.experts.experts_per_token) == (512, 8)  # 12 of 512 + 256
    info = ModelInfo.of(longcat)
    assert info.prefill_flops_per_token_per_context[0] == 2 * 2 * 64 * (128 + 64 + 128)
    assert [note.partition(" ")[0] for note in longcat.notes] == ["a", "experts"]


def test_blocks_may_be_attention_or_an_mlp_alone():
    nemotron = spec("nemotron-3-nano-30b-a3b")
    assert nemotron.kinds[1:8] == ("linear", "mlp-moe", "linear", "mlp-moe", "linear", "attention", "mlp-moe")
    assert nemotron.kv_bytes_per_token(2) == 2 * 6 * 2 * 2 * 128
    assert nemotron.state_bytes(2) == 2 * 23 * (64 * 64 * 128 + 3 * (64 * 64 + 2 * 8 * 128))
    assert "keeps it in fp32" in nemotron.notes[0]
    table = layer_table(nemotron, 4096)
    assert table.exchanges.attention_flops[2] == 0
    assert table.exchanges.kv_bytes[2] == 0
    # In bf16: the norm's input and output, what two products read, and what the scan keeps of a token.
    mamba, hidden, values, convolved = table.activation_bytes[1], 2688, 4096, 4096 + 2 * 1024
    assert mamba == 4096 * (2 * (2 * hidden + 2 * convolved + 2 * values + 64) + 4 * 2 * 64)
    cached = ModelInfo.of(nemotron).kv_bytes(10**6).sum()
    assert cached == pytest.approx(10**6 * nemotron.kv_bytes_per_token(2) + nemotron.state_bytes(2))


def test_an_index_caches_a_key_of_its_own():
    keys = {
        **TINY, "model_type": "minimax_m3_vl_text", "num_local_experts": 4, "num_experts_per_tok": 2,
        "dense_intermediate_size": 256, "shared_intermediate_size": 64, "moe_layer_freq": [0, 1, 1, 1, 1, 1],
        "sparse_attention_config": {"sparse_attention_freq": [0, 0, 1, 1, 1, 1], "sparse_num_index_heads": 2,
                                    "sparse_index_dim": 16, "sparse_topk_blocks": 16},
    }  # fmt: skip
    found = model_from_keys(keys, path="", name="tiny")
    assert found.kinds[1:-1] == ("dense", "moe", *["indexed-moe"] * 4)
    assert found.kv_bytes_per_token(2) == 2 * (6 * 2 * 2 * 8 + 4 * 16)
    assert found.attention_flops("indexed-moe") - found.attention_flops("moe") == 2 * 2 * 16
    assert found.notes == ("attention is counted to all tokens, not to the 16 blocks that are chosen",)


def test_ranks_divide_the_heads_of_every_block():
    step = spec("step-3.5-flash")
    assert [step.heads(kind).num_heads for kind in ("dense", "sliding-moe")] == [64, 96]
    assert step.divided_heads == 32


LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
          "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4}  # fmt: skip
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model_type": "mistral", "sliding_window": "wide"}, "sliding_window: 'wide' is not a whole number"),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "layer_types: must be a list of one entry"),
        ({"model_type": "gemma2", "layer_types": ["mean"] * 6}, "layer_types: 'mean' is none of sliding_att"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "max_window_layers: required key is missing"),
        (
            {"model_type": "hunyuan_v1_moe", "num_experts": 16, "moe_topk": [2, 2, 2, 2, 2, 1]},
            "moe_topk: says other numbers for other layers",
        ),
        (
            {"model_type": "hunyuan_v1_moe", "num_experts": 16, "moe_topk": ["two"] * 6},
            "moe_topk: 'two' is not a whole number",
        ),
        ({"model_type": "phi", "qk_layernorm": True}, "qk_layernorm: normed queries and keys of Phi are not"),
        ({"model_type": "xglm", "num_key_value_heads": None}, "model_type 'xglm' is not supported"),
        ({"model_type": "gemma4_text"}, "hidden_size_per_layer_input: required key is missing"),
        ({"model_type": "gemma4_unified_text", "use_bidirectional_attention": "all"}, "attention to later tokens"),
        ({"model_type": "gemma4_unified_text", "per_layer_config": {"05": {"head_dim": 9}, "3": {"head_dim": 8}}},
         "per_layer_config: must give each layer of full attention the same"),
        ({"model_type": "gemma4_unified_text", "per_layer_config": {"05": {"head_dim": "wide"}}},
         "per_layer_config: must give each layer of full attention the same"),
        ({"model_type": "step3p5", **ROUTED, "share_expert_dim": 8, "moe_layers_enum": "3,x",
          "layer_types": ["sliding_attention"] * 6}, "moe_layers_enum: must be a list of layer numbers"),
        ({"model_type": "step3p5", **ROUTED, "share_expert_dim": 8, "layer_types": ["sliding_attention"] * 6,
          "attention_other_setting": {"head_dim": 64}}, "attention_other_setting: other key-value heads or head"),
        ({"model_type": "step3p5", **ROUTED, "share_expert_dim": 8, "layer_types": ["sliding_attention"] * 6,
          "attention_other_setting": {"num_attention_heads": "all"}}, "num_attention_heads: 'all' is not a whole"),
        ({"model_type": "kimi_linear", **ROUTED, "linear_attn_config": [1]}, "linear_attn_config: must be a JSON"),
        ({"model_type": "nemotron_h"}, "layers_block_type: must be a list of full_attention, attention, linear"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M*X"}, "layers_block_type: must be a list of"),
        ({"model_type": "nemotron_h", "layers_block_type": ["mlp"], "mlp_bias": True}, "biases are not supported"),
        ({"model_type": "minimax_m3_vl_text", "sparse_attention_config": 1}, "sparse_attention_config: must be a"),
        ({"model_type": "molmo2_text", "qk_norm_type": "llama"}, "qk_norm_type: only norms of queries and keys"),
        ({"model_type": "molmo2_text", "tie_word_embeddings": True}, "the embedding has rows that the head"),
        ({"model_type": "gemma4_unified_text", "sliding_window": None}, "sliding_window: required key is missing"),
        ({"model_type": "mimo_v2_flash", **ROUTED, "sliding_window": None}, "sliding_window: required key is"),
        ({"model_type": "step3p5", **ROUTED, "share_expert_dim": 8, "sliding_window": None,
          "layer_types": ["sliding_attention"] * 6}, "sliding_window: required key is missing"),
        ({"model_type": "mpt", "attn_config": {"qk_ln": True}}, "attn_config.qk_ln: True is not supported"),
        ({"model_type": "mpt", "expansion_ratio": 2}, "expansion_ratio: 2 is not supported"),
        ({"model_type": "qwen3_5_text", "head_dim": 32, "layer_types": ["linear_attention"] * 5, **LINEAR},
         "layer_types: must be a list of linear_attention or full_attention for each of 6 layers"),
        ({"model_type": "glm4_moe", "mlp_layer_types": ["dense", "thin"] * 3, **ROUTED},
         "mlp_layer_types: must be a list of dense or sparse for each of 6 layers"),
        ({"model_type": "gemma9_text", "num_kv_shared_layers": 2}, "'gemma9_text' is not supported, and this key"),
        ({"model_type": "longcat_flash"}, "num_hidden_layers: required key is missing (also read as num_layers"),
        ({"model_type": "longcat_flash", "router_bias": True, "num_layers": 2, **ROUTED},
         "router_bias: a router with a bias is not supported"),
        ({"model_type": "jetmoe", "num_experts": 8}, "model_type 'jetmoe' is not supported, and this key"),
    ],
)  # fmt: skip
def test_what_a_config_gets_wrong_is_said_with_its_place(tmp_path, keys, said):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**TINY, **keys}))
    with pytest.raises(BadFile) as caught:
        model_from_config(file)
    assert said in str(caught.value)


def test_a_size_that_gemma_4_must_state_is_missed_once(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**TINY, "model_type": "gemma4_text"}))
    with pytest.raises(BadFile) as caught:
        model_from_config(file)
    assert str(caught.value).count("hidden_size_per_layer_input") == 1
