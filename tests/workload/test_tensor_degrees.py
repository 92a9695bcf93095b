"""Tensor parallelism divides the heads of every block: those that attend, of linear attention, and of Mamba."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import BadFile
from strata.workload.huggingface import model_from_keys
from strata.workload.inference import ModelInfo
from strata.workload.model import ModelSpec
from strata.workload.schema import load_job
from tests.support.builders import job

TINY = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 128, "vocab_size": 1000, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
}  # fmt: skip
MAMBA = {
    "model_type": "nemotron_h", "mamba_num_heads": 32, "n_groups": 4, "ssm_state_size": 8, "mamba_head_dim": 8,
    "conv_kernel": 4, "chunk_size": 16, "hybrid_override_pattern": "M*-M",
}  # fmt: skip
DELTA = {
    "model_type": "qwen3_5_text", "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
}  # fmt: skip
PHI = {"model_type": "llama", "num_attention_heads": 40, "num_key_value_heads": 10}
KIMI = {
    "model_type": "kimi_linear", "q_lora_rank": None, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4, "v_head_dim": 8,
    "linear_attn_config": {"head_dim": 8, "num_heads": 12, "short_conv_kernel_size": 4},
}  # fmt: skip


def spec(*more: dict[str, Any]) -> ModelSpec:
    return model_from_keys({key: each[key] for each in (TINY, *more) for key in each}, path="", name="tiny")


@pytest.mark.parametrize(
    ("keys", "divided"),
    [
        (MAMBA, {"attention heads": 16, "Mamba heads": 32, "Mamba groups": 4}),
        (DELTA, {"attention heads": 16, "linear key heads": 4, "linear value heads": 8}),
        (KIMI, {"attention heads": 16, "linear heads": 12}),
        ({"model_type": "minimax", "num_local_experts": 4}, {"attention heads": 16, "linear heads": 16}),
        ({**DELTA, "layer_types": ["full_attention"] * 4}, {"attention heads": 16}),
        ({**MAMBA, "hybrid_override_pattern": "M-M-"}, {"Mamba heads": 32, "Mamba groups": 4}),
        ({**MAMBA, "hybrid_override_pattern": "-*--"}, {"attention heads": 16}),
        ({**MAMBA, "hybrid_override_pattern": "----"}, {"attention heads": 16}),
    ],
)
def test_ranks_divide_heads_of_the_kinds_of_blocks_that_there_are(keys, divided):
    assert spec(keys).divided == divided


@given(heads=st.integers(1, 96), mamba=st.integers(1, 96), groups=st.integers(1, 16), ranks=st.integers(1, 32))
def test_a_degree_that_is_accepted_leaves_every_rank_whole_heads_and_groups(heads, mamba, groups, ranks):
    found = spec(MAMBA, {"num_attention_heads": heads, "num_key_value_heads": 1, "mamba_num_heads": mamba,
                         "n_groups": groups})  # fmt: skip
    assert (found.divided_heads % ranks == 0) == (heads % ranks == mamba % ranks == groups % ranks == 0)
    served = heads % ranks == mamba % ranks == 0 and (groups == 1 or groups % ranks == 0)
    assert (ModelInfo.of(found).num_attention_heads % ranks == 0) == served


@given(kv_heads=st.integers(1, 12), groups=st.integers(1, 8), ranks=st.integers(1, 64))
def test_ranks_have_as_many_key_value_heads_each_or_a_copy_of_one(kv_heads, groups, ranks):
    found = spec(
        {"model_type": "llama", "num_attention_heads": kv_heads * groups, "num_key_value_heads": kv_heads}
    )
    asked = replace(job(spec=found), num_heads=found.divided_heads)
    whole = kv_heads % ranks == 0 or ranks % kv_heads == 0
    assert asked.divides(ranks) == (kv_heads * groups % ranks == 0 and whole)
    assert asked.divides(1)
    assert asked.divides(kv_heads)
    assert ModelInfo.of(found).kv_heads == (kv_heads,)


def test_blocks_of_other_heads_and_of_none_have_their_own_key_value_heads():
    mimo = {"model_type": "mimo_v2_flash", "first_k_dense_replace": 1, "sliding_window": 16, "v_head_dim": 8}
    assert spec(mimo).kv_heads == (2, 4)
    assert spec(KIMI).kv_heads == ()
    assert spec({**MAMBA, "hybrid_override_pattern": "M-M-"}).kv_heads == ()
    assert spec(MAMBA).kv_heads == (2,)


@pytest.fixture
def load(tmp_path):
    def job_of(keys: dict[str, Any], tensor: int):
        (tmp_path / "hybrid.json").write_text(json.dumps(TINY | keys))
        path = tmp_path / "job.yaml"
        head = "apiVersion: strata/v1alpha1\nkind: TrainingJob\nname: tiny\nmodel: hybrid.json\n"
        path.write_text(f"{head}train: {{global_batch: 64, sequence: 1024}}\nparallel: {{tensor: {tensor}}}\n")
        return load_job(path)

    return job_of


@pytest.mark.parametrize(
    ("keys", "tensor", "said", "near"),
    [
        (MAMBA, 16, "16 does not divide the 4 Mamba groups of hybrid", 4),
        (
            MAMBA,
            64,
            "64 does not divide the 16 attention heads and 32 Mamba heads and 4 Mamba groups of hybrid",
            4,
        ),
        ({**MAMBA, "n_groups": 1}, 2, "2 does not divide the 1 Mamba group of hybrid", 1),
        (DELTA, 8, "8 does not divide the 4 linear key heads of hybrid", 4),
        (PHI, 4, "4 neither divides the 10 key-value heads of hybrid nor is a multiple of them", 2),
        (PHI, 8, "8 neither divides the 10 key-value heads of hybrid nor is a multiple of them", 5),
        (KIMI, 8, "8 does not divide the 12 linear heads of hybrid", 4),
    ],
)
def test_a_degree_that_a_linear_layer_cannot_have_is_refused_with_one_that_it_can(load, keys, tensor, said, near):
    with pytest.raises(BadFile) as caught:
        load(keys, tensor)
    assert [f"{fault.where}: {fault.message}" for fault in caught.value.faults] == [f"parallel.tensor: {said}"]
    assert caught.value.hint == f"parallel: {{tensor: {near}}}"
    assert load(keys, near).pins.tensor == near


def test_more_ranks_than_key_value_heads_have_copies(load):
    assert load(PHI, 20).pins.tensor == 20
    assert load({"model_type": "llama"}, 16).pins.tensor == 16
