from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.decision import Trust
from strata.fleet.catalogue import accelerator, accelerators
from strata.simulate.kernel_rates import kernel_rates
from strata.simulate.kernels import DROPPED_SORT, TILE_ROWS, KernelShape, kernel_seconds
from strata.workload.huggingface import model, model_names
from strata.workload.kernels import LayerKernels, MatrixProduct
from strata.workload.layer_table import layer_table
from strata.workload.software import Software
from tests.support.laws import examples

RATES = kernel_rates(accelerator("H100"), "bf16")
NAMES = st.sampled_from(model_names())
ROWS = st.integers(1, 2**20)


def block(name):
    return layer_table(model(name), 1024).kernels[-2]


def test_a_product_takes_its_flops_at_the_rate_of_large_ones_and_its_operands_way_through_memory():
    rates = replace(RATES, matmul_flops=1e12, memory_bytes_per_s=1e9, launch_s=0.0)
    one = LayerKernels((MatrixProduct(100, 300, "outputs"),), 1.0, 0, 1, 0.0, 0.0, 1)
    forward, backward = kernel_seconds(one, KernelShape(1000, 0, 1), rates)
    assert forward == pytest.approx(2 * 1000 * 100 * 300 / 1e12 + 2 * (1000 * 400 + 100 * 300) / 1e9)
    assert backward == pytest.approx(2 * forward)
    halves, _ = kernel_seconds(one, KernelShape(1000, 0, 2), rates)
    assert halves == pytest.approx(1000 * 100 * 300 / 1e12 + 2 * (1000 * 250 + 100 * 150) / 1e9)


def test_flash_attention_does_half_of_the_square_and_two_and_a_half_times_as_much_backward():
    rates = replace(RATES, attention_flops=1e12, launch_s=0.0)
    only = LayerKernels((), 4.0 * 64, 0, 1, 0.0, 0.0, 1)
    forward, backward = kernel_seconds(only, KernelShape(4096, 2048, 1), rates)
    assert forward == pytest.approx(4 * 64 * 4096 * 2048 / 2 / 1e12)
    assert backward == pytest.approx(2.5 * forward)
    band, _ = kernel_seconds(replace(only, window=512), KernelShape(4096, 2048, 1), rates)
    assert band == pytest.approx(forward * (2048**2 - 1536**2) / 2048**2)


def extra(shape: KernelShape, rates=RATES, **software: object) -> list[float]:
    """Return what forward and backward of a mixture's layer take longer with some software than without."""
    moe = block("qwen3-30b-a3b")
    times = [
        kernel_seconds(moe, replace(shape, software=each), rates) for each in (Software(**software), Software())
    ]
    return [a - b for a, b in zip(*times, strict=True)]


def test_rows_are_sorted_by_expert_wherever_experts_lie_unless_what_sends_them_does_so():
    slow = replace(RATES, sort_s=1.0, product_launch_s=0.0)
    for ranks in (1, 8):
        shape = KernelShape(4096, 1024, 1, ranks)
        assert extra(shape, slow, sorts_apart=False) == pytest.approx([-2 * 8 * 4096.0] * 2, rel=1e-9)
        dropped = -(1 - DROPPED_SORT) * 2 * 8 * 4096.0
        assert extra(shape, slow, drops_tokens=True) == pytest.approx([dropped] * 2, rel=1e-9)


def test_products_of_experts_wait_for_the_host_unless_it_knows_their_rows_or_launches_a_step_at_once():
    slow = replace(RATES, sort_s=0.0, launch_s=0.0, product_launch_s=1e-3)
    for ranks, here in ((1, 128), (8, 16)):
        # Two products of each expert that is here; all work is longer than launching it.
        shape = KernelShape(2**22, 1024, 1, ranks)
        waits = [-2 * here * 1e-3, -4 * here * 1e-3]
        assert extra(shape, slow, cuda_graphs=True) == pytest.approx(waits, rel=1e-6)
        assert extra(shape, slow, drops_tokens=True) == pytest.approx(waits, rel=1e-6)


def test_an_activation_function_of_many_kernels_moves_more_through_memory_and_one_inside_products_less():
    shape = KernelShape(4096, 1024, 1, 8)
    unfused, inside = (extra(shape, expert_activation=each)[0] for each in ("unfused", "in_products"))
    read = 768 * 8 * 4096 * RATES.element_bytes / RATES.memory_bytes_per_s
    assert unfused == pytest.approx(32 * read)
    routed = block("qwen3-30b-a3b").routed_elements * 4096 * RATES.element_bytes / RATES.memory_bytes_per_s
    assert inside == pytest.approx(-3 * read - routed)


def test_an_expert_of_few_rows_fills_half_of_its_last_tile_and_takes_launches_of_its_own():
    moe = block("qwen3-30b-a3b")
    free = replace(RATES, sort_s=0.0, launch_s=0.0, product_launch_s=0.0, memory_bytes_per_s=1e30)
    here, spread = (kernel_seconds(moe, KernelShape(4096, 0, 1, ranks), free)[0] for ranks in (1, 8))
    flops = 2 * TILE_ROWS / 2 * sum(each.inputs * each.outputs for each in moe.products if each.groups > 1)
    assert here - spread == pytest.approx((128 - 16) * flops / RATES.matmul_flops)
    launched = replace(RATES, sort_s=0.0, launch_s=1.0, product_launch_s=1.0)
    known = KernelShape(4096, 0, 1, software=Software(drops_tokens=True))
    assert kernel_seconds(moe, known, launched)[0] == moe.num_kernels + 2 * 127


def test_a_host_that_launches_kernels_one_by_one_sets_a_floor():
    forward, backward = kernel_seconds(block("qwen3-0.6b"), KernelShape(1, 1, 1), RATES)
    assert forward == block("qwen3-0.6b").num_kernels * RATES.launch_s
    assert backward == 2 * forward


@given(NAMES, ROWS, st.sampled_from([1, 2, 4, 8]))
@examples(60)
def test_more_rows_never_take_less_time_and_never_more_a_row(name, rows, ranks):
    less, more = (kernel_seconds(block(name), KernelShape(n, 1024, ranks), RATES) for n in (rows, 2 * rows))
    for one, two in zip(less, more, strict=True):
        assert one <= two <= 2 * one * (1 + 1e-12)


@given(NAMES, ROWS, st.sampled_from([1, 2, 4]))
@examples(60)
def test_twice_the_ranks_never_take_longer_and_never_halve_more_than_the_work(name, rows, ranks):
    few, many = (kernel_seconds(block(name), KernelShape(rows, 1024, n), RATES) for n in (ranks, 2 * ranks))
    for one, two in zip(few, many, strict=True):
        assert one / 2 * (1 - 1e-12) <= two <= one


@given(NAMES, ROWS)
@examples(60)
def test_no_kernel_is_faster_than_the_peak(name, rows):
    shape = KernelShape(rows, 2048, 1)
    card = accelerator("H100")
    seconds, kernels = kernel_seconds(block(name), shape, RATES), block(name)
    # Flash attention leaves out half of the square.
    flops = rows * (2 * sum(product.active_params for product in kernels.products) + kernels.pair_flops * 2048 / 2)
    assert sum(seconds) > 3 * flops / card.fp16_flops


def test_rates_are_calibrated_where_runs_were_fitted_and_below_the_nominal_peaks():
    for card in accelerators():
        for precision in ("bf16", "fp8", "fp32"):
            rates = kernel_rates(card, precision)
            if rates is not None:
                assert rates.matmul_flops < card.peak_flops(precision)
                assert (rates.trust is Trust.CALIBRATED) == (
                    precision != "fp32"
                    and card.name.startswith(
                        ("A100", "A800", "H100", "H800", "H200", "GH200", "B200", "B300", "GB")
                    )
                )
    assert kernel_rates(accelerator("A100"), "fp8") is None
