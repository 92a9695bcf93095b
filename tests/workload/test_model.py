from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.workload.experts import Experts
from strata.workload.heads import LatentAttention
from strata.workload.huggingface import model
from strata.workload.layer_table import layer_table
from strata.workload.model import ModelSpec

# Counts as the model cards and papers state them; OPT and GPT-Neo as their checkpoints hold them.
PUBLISHED = {
    "llama-3.1-8b": 8.030e9,
    "llama-3.1-70b": 70.554e9,
    "llama-3.1-405b": 405.85e9,
    "qwen3-0.6b": 0.596e9,
    "qwen3-8b": 8.19e9,
    "qwen3-14b": 14.77e9,
    "qwen3-32b": 32.76e9,
    "qwen3-30b-a3b": 30.53e9,
    "qwen3-235b-a22b": 235.09e9,
    "deepseek-v3": 671.03e9,
    "gpt-neox-20b": 20.555e9,
    "gpt-neo-2.7b": 2.651e9,
    "opt-350m": 331.2e6,
    "gpt2": 124.44e6,
}


def gpt(hidden: int, layers: int, heads: int) -> ModelSpec:
    return ModelSpec(
        name="gpt",
        model_type="gpt2",
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        vocab_size=1000,
        intermediate_size=4 * hidden,
        embedding_size=hidden,
        gated_mlp=False,
        norm_bias=True,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
    )


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    size = st.integers(1, 64)
    layers, kv_heads = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    hidden = draw(size)
    latent = st.builds(LatentAttention, st.none() | size, size, size, size, size)
    experts = st.builds(
        Experts,
        num_experts=st.integers(4, 16),
        experts_per_token=st.integers(1, 4),
        intermediate_size=size,
        shared_intermediate_size=st.integers(0, 8),
        shared_gate=st.booleans(),
        dense_layers=st.frozensets(st.integers(0, 5)),
    )
    return ModelSpec(
        name="drawn",
        model_type="llama",
        hidden_size=hidden,
        num_layers=layers,
        num_heads=kv_heads * draw(st.integers(1, 4)),
        num_kv_heads=kv_heads,
        head_dim=draw(size),
        vocab_size=draw(size),
        intermediate_size=draw(size),
        embedding_size=draw(st.just(hidden) | size),
        gated_mlp=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        num_positions=draw(st.integers(0, 10)),
        norm_bias=draw(st.booleans()),
        qkv_bias=draw(st.booleans()),
        mlp_bias=draw(st.booleans()),
        latent=draw(st.none() | latent),
        experts=draw(st.none() | experts),
    )


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items(), ids=PUBLISHED)
def test_a_shipped_model_has_its_published_size(name, published):
    assert model(name).num_params == pytest.approx(published, rel=0.005)


@pytest.mark.parametrize(
    ("name", "published"), [("qwen3-30b-a3b", 3.3e9), ("qwen3-235b-a22b", 22e9), ("deepseek-v3", 37e9)]
)
def test_a_mixture_has_its_published_active_size(name, published):
    assert model(name).num_active_params == pytest.approx(published, rel=0.02)


def test_opt_350m_projects_its_embedding_and_has_no_final_norm():
    spec = model("opt-350m")
    assert spec.params_per_layer[-1] == 512 * 1024
    assert spec.params_per_layer[0] == 50272 * 512 + 512 * 1024 + 2050 * 1024


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        pytest.param("llama-3.1-8b", 32 * 2 * 8 * 128 * 2, id="grouped"),
        pytest.param("deepseek-v3", 61 * (512 + 64) * 2, id="latent"),
        pytest.param("gpt2", 12 * 2 * 768 * 2, id="multi-head"),
    ],
)
def test_the_cache_holds_what_the_attention_needs(name, bytes_per_token):
    assert model(name).kv_bytes_per_token() == bytes_per_token
    assert model(name).kv_bytes_per_token(4) == 2 * bytes_per_token


def test_the_attention_is_named():
    assert [model(name).attention for name in ("gpt2", "qwen3-8b", "deepseek-v3")] == ["mha", "gqa", "mla"]


def test_forward_flops_are_megatrons():
    # arXiv 2104.04473 eq. 3 is 4 forwards of the blocks (96 B s l h^2) and 3 of the logits; this is one of each.
    h, layers, s = 512, 6, 128
    expected = 24 * s * layers * h * h * (1 + s / (6 * h) + 1000 / (12 * layers * h))
    flops = layer_table(gpt(h, layers, heads=8), s).forward_flops.sum()
    assert flops == pytest.approx(expected, rel=1e-12)


def test_activations_are_korthikantis_without_scores_and_dropout():
    h, a, s = 512, 8, 128
    kept = layer_table(gpt(h, 3, heads=a), s).activation_bytes
    assert kept[1] == 32 * s * h + 4 * a * s
    assert kept[-1] == 4 * s * h + 4 * s * 1000
    assert kept[0] == 0


def test_8_bit_products_keep_their_inputs_in_8_bit_and_attention_its_output_twice():
    h, a, s = 512, 8, 128
    wide, narrow = (layer_table(gpt(h, 3, heads=a), s, input_bytes=b).activation_bytes for b in (None, 1.0))
    assert wide[1] - narrow[1] == s * (h + h + 4 * h) - s * h
    assert wide[-1] == narrow[-1]


def test_a_mixture_computes_with_its_active_experts_only():
    spec = model("qwen3-30b-a3b")
    table = layer_table(spec, 1)
    matrices = spec.active_params_per_layer[1] - 2 * spec.hidden_size - spec.qk_norm_params
    assert table.forward_flops[1] == 2 * matrices + 4 * spec.num_heads * spec.head_dim


def test_a_table_begins_with_the_embedding_and_ends_with_the_head():
    kinds = layer_table(model("deepseek-v3"), 8).kinds
    assert kinds == ("embedding", *["dense"] * 3, *["moe"] * 58, "head")


@given(specs(), st.integers(1, 100))
def test_layers_sum_to_the_model(spec, sequence_length):
    table = layer_table(spec, sequence_length)
    assert len(table) == spec.num_layers + 2
    assert table.params.sum() == spec.num_params == sum(spec.params_per_layer)
    assert spec.num_active_params <= spec.num_params
    assert (spec.num_active_params == spec.num_params) == ("moe" not in spec.kinds or _all_experts_active(spec))


def _all_experts_active(spec: ModelSpec) -> bool:
    return spec.experts is not None and spec.experts.experts_per_token == spec.experts.num_experts


@given(specs(), st.integers(1, 1000))
def test_longer_samples_cost_at_least_in_proportion(spec, sequence_length):
    short, long = layer_table(spec, sequence_length), layer_table(spec, 2 * sequence_length)
    assert (long.forward_flops >= 2 * short.forward_flops).all()
    assert (long.activation_bytes == 2 * short.activation_bytes).all()
    assert (short.checkpoint_bytes <= short.boundary_bytes).all()
