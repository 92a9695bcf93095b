from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.workload.experts import Experts
from strata.workload.huggingface import model, model_names
from strata.workload.inference import ModelInfo
from strata.workload.layer_kinds import is_linear
from strata.workload.layer_table import layer_table
from strata.workload.serving_job import Demand
from tests.support.inference_models import models, served, small, spec


@pytest.mark.parametrize("name", model_names())
def test_layers_and_ends_hold_every_parameter_of_the_model(name: str) -> None:
    info, known = served(name), model(name)

    stored = info.weight_bytes.sum() + info.ends_bytes(0, info.num_layers)

    assert stored == pytest.approx(2 * known.num_params)
    attends = [not is_linear(kind) for kind in known.kinds[1:-1]]
    assert info.kv_bytes_per_token[attends].sum() == known.kv_bytes_per_token()


@pytest.mark.parametrize("name", model_names())
def test_a_prefill_takes_the_flops_that_training_counts(name: str) -> None:
    info, table = served(name), layer_table(model(name), 512)

    seen = np.minimum(512, info.windows)
    flops = 512 * info.flops_per_token + 512 * seen * info.prefill_flops_per_token_per_context

    whole = table.forward_flops[1:-1] + np.eye(1, info.num_layers)[0] * table.forward_flops[0]
    assert flops == pytest.approx(whole)  # the first node has the embedding's products
    assert 512 * info.head_flops_per_token == pytest.approx(table.forward_flops[-1])


def test_llama_caches_128_kib_a_token() -> None:
    assert served("llama-3.1-8b").kv_bytes_per_token.sum() == 128 * 1024


def test_deepseek_caches_latents_only() -> None:
    assert served("deepseek-v3").kv_bytes_per_token.sum() == (512 + 64) * 2 * 61


def test_decoding_attends_to_latents_and_prefill_to_keys() -> None:
    info = served("deepseek-v3")

    assert info.flops_per_token_per_context[0] == 2 * 128 * (512 + 64 + 512)
    assert info.prefill_flops_per_token_per_context[0] == 2 * 128 * (128 + 64 + 128)


def test_dense_layers_before_a_mixture_are_smaller() -> None:
    info = served("deepseek-v3")

    assert np.all(info.routed_bytes[:3] == 0)
    assert np.all(info.weight_bytes[:3] < info.weight_bytes[3])


def test_eight_bit_weights_take_half_and_leave_kv_memory_alone() -> None:
    whole, half = served("llama-3.1-8b"), served("llama-3.1-8b", weight_bytes_per_param=1.0)

    assert half.weight_bytes == pytest.approx(whole.weight_bytes / 2)
    assert half.kv_bytes_per_token == pytest.approx(whole.kv_bytes_per_token)


def test_a_tied_head_is_stored_once_beside_its_embedding_and_again_elsewhere() -> None:
    tied, free = small(tied=True), small(tied=False)

    table = 2.0 * 32_000 * 1024
    assert tied.ends_bytes(0, 8) == pytest.approx(free.ends_bytes(0, 8) - table)
    assert tied.ends_bytes(0, 4) + tied.ends_bytes(4, 8) == pytest.approx(free.ends_bytes(0, 8))
    assert tied.ends_bytes(2, 6) == 0.0


def test_one_token_reads_its_experts_and_no_fraction_is_lost() -> None:
    info = ModelInfo.of(spec(2, experts=Experts(60, 4, 512)))

    read = info.weight_bytes - info.read_bytes(1)

    assert read == pytest.approx(info.routed_bytes * 56 / 60)


def test_a_step_without_tokens_still_counts_what_everyone_reads() -> None:
    info = ModelInfo.of(spec(2, experts=Experts(60, 4, 512, 1024)))

    assert info.read_bytes(0) == pytest.approx(info.weight_bytes - info.routed_bytes)
    assert np.all(info.read_bytes(0) > 0)


@given(models(), st.integers(0, 500), st.integers(0, 500))
def test_more_tokens_read_more_experts_and_never_more_than_there_are(info: ModelInfo, few: int, more: int) -> None:
    low, high = info.read_bytes(min(few, more)), info.read_bytes(max(few, more))

    assert np.all(low <= high + 1e-9)
    assert np.all(high <= info.weight_bytes)


def test_a_sequence_has_half_of_its_answer_cached_on_average() -> None:
    demand = Demand(4, 1000, 200)

    assert demand.context == 1100
    assert demand.kv_tokens == 1200
