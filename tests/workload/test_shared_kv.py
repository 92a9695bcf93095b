"""Gemma 3n and Gemma 4 E2B: blocks that share keys and values, embeddings of each layer, several hidden states."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from strata.errors import BadFile
from strata.simulate.compute import layer_times
from strata.simulate.inference.roofline import Rates, decode_s
from strata.simulate.memory import StageShape, transient_bytes
from strata.workload.huggingface import model_from_config, model_from_keys
from strata.workload.inference import ModelInfo
from strata.workload.job import Recompute
from strata.workload.layer_table import layer_table
from strata.workload.model import ModelSpec
from tests.support.builders import domain, job

E2B = {
    "model_type": "gemma4_text", "hidden_size": 1536, "num_hidden_layers": 35, "num_attention_heads": 8,
    "num_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512, "intermediate_size": 6144,
    "vocab_size": 262144, "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256,
    "num_kv_shared_layers": 20, "use_double_wide_mlp": True, "sliding_window": 512,
    "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7, "tie_word_embeddings": True,
}  # fmt: skip
NANO = {
    "model_type": "gemma3n_text", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": [128] * 6, "vocab_size": 1000,
    "vocab_size_per_layer_input": 900, "hidden_size_per_layer_input": 16, "num_kv_shared_layers": 3,
    "sliding_window": 16, "altup_num_inputs": 4, "laurel_rank": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"] * 2,
}  # fmt: skip


def spec(keys: dict[str, object], **more: object) -> ModelSpec:
    return model_from_keys(keys | more, path="config.json", name="tiny")


def test_gemma_4_e2b_has_the_parameters_of_its_card():
    """2.3 billion without embeddings of layers; 5.1 with them, and with encoders of images and sound of 0.45."""
    found = spec(E2B)
    table = 262144 * 35 * 256
    assert found.num_params - table == pytest.approx(2.3e9, rel=0.01)
    assert found.num_params + 0.45e9 == pytest.approx(5.1e9, rel=0.01)
    # The first layer has the table; ranks and stages that hold it hold all of it.
    assert layer_table(found, 512).params[0] == 262144 * 1536 + table + 1536 * 35 * 256 + 256
    assert ModelInfo.of(found).embedding_bytes == 2 * layer_table(found, 512).params[0]


def test_blocks_that_share_cache_nothing_and_have_queries_alone():
    found = spec(E2B)
    assert found.kinds[14:18] == ("dense", "full-dense", "shared-dense", "shared-dense")
    assert found.kinds[20] == "full-shared-dense"
    assert found.kv_bytes_per_token(2) == 2 * (12 * 2 * 256 + 3 * 2 * 512)
    cached = ModelInfo.of(found).kv_bytes(10_000)
    assert cached.sum() == 2 * (12 * 2 * 256 * 512 + 3 * 2 * 512 * 10_000)
    # No keys, no values, no norm of keys; an MLP twice as wide.
    keys_and_values = 2 * 256 * 1536 + 256
    assert found.params_per_layer[16] - found.params_per_layer[14] == 3 * 1536 * 6144 - keys_and_values


def test_blocks_that_share_read_what_others_cache():
    info, alone = ModelInfo.of(spec(E2B)), ModelInfo.of(spec(E2B, num_kv_shared_layers=0))
    assert info.kv_read_bytes(2_000) == pytest.approx(alone.kv_read_bytes(2_000))
    assert alone.kv_read_bytes(2_000) == pytest.approx(alone.kv_bytes(2_000))
    assert info.flops_per_token_per_context == pytest.approx(alone.flops_per_token_per_context)


def test_a_stage_sends_what_later_ones_need():
    """Blocks 1 and 2 hold the keys and values of 3 to 5, 32 numbers a token; a block has an embedding of 16."""
    found, four_states = spec(NANO), 4 * 64
    assert found.shared is not None
    assert found.shared.owners == ((1, 4), (2, 5))
    each = [found.crossing_elements(layer) + 64 - four_states for layer in range(8)]
    assert each == [6 * 16, 5 * 16, 4 * 16 + 32, 3 * 16 + 64, 2 * 16 + 64, 16 + 32, 0, 0]
    table = layer_table(found, 100)
    assert table.boundary_bytes == pytest.approx(100 * 2 * (four_states + np.array(each)))
    assert (table.hidden_bytes == 100 * 2 * 64).all()
    assert list(table.checkpoint_bytes[[0, 1, 7]]) == [0, 100 * 2 * (four_states + 16), 100 * 2 * four_states]
    assert (table.activation_bytes >= table.checkpoint_bytes).all()


def test_tensor_parallelism_gathers_and_sums_the_hidden_state_alone():
    table = layer_table(spec(NANO), 100)
    asked, place = job(table), domain("a", 8)
    more = replace(asked, layers=replace(table, only_hidden=None))
    shape = StageShape(4, 1, 1, Recompute.NONE, zero_stage=0, in_flight=1)
    assert (transient_bytes(asked, shape) < transient_bytes(more, shape)).all()
    sums, wrong = (
        layer_times(each, place, tensor_parallel=4, microbatch_size=1, recompute=Recompute.NONE)
        for each in (asked, more)
    )
    assert sums is not None
    assert wrong is not None
    assert (np.diff(sums.forward) < np.diff(wrong.forward)).all()


def test_decoding_takes_longer_where_more_is_cached_whichever_layers_cache_it():
    info, rates = ModelInfo.of(spec(E2B)), Rates(1e30, 1e12)
    near, far = (decode_s(info, rates, batch=1, context=context) for context in (10, 10_000))
    owner, taker = (info.kinds.index(kind) for kind in ("full-dense", "full-shared-dense"))
    assert far[taker] - near[taker] == pytest.approx(far[owner] - near[owner])
    assert far[taker] - near[taker] == pytest.approx(2 * 2 * 512 * 9_990 / 1e12)


def test_what_flows_beside_is_neither_shared_nor_there_without_its_keys():
    plain = spec(E2B, num_kv_shared_layers=0, hidden_size_per_layer_input=0)
    assert not plain.is_whole
    assert not any(plain.crossing_elements(layer) for layer in range(37))
    assert "shared" not in "".join(plain.kinds)
    for part in ({"num_kv_shared_layers": 0}, {"hidden_size_per_layer_input": 0}):
        assert spec(E2B, **part).is_whole
        assert not spec(E2B, **part).can_be_profiled


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"num_kv_shared_layers": None}, "num_kv_shared_layers: required key is missing"),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers: 6 of 6 layers leave no block sliding and of full"),
        ({"num_kv_shared_layers": 7}, "num_kv_shared_layers: 7 of 6 layers leave no block sliding and of full"),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers: 5 of 6 layers leave no block sliding and of full"),
        ({"num_kv_shared_layers": 6, "layer_types": ["full_attention"] * 6},
         "num_kv_shared_layers: 6 of 6 layers leave no block with keys and values of its own before them"),
        ({"vocab_size_per_layer_input": None}, "vocab_size_per_layer_input: required key is missing"),
        ({"hidden_size_per_layer_input": "wide"}, "hidden_size_per_layer_input: 'wide' is not a whole number"),
        ({"altup_num_inputs": 0}, "altup_num_inputs: 0 is not a whole number from 1 to 1000"),
        ({"laurel_rank": None}, "laurel_rank: required key is missing"),
        ({"intermediate_size": [128] * 5 + [256]}, "intermediate_size: says other numbers for other layers"),
        ({"sliding_window": None}, "sliding_window: required key is missing"),
        ({"model_type": "gemma4_text", "intermediate_size": 128, "use_double_wide_mlp": True,
          "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 8},
         "use_double_wide_mlp: beside experts is not supported"),
    ],
)  # fmt: skip
def test_what_a_config_gets_wrong_is_said_with_its_place(tmp_path, keys, said):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**NANO, **keys}))
    with pytest.raises(BadFile) as caught:
        model_from_config(file)
    assert said in str(caught.value)


def test_what_a_reader_should_know_of_it_is_noted():
    assert [note.partition(" ")[0] for note in spec(NANO).notes] == ["stages", "activations"]
    assert spec(E2B, num_kv_shared_layers=0, hidden_size_per_layer_input=0).notes == ()
