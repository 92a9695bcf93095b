from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from strata.decision import Trust
from strata.fleet.catalogue import accelerator
from strata.simulate.compute import BESIDE_SUMS, layer_times, peak_flops
from strata.simulate.copies import CONTENTION
from strata.workload.huggingface import model
from strata.workload.job import Recompute
from strata.workload.layer_table import layer_table
from strata.workload.profile import LayerProfile, LayerTimes
from strata.workload.software import Software
from tests.support.builders import card, domain, job, layers


def times(asked=None, place=None, *, ranks=1, size=1, recompute=Recompute.NONE):
    return layer_times(
        asked or job(layers(2)),
        place or domain("a"),
        tensor_parallel=ranks,
        microbatch_size=size,
        recompute=recompute,
    )


def test_a_layer_takes_its_flops_at_the_reached_share_of_the_peak():
    found = times(job(layers(2, gflops=4500.0), flops_efficiency=0.45))
    assert np.diff(found.forward) == pytest.approx([0.0, 0.1, 0.1, 0.05])
    assert np.diff(found.backward) == pytest.approx([0.0, 0.2, 0.2, 0.1])
    assert found.work == pytest.approx(found.forward + found.backward)


def test_the_price_of_recomputation_is_one_more_forward_of_every_block():
    plain, again = times(), times(recompute=Recompute.FULL)
    more = np.diff(again.backward) - np.diff(plain.backward)
    assert more == pytest.approx(np.diff(plain.forward) * [0, 1, 1, 0])
    assert again.useful == pytest.approx(plain.useful)


def test_tensor_parallel_ranks_divide_the_work_and_add_their_reductions():
    one, four = times(), times(ranks=4)
    message = 32 * 2**20
    once = 2 * 3 * (message / 4 / 300e9 + 5e-6)
    reductions = once * np.array([1, 2, 2, 1])
    assert np.diff(four.forward) == pytest.approx(np.diff(one.forward) / 4 + reductions)
    assert np.diff(four.useful) * 4 == pytest.approx(np.diff(one.useful))


def test_a_larger_microbatch_takes_longer_but_not_per_sample():
    one, four = times(ranks=2), times(ranks=2, size=4)
    assert one.forward[-1] < four.forward[-1] <= 4 * one.forward[-1]


def measured() -> LayerProfile:
    return LayerProfile({("card", 2, 1): LayerTimes(np.full(4, 0.1), np.full(4, 0.3), np.full(4, 0.01))})


def test_measured_times_go_before_flops_and_are_trusted_more():
    found = times(job(layers(2), profile=measured()), size=2, recompute=Recompute.FULL)
    assert found.trust == Trust.MEASURED
    assert np.diff(found.forward) == pytest.approx([0.1] * 4)
    assert np.diff(found.backward) == pytest.approx([0.3, 0.4, 0.4, 0.3])
    assert np.diff(found.update) == pytest.approx([0.01] * 4)


def test_conditions_nobody_measured_fall_back_on_flops():
    asked = job(layers(2), profile=measured())
    assert times(asked, size=1).trust == Trust.ASSUMED
    assert times(asked, size=1).forward == pytest.approx(times(size=1).forward)


def test_without_peak_or_measurement_the_time_is_not_known():
    unknown = replace(card(), fp16_flops=None)
    place = domain("a", accelerator=unknown)
    assert times(place=place) is None
    assert times(job(layers(2), profile=measured()), place, size=2) is not None
    assert times(job(layers(2), profile=measured()), place, size=4) is None


def test_the_peak_is_that_of_the_jobs_precision():
    assert peak_flops(domain("a"), job(precision="fp32")) == 100e12 / 16
    assert peak_flops(domain("a"), job()) == 100e12


def test_the_update_streams_all_state_through_memory_once():
    found = times()
    assert np.diff(found.update) == pytest.approx([100e6 * 2 * 16 / 2e12] * 4)
    slow = replace(card(), memory_bandwidth_bytes_per_s=None)
    assert times(place=domain("a", accelerator=slow)).update[-1] == 0.0


H100 = domain("a", accelerator=accelerator("H100"))


def llama(**more):
    spec = model("llama-3.1-8b")
    return job(layer_table(spec, 4096), spec=spec, **more)


def share_of_peak(asked, place=H100, *, precision="bf16", **shape):
    found = times(asked, place, **shape)
    size, ranks = shape.get("size", 1), shape.get("ranks", 1)
    flops = 3 * asked.layers.forward_flops.sum() * size / ranks
    return flops / found.useful[-1] / place.accelerator.peak_flops(precision)


def test_small_matrices_reach_less_of_the_peak_than_large_ones():
    alone, split = share_of_peak(llama()), share_of_peak(llama(), ranks=8)
    assert 0.3 < split < alone < 0.7
    assert alone <= share_of_peak(llama(), size=4)


def test_the_time_by_kernels_is_as_good_as_its_card_where_runs_were_fitted_and_assumed_elsewhere():
    assert times(llama(), H100).trust == accelerator("H100").trust == Trust.ANALYTIC
    assert times(llama(), domain("a", accelerator=accelerator("MI300X"))).trust == Trust.ASSUMED


def test_an_efficiency_the_job_states_goes_before_the_kernels():
    stated = times(llama(flops_efficiency=0.5), H100)
    assert stated.trust == Trust.ASSUMED
    assert np.diff(stated.forward) == pytest.approx(llama().layers.forward_flops / (0.5 * 989e12))


def test_8_bit_products_are_faster_but_not_twice_as_fast():
    wide, narrow = times(llama(), H100), times(llama(precision="fp8"), H100)
    assert 0.4 < narrow.work[-1] / wide.work[-1] < 0.9
    assert times(llama(precision="fp8"), domain("a", accelerator=accelerator("A100"))) is None


def test_software_without_transformer_engine_has_the_attention_of_16_bit_and_shows_its_sums():
    def of(engine, ranks):
        return times(llama(precision="fp8", software=Software(transformer_engine=engine)), H100, ranks=ranks)

    stated, asked = of(True, 1), times(llama(precision="fp8"), H100)
    assert stated.forward[-1] == asked.forward[-1]
    assert of(False, 1).forward[-1] > stated.forward[-1]
    shown = [found.forward[-1] - found.useful[-1] / 3 for found in (of(True, 8), of(False, 8))]
    assert shown[0] < shown[1]
    wide = [times(llama(software=Software(transformer_engine=e)), H100).forward[-1] for e in (True, None)]
    assert wide[0] < wide[1]


def test_sums_behind_weight_gradients_shorten_the_backward_alone_and_no_further_than_those_take():
    slow = replace(H100, intra_bandwidth_bytes_per_s=1e9)
    for place in (H100, slow):
        shown, hidden = (
            times(llama(software=Software(hides_backward_sums=hides)), place, ranks=8) for hides in (False, True)
        )
        assert hidden.forward == pytest.approx(shown.forward)
        saved, computed = shown.backward[-1] - hidden.backward[-1], 2 / 3 * shown.useful[-1]
        assert 0 < saved < BESIDE_SUMS * computed
        if place is slow:
            assert saved == pytest.approx((1 - CONTENTION) * BESIDE_SUMS * computed, rel=0.15)


def test_attention_that_writes_its_scores_is_slower_and_computes_them_again_unless_its_block_is():
    fused, written = llama(), llama(software=Software(fused_attention=False))
    assert times(fused, H100).forward[-1] < times(written, H100).forward[-1]
    plain, again = times(written, H100), times(written, H100, recompute=Recompute.FULL)
    assert again.backward[-1] < plain.backward[-1] + plain.forward[-1]


def test_checkpointing_of_operations_lies_between_none_and_full():
    none, some, full = (
        times(llama(), H100, recompute=recompute).backward[-1]
        for recompute in (Recompute.NONE, Recompute.SELECTIVE_OP, Recompute.FULL)
    )
    assert none < some < none + 0.7 * (full - none)
    none, some = (
        times(llama(flops_efficiency=0.5), H100, recompute=recompute).backward[-1]
        for recompute in (Recompute.NONE, Recompute.SELECTIVE_OP)
    )
    assert some > none
