from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strata.decision import Trust
from strata.errors import BadFile, UsageError
from strata.workload.huggingface import model, model_from_config, model_names

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "vocab_size": 1000,
}
MIXTURE = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
QWEN_MOE = {**LLAMA, **MIXTURE, "model_type": "qwen3_moe", "head_dim": 8, "num_experts": 8}
DEEPSEEK = {
    **LLAMA,
    **MIXTURE,
    "model_type": "deepseek_v3",
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": None,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}


@pytest.fixture
def config(tmp_path):
    def write(data: Any, **changes: Any) -> Path:
        path = tmp_path / "tiny" / "config.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**data, **changes} if isinstance(data, dict) else data))
        return path

    return write


def without(data: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in keys}


def faults(path: Path) -> list[str]:
    with pytest.raises(BadFile) as caught:
        model_from_config(path)
    return [f"{fault.where}: {fault.message}" for fault in caught.value.faults]


def test_a_config_is_read_from_its_file_or_its_folder(config):
    path = config(LLAMA)
    spec = model_from_config(path)
    assert spec == model_from_config(path.parent) == model("tiny/config.json", base=path.parent.parent)
    assert (spec.name, spec.hidden_size, spec.num_kv_heads, spec.head_dim) == ("tiny", 64, 2, 8)
    assert not spec.tied_embeddings
    assert spec.trust is Trust.ANALYTIC


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(lambda text: {"model_type": "some_vl", "text_config": text}, id="text_config"),
        pytest.param(lambda text: {"model_type": "some_vl", "llm_config": text, "vision_config": {}}, id="llm"),
        pytest.param(lambda text: {"model_type": "some_vl", "language_config": text}, id="language"),
        pytest.param(lambda text: {"thinker_config": {"text_config": text}}, id="thinker"),
        pytest.param(lambda text: {"model_type": "some_audio", "decoder": text}, id="decoder"),
    ],
)
def test_a_nested_text_model_is_unwrapped(config, wrap):
    nested = model_from_config(config(wrap(LLAMA)))
    assert nested.num_params == model_from_config(config(LLAMA)).num_params
    assert nested.notes == ("the text model alone: vision and sound are not counted",)


def test_an_outer_tie_counts_inside(config):
    assert model_from_config(config({"tie_word_embeddings": True, "text_config": LLAMA})).tied_embeddings


def test_old_names_of_keys_are_read(config):
    old = {"model_type": "gpt2", "n_embd": 64, "n_layer": 4, "n_head": 8, "vocab_size": 1000, "n_positions": 128}
    spec = model_from_config(config(old))
    assert (spec.intermediate_size, spec.num_positions, spec.tied_embeddings) == (256, 128, True)
    assert model_from_config(config(old, n_inner=None)) == spec
    assert model_from_config(config(old, n_inner=100)).intermediate_size == 100


def test_llama_without_key_value_heads_is_multi_head(config):
    assert model_from_config(config(without(LLAMA, "num_key_value_heads"))).attention == "mha"


def test_quantisation_changes_nothing(config):
    plain = model_from_config(config(LLAMA))
    assert model_from_config(config(LLAMA, quantization_config={"quant_method": "fp8"})) == plain


@pytest.mark.parametrize(
    ("changes", "extra"),
    [
        pytest.param({"model_type": "qwen2"}, 4 * (8 + 2 * 2) * 8, id="qwen2 biases its queries, keys and values"),
        pytest.param({"attention_bias": True}, 4 * ((8 + 2 * 2) * 8 + 64), id="attention_bias"),
        pytest.param({"mlp_bias": True}, 4 * (2 * 256 + 64), id="mlp_bias"),
        pytest.param({"model_type": "qwen3", "head_dim": 8}, 4 * 2 * 8, id="qwen3 norms its queries and keys"),
        pytest.param({"model_type": "gemma2", "head_dim": 8}, 4 * 2 * 64 - 64_000, id="gemma2 norms twice, ties"),
        pytest.param({"tie_word_embeddings": True}, -64_000, id="tied"),
        pytest.param({"model_type": "mistral"}, 0, id="mistral"),
        pytest.param({"model_type": "phi3"}, 0, id="phi3"),
    ],
)
def test_a_family_differs_from_llama_by_what_it_has(config, changes, extra):
    assert (
        model_from_config(config(LLAMA, **changes)).num_params - model_from_config(config(LLAMA)).num_params
        == extra
    )


def test_mixtral_has_experts_in_every_layer(config):
    spec = model_from_config(config(LLAMA, model_type="mixtral", num_local_experts=8, num_experts_per_tok=2))
    assert spec.kinds[1:-1] == ("moe",) * 4
    assert spec.num_params - spec.num_active_params == 4 * 6 * 3 * 64 * 256


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        pytest.param({}, "moe moe moe moe", id="all"),
        pytest.param({"decoder_sparse_step": 2}, "dense moe dense moe", id="every second"),
        pytest.param({"mlp_only_layers": [0, 3]}, "dense moe moe dense", id="some dense"),
    ],
)
def test_qwen_says_which_layers_are_sparse(config, changes, kinds):
    assert model_from_config(config(QWEN_MOE, **changes)).kinds[1:-1] == tuple(kinds.split())


def test_deepseek_says_which_layers_are_sparse(config):
    spec = model_from_config(config(DEEPSEEK))
    assert spec.kinds[1:-1] == ("dense", "moe", "moe", "moe")
    assert spec.experts is not None
    assert spec.experts.shared_intermediate_size == 64
    assert spec.latent is not None
    assert spec.latent.q_lora_rank is None


def test_an_unknown_type_in_llamas_form_is_read_and_marked(config):
    spec = model_from_config(config(LLAMA, model_type="mylm", tie_word_embeddings=False, hidden_act="silu"))
    assert spec.num_params == model_from_config(config(LLAMA)).num_params
    assert spec.trust is Trust.ASSUMED
    assert "'mylm' is not known" in spec.notes[0]


def test_prediction_layers_are_left_out_and_said_so(config):
    spec = model_from_config(config(DEEPSEEK, num_nextn_predict_layers=1))
    assert spec.num_params == model_from_config(config(DEEPSEEK)).num_params
    assert "multi-token-prediction" in spec.notes[0]


def test_all_missing_sizes_are_named_with_their_aliases(config):
    assert faults(config(without(LLAMA, "hidden_size", "intermediate_size", "vocab_size"))) == [
        "hidden_size: required key is missing (also read as n_embd, d_model, n_embed); sizes are never guessed",
        "vocab_size: required key is missing; sizes are never guessed",
        "intermediate_size: required key is missing (also read as ffn_dim, n_inner, ffn_hidden_size); "
        "sizes are never guessed",
    ]


def test_a_missing_nested_size_is_named_with_its_place(config):
    (fault,) = faults(config({"text_config": without(LLAMA, "vocab_size")}))
    assert fault.startswith("text_config.vocab_size: required key is missing")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param({"model_type": "t5", "d_model": 512}, "t5 is an encoder-decoder", id="t5"),
        pytest.param({"model_type": "x", "is_encoder_decoder": True}, "x is an encoder-decoder", id="declared"),
        pytest.param({"encoder": {}, "decoder": LLAMA}, "this is an encoder-decoder", id="two halves"),
        pytest.param({"model_type": "bert"}, "bert is an encoder;", id="encoder"),
        pytest.param({"model_type": "mamba"}, "mamba is a model with state-space", id="state space"),
        pytest.param({"model_type": "vit"}, "vit is a vision model", id="vision"),
        pytest.param(
            {**QWEN_MOE, "model_type": "mymoe"}, "num_experts_per_tok: model_type 'mymoe'", id="new mixture"
        ),
        pytest.param(
            {**LLAMA, "model_type": "x", "hidden_act": "gelu"}, "hidden_act: model_type 'x'", id="not gated"
        ),
        pytest.param(
            {**LLAMA, "model_type": "x", "layer_types": [["linear_attention"]]}, "layer_types: ", id="linear"
        ),
        pytest.param(
            {**LLAMA, "model_type": "x", "tie_word_embeddings": None}, "tie_word_embeddings: req", id="tie"
        ),
        pytest.param({**LLAMA, "model_type": ["llama"]}, "tie_word_embeddings: req", id="type is a list"),
        pytest.param(
            without({**LLAMA, "model_type": "mistral"}, "num_key_value_heads"), "num_key_value_h", id="kv"
        ),
        pytest.param({**LLAMA, "model_type": "qwen3"}, "head_dim: required key is missing", id="qwen3 head"),
        pytest.param({**LLAMA, "hidden_size": 0}, "hidden_size: 0 is not a whole number", id="zero"),
        pytest.param({**LLAMA, "hidden_size": -64}, "hidden_size: -64 is not", id="negative"),
        pytest.param({**LLAMA, "hidden_size": "64"}, "hidden_size: '64' is not", id="text"),
        pytest.param({**LLAMA, "hidden_size": True}, "hidden_size: True is not", id="boolean"),
        pytest.param({**LLAMA, "hidden_size": 64.0}, "hidden_size: 64.0 is not", id="fraction"),
        pytest.param({**LLAMA, "num_hidden_layers": 10**8}, "num_hidden_layers: 100000000 is not", id="endless"),
        pytest.param({**LLAMA, "num_key_value_heads": 3}, "8 heads are not a multiple of 3", id="uneven groups"),
        pytest.param({**LLAMA, "hidden_size": 63}, "63 is not a multiple of 8 heads", id="uneven heads"),
        pytest.param({**LLAMA, "tie_word_embeddings": 1}, "1 is not true or false", id="flag"),
        pytest.param({**QWEN_MOE, "num_experts_per_tok": 9}, "9 is more than the 8 experts", id="too many active"),
        pytest.param({**QWEN_MOE, "mlp_only_layers": "all"}, "must be a list of layer numbers", id="dense layers"),
        pytest.param(without(DEEPSEEK, "kv_lora_rank"), "kv_lora_rank: required key is missing", id="latent"),
        pytest.param([1, 2], "must be a JSON object", id="list"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_the_reason(config, data, said):
    (fault,) = faults(config(data))
    assert said in fault


def test_a_file_that_is_no_json_is_refused_with_its_place(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"hidden_size": 64,\n "vocab_size" 3}')
    with pytest.raises(BadFile, match=r"config\.json:2:15: not JSON"):
        model_from_config(path)


def test_deep_nesting_is_followed_or_refused_but_never_fatal(tmp_path):
    path = tmp_path / "config.json"
    for depth in (300, 100_000):
        path.write_text('{"text_config":' * depth + "{}" + "}" * depth)
        with pytest.raises(BadFile):
            model_from_config(path)


def test_names_are_case_insensitive_and_misspelt_ones_answered():
    assert model("Llama-3.1-8B").name == "llama-3.1-8b"
    with pytest.raises(UsageError) as caught:
        model("lama-3.1-8b")
    assert caught.value.hint == "did you mean 'llama-3.1-8b'?"
    with pytest.raises(UsageError, match="no bundled model"):
        model("zzz")


def test_a_missing_path_is_said_to_be_missing(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        model(tmp_path / "nowhere" / "config.json")
    with pytest.raises(UsageError, match="no such file"):
        model(tmp_path)


@pytest.mark.parametrize("name", model_names())
def test_a_shipped_model_is_exactly_what_its_family_says(name):
    assert model(name).trust is Trust.ANALYTIC
