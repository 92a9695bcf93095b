"""What copies of a stage exchange under each ZeRO stage: arXiv 1910.02054 §7, overlapped as in 2304.11277."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.simulate.analytic import StepModel
from strata.simulate.copies import CONTENTION, MATRICES, SharedWeights, copy_exchange
from strata.simulate.kernel_rates import LAUNCH_S
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.builders import domain, fleet, job, layers

SITE = replace(domain("a", 64, per_node=8), intra_latency_s=0.0, network_latency_s=0.0)
RING = 7 / 8 / 300e9  # an all-gather of 8 copies in a node [s/B]


def exchange(
    zero_stage,
    *,
    n=4,
    forward_s=0.01,
    weight_bytes=1e9,
    replicas=8,
    shard_group=None,
    site=SITE,
    prefetched=True,
    recomputed=False,
    **more,
):
    return copy_exchange(
        site, np.full(n, forward_s), np.full(n, 2 * forward_s),
        [SharedWeights(np.full(n, weight_bytes), replicas, copy_devices=1)],
        zero_stage=zero_stage, shard_group=shard_group, prefetched=prefetched, recomputed=recomputed, **more,
    )  # fmt: skip


def test_what_fits_behind_the_work_costs_the_layers_at_its_ends():
    each = 1e9 * RING
    assert each < 0.01
    plain, sharded, gradients, weights = (exchange(zero) for zero in range(4))
    assert plain.sum_s == plain.gather_s == 0
    assert (sharded.sum_s, sharded.gather_s) == (0, pytest.approx(each))
    assert (gradients.sum_s, gradients.gather_s) == (pytest.approx(each), pytest.approx(each))
    beside = 4 * CONTENTION * each
    assert weights.forward_s == pytest.approx(0.04 + beside + each)
    assert weights.backward_s == pytest.approx(0.08 + 2 * beside + each)
    assert weights.sum_s == pytest.approx(each)


def test_work_takes_longer_beside_an_exchange_but_never_longer_than_one_after_the_other():
    each = 1e9 * RING
    for zero, exchanged in ((2, (0, 1)), (3, (1, 2))):
        done = exchange(zero)
        for whole, seconds, count in zip((0.04, 0.08), (done.forward_s, done.backward_s), exchanged, strict=True):
            assert whole <= seconds <= whole + 4 * count * each


def test_exchanges_that_nothing_hides_take_their_own_time_and_wide_gradients_twice_that():
    each = 4e9 * RING
    plain, sharded = (exchange(zero, hidden=False, gradient_ratio=2.0) for zero in (0, 1))
    assert plain.sum_s == pytest.approx(2 * 2 * each)
    assert (sharded.sum_s, sharded.gather_s) == (pytest.approx(2 * each), pytest.approx(each))
    assert (plain.forward_s, plain.backward_s) == pytest.approx((0.04, 0.08))


def test_weights_that_nothing_prefetches_are_waited_for_matrix_by_matrix():
    done, waited = exchange(3), exchange(3, prefetched=False)
    assert waited.forward_s > done.forward_s
    assert waited.backward_s - 0.08 == pytest.approx(2 * (waited.forward_s - 0.04))
    copied = 2 * 4e9 / SITE.accelerator.memory_bandwidth_bytes_per_s
    assert waited.forward_s - 0.04 == pytest.approx(4e9 * RING + copied + 4 * MATRICES * 8 * LAUNCH_S)
    again = exchange(3, prefetched=False, recomputed=True)
    assert again.backward_s - waited.backward_s == pytest.approx(waited.forward_s - 0.04)


def test_pieces_of_ever_more_copies_come_to_outweigh_what_they_hold():
    """ZeRO-3 of 175B on A100: as long on 1536 as on 768, at half the work each (arXiv 2104.04473, table 2)."""
    some, more = (exchange(3, prefetched=False, forward_s=0.0, replicas=n).forward_s for n in (512, 1024))
    assert some < more < 2 * some


def test_what_does_not_fit_is_paid_by_volume():
    """Stages 0 to 2 move 2Ψ a step, stage 3 moves 3Ψ for every microbatch (arXiv 1910.02054 §7.2)."""
    whole = 4e10 * 4 * RING
    slow = [exchange(zero, forward_s=1e-6, weight_bytes=4e10) for zero in range(4)]
    assert slow[0].sum_s == pytest.approx(2 * whole, rel=1e-3)
    assert slow[1].sum_s + slow[1].gather_s == pytest.approx(2 * whole, rel=1e-3)
    assert slow[2].backward_s + slow[2].sum_s + slow[2].gather_s == pytest.approx(2 * whole, rel=1e-3)
    assert slow[3].forward_s + slow[3].backward_s + slow[3].sum_s == pytest.approx(3 * whole, rel=1e-3)


def test_shards_inside_a_node_leave_the_network_what_groups_sum():
    """HSDP on 8 nodes: the ring between groups has one shard of eight, and a card for eight rings."""
    shards = exchange(3, n=1, forward_s=0.0, replicas=64, shard_group=8)
    assert shards.forward_s == pytest.approx(1e9 * RING)
    assert shards.sum_s == pytest.approx(2 * 7 / 8 * (1e9 / 8) / (50e9 / 8))
    far = exchange(3, n=1, forward_s=0.0, replicas=64)
    assert far.forward_s == pytest.approx(63 / 64 * 1e9 / 50e9)


@given(
    st.integers(1, 8), st.integers(1, 9), st.integers(1, 12), st.floats(1e-4, 1.0),
    st.floats(1e6, 1e11), st.sampled_from([0.0, 1e-5, 1e-3]),
)  # fmt: skip
def test_from_stage_1_on_a_higher_one_never_costs_less_time(n, replicas, microbatches, forward_s, size, latency_s):
    site = replace(SITE, intra_latency_s=latency_s, network_latency_s=latency_s)
    table = layers(n, mparams=size / 2e6, gflops=forward_s * 45e3)
    asked = job(table, batch=replicas * microbatches)
    model = StepModel(fleet(site), asked)
    pipeline = Pipeline((Stage("a", 0, len(table), 1),), replicas, microbatches)
    steps = [
        report.step_time_s
        for report in model.reports([TrainingPlan((pipeline,), 1, zero_stage=zero) for zero in (1, 2, 3)])
    ]
    assert steps[0] <= steps[1] * (1 + 1e-12)
    assert steps[1] <= steps[2] * (1 + 1e-12)


def test_a_rank_updates_its_shard_alone():
    one = TrainingPlan((Pipeline((Stage("a", 0, 10, 1),), 8, 1),), 1)
    model = StepModel(fleet(SITE), job())
    plain, sharded = (model.times(p, p.pipelines[0]).update_s for p in (one, replace(one, zero_stage=1)))
    assert sharded == pytest.approx(plain / 8)


@pytest.mark.parametrize("microbatches", [1, 64])
def test_shards_of_weights_are_chosen_where_the_whole_step_is_faster(microbatches):
    """Their exchange with every microbatch counts, not only what follows the last one."""
    site = replace(SITE, network_bandwidth_bytes_per_s=2e9)
    asked = job(layers(8), zero_stages=(0, 3))
    model = StepModel(fleet(site), asked)
    one = TrainingPlan((Pipeline((Stage("a", 0, 10, 1),), 64, microbatches),), 1)
    either = [replace(one, zero_stage=zero) for zero in (0, 3)]
    assert all(map(model.fits, either))
    chosen = model.fastest_zero(one, (0, 3))
    assert chosen is not None
    times = [report.step_time_s for report in model.reports(either)]
    assert model.reports([chosen])[0].step_time_s == min(times)
