from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.simulate.compute import layer_times
from strata.simulate.inference.roofline import (
    Rates,
    decode_s,
    decode_terms,
    parts_of,
    prefill_s,
    prefill_terms,
)
from strata.workload.huggingface import model
from strata.workload.inference import ModelInfo
from strata.workload.job import Recompute
from strata.workload.layer_table import layer_table
from tests.support.builders import domain, job
from tests.support.inference_models import models, served, small

A100 = Rates(312e12, 2.039e12)

rates = st.builds(
    Rates,
    st.floats(1e10, 1e15),
    st.floats(1e9, 1e13),
    matrix_speedup=st.floats(1, 4),
    attention_speedup=st.floats(1, 4),
    ranks=st.sampled_from([1, 2, 3, 8]),
    intra_bandwidth_bytes_per_s=st.floats(1e9, 1e12),
    intra_latency_s=st.floats(0, 1e-4),
)
batches = st.integers(1, 256)
contexts = st.floats(0, 1e5)


def test_llama_on_one_a100_decodes_at_the_pace_of_reading_its_weights() -> None:
    info = served("llama-3.1-8b")

    step_s = decode_s(info, A100, batch=1, context=0).sum()

    # 8.03e9 parameters in 2 bytes, the embedding's 0.53e9 not read
    assert step_s == pytest.approx(15.01e9 / 2.039e12, rel=1e-3)


def test_a_long_prompt_computes_and_does_not_read() -> None:
    info = served("llama-3.1-8b")

    time_s = prefill_s(info, A100, tokens=8192)[:-1].sum()

    flops = 8192 * info.flops_per_token + 8192**2 / 2 * info.prefill_flops_per_token_per_context
    assert time_s == pytest.approx(flops.sum() / 312e12)


def test_cached_tokens_are_read_once_for_every_sequence() -> None:
    info = served("llama-3.1-8b")

    more_s = decode_s(info, A100, batch=8, context=1000).sum() - decode_s(info, A100, batch=8, context=0).sum()

    assert more_s == pytest.approx(8 * 1000 * 128 * 1024 / 2.039e12)


def test_a_rate_that_is_not_known_bounds_nothing() -> None:
    info = served("llama-3.1-8b")

    assert np.all(
        decode_s(info, Rates(312e12, 0.0), batch=1, context=0) < decode_s(info, A100, batch=1, context=0)
    )


def test_many_nodes_at_once_are_each_alone() -> None:
    info, flops, reads = served("deepseek-v3"), np.array([1e12, 3e14]), np.array([2e12, 1e11])

    both = decode_s(info, Rates(flops, reads), batch=16, context=100)

    assert both.shape == (2, 62)
    assert both[1] == pytest.approx(decode_s(info, Rates(3e14, 1e11), batch=16, context=100))


def test_a_prompt_looks_back_at_the_window_only() -> None:
    """Token by token: the n-th after c cached ones looks at c + n of them at most, the middle of its step."""
    info = small(2, windows=(0, 128))

    for context, tokens in ((0, 64), (0, 500), (100, 50), (1000, 30)):
        places = context + np.arange(tokens) + 0.5
        by_token = [places.mean(), np.minimum(places, 128).mean()]
        assert info.attended(tokens, context) == pytest.approx(by_token, rel=1e-2)


def test_matrices_multiply_faster_and_attention_does_not() -> None:
    info, context = served("llama-3.1-8b"), 8192.0

    rate = A100._replace(bytes_per_s=np.inf)
    plain, faster = (
        prefill_s(info, rate._replace(matrix_speedup=factor), tokens=1, context=context) for factor in (1.0, 2.0)
    )

    assert (plain - faster)[:-1] * 312e12 == pytest.approx(info.flops_per_token / 2)
    assert plain[-1] == faster[-1]


def test_a_window_bounds_what_decoding_reads() -> None:
    info = small(2, windows=(128, 0))

    near, far = (decode_s(info, A100, batch=64, context=context) for context in (128, 4096))

    assert far[0] == near[0]
    assert far[1] > near[1]


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_prompt_pays_the_all_reduces_that_training_pays(ranks: int) -> None:
    asked, place = job(layer_table(model("llama-3.1-8b"), 1024), flops_efficiency=0.5), domain("a")
    compute = {"flops_per_s": ranks * place.accelerator.fp16_flops, "bytes_per_s": np.inf}
    inside = {"intra_bandwidth_bytes_per_s": 300e9, "intra_latency_s": 5e-6}
    one = {"microbatch_size": 1, "recompute": Recompute.NONE}

    trained = layer_times(asked, place, tensor_parallel=ranks, **one)
    info = served("llama-3.1-8b")
    alone = prefill_s(info, Rates(**compute), tokens=1024)
    together = prefill_s(info, Rates(**compute, ranks=ranks, **inside), tokens=1024)

    of_training = np.diff(trained.forward) - np.diff(trained.useful) / 3
    assert (together - alone)[:-1] == pytest.approx(of_training[1:-1], abs=1e-12)


def test_a_block_of_attention_or_an_mlp_alone_has_one_all_reduce() -> None:
    whole = served("llama-3.1-8b")
    half = replace(whole, kinds=("attention", "mlp-dense") * (whole.num_layers // 2))
    late = A100._replace(ranks=8, intra_bandwidth_bytes_per_s=300e9, intra_latency_s=5e-6)
    waits, half_waits = (decode_s(m, late, batch=1, context=128) - decode_s(m, A100, batch=1, context=128)
                         for m in (whole, half))  # fmt: skip
    assert half_waits[:-1] == pytest.approx(waits[:-1] / 2)
    assert half_waits[-1] == waits[-1]


def test_decoding_waits_for_the_latency_of_every_all_reduce() -> None:
    info = served("llama-3.1-8b")

    def step_s(latency_s: float) -> float:
        rate = A100._replace(ranks=8, intra_bandwidth_bytes_per_s=300e9, intra_latency_s=latency_s)
        return float(decode_s(info, rate, batch=1, context=0).sum())

    # two a layer and the head's, each one exchange of a small message
    assert step_s(5e-6) - step_s(0.0) == pytest.approx(65 * 5e-6, rel=0.05)


def test_the_head_goes_with_the_last_layer() -> None:
    assert parts_of(8, 0, 4) == slice(0, 4)
    assert parts_of(8, 4, 8) == slice(4, 9)


@given(models(), rates, batches, batches, contexts, contexts)
def test_more_sequences_or_more_context_never_take_less(
    info: ModelInfo, rate: Rates, a: int, b: int, c: float, d: float
) -> None:
    low = decode_s(info, rate, batch=min(a, b), context=min(c, d))
    high = decode_s(info, rate, batch=max(a, b), context=max(c, d))

    assert np.all(low <= high * (1 + 1e-12))


@given(models(), rates, st.integers(1, 10_000), st.integers(1, 10_000))
def test_longer_prompts_never_take_less(info: ModelInfo, rate: Rates, a: int, b: int) -> None:
    low, high = prefill_s(info, rate, tokens=min(a, b)), prefill_s(info, rate, tokens=max(a, b))

    assert np.all(low <= high * (1 + 1e-12))


@given(models(), rates, batches, contexts, st.data())
def test_ranges_add_up_wherever_they_are_cut(
    info: ModelInfo, rate: Rates, batch: int, context: float, data: st.DataObject
) -> None:
    step, L = decode_s(info, rate, batch=batch, context=context), info.num_layers
    cut = data.draw(st.integers(0, L))

    parts = step[parts_of(L, 0, cut)].sum() + step[parts_of(L, cut, L)].sum() if 0 < cut < L else step.sum()

    assert parts == pytest.approx(step.sum())


@given(models(), rates, batches, st.floats(1, 1e5))
def test_decode_terms_are_exact_for_one_and_for_the_reference_and_never_negative(
    info: ModelInfo, rate: Rates, batch: int, context: float
) -> None:
    terms = decode_terms(info, rate, batch=batch, context=context)

    assert terms.at(batch, context) == pytest.approx(decode_s(info, rate, batch=batch, context=context), rel=1e-6)
    assert terms.at(1, 0) == pytest.approx(decode_s(info, rate, batch=1, context=0), rel=1e-6)
    assert min(terms.fixed_s.min(), terms.per_unit_s.min(), terms.per_unit_context_s.min()) >= 0


@given(models(), rates, st.integers(1, 10_000))
def test_prefill_terms_are_exact_for_the_reference_and_never_negative(
    info: ModelInfo, rate: Rates, tokens: int
) -> None:
    terms = prefill_terms(info, rate, tokens=tokens)

    assert terms.at(tokens, 0) == pytest.approx(prefill_s(info, rate, tokens=tokens), rel=1e-6)
    assert min(terms.fixed_s.min(), terms.per_unit_s.min(), terms.per_unit_context_s.min()) >= 0
