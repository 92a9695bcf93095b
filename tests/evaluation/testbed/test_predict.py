import numpy as np
import pytest

from strata.decision import Trust
from strata.evaluation.testbed.calibrate import LinkSample, MachineCalibration, fit_link, launch_of
from strata.evaluation.testbed.namespaces import LinkShape
from strata.evaluation.testbed.plans import MICROBATCH_SIZE, MODEL, PLANS, build_job, build_plan
from strata.evaluation.testbed.predict import build_fleet, predict
from strata.evaluation.testbed.run import compare
from strata.simulate.pipeline import classic_warmup

FAST, SLOW = LinkShape(1e12, 0.0), LinkShape(1e5, 0.0)
LAYERS = MODEL.num_layers
MEASURED = MachineCalibration(
    MICROBATCH_SIZE, (1e-3,) * LAYERS, (2e-3,) * LAYERS, (3e-3,) * LAYERS, 4e-3, 0.9, 0.8
)


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("domains", [2, 3, 4])
def test_every_plan_has_all_layers_and_the_whole_batch_and_one_device_a_domain(kind, domains):
    plan, job = build_plan(kind, domains), build_job(domains)
    assert plan.kind == kind
    assert plan.devices() == {f"domain-{index}": 1 for index in range(domains)}
    for pipeline in plan.pipelines:
        assert sum(stage.num_layers for stage in pipeline.stages) == LAYERS
        assert tuple(stage.warmup for stage in pipeline.stages) == classic_warmup(len(pipeline.stages))
    assert sum(pipeline.microbatches for pipeline in plan.pipelines) * plan.microbatch_size == job.global_batch


def test_a_launch_has_a_rank_a_domain_and_sums_between_copies_only():
    pp, dp = (launch_of(build_plan(kind, 2)) for kind in PLANS)
    assert pp["world_size"] == dp["world_size"] == 2
    assert [group["ranks"] for group in dp["data_groups"]] == [(0, 1)]
    assert {len(group["ranks"]) for group in pp["data_groups"]} == {1}


def test_the_fit_finds_overhead_and_share_again():
    sizes = [(1e4, 1e7), (1e5, 1e7), (1e6, 1e7), (1e4, 4e7), (1e6, 4e7)]
    samples = [LinkSample(size, rate, 2e-3 + size / (0.9 * rate)) for size, rate in sizes]
    assert fit_link(samples) == pytest.approx((2e-3, 0.9))


def test_an_overhead_is_never_negative():
    samples = [LinkSample(size, 1e7, size / 1e7 - 5e-4) for size in (1e4, 1e5, 1e6)]
    overhead_s, share = fit_link(samples)
    assert overhead_s == 0
    assert share > 1


def test_on_a_free_link_a_pipeline_takes_the_profile_and_no_more():
    report = predict(build_plan("pp", 2), FAST, None)["analytic"]
    calibrated = predict(build_plan("pp", 2), FAST, MEASURED)["analytic"]
    # 1F1B of 2 equal stages: 8 + 1 microbatches of 5 layers, the update of 5, and 4 ms of overhead on the way.
    work_s, update_s = 9 * 5 * 3e-3, 5 * 3e-3
    assert work_s + update_s < calibrated.step_time_s < work_s + update_s + 16 * 4e-3
    assert calibrated.step_time_s != report.step_time_s


def test_on_a_slow_link_a_sum_takes_what_sums_reach():
    report = predict(build_plan("dp", 2), SLOW, MEASURED)["analytic"]
    sum_s = 4 * float(MODEL.layers().params.sum()) / (0.8 * SLOW.bandwidth_bytes_per_s)
    assert report.step_time_s == pytest.approx(sum_s, rel=1e-3)


def test_a_calibrated_link_has_the_speed_of_messages_and_that_of_sums():
    link = build_fleet(2, LinkShape(1e7, 0.01), MEASURED).links["domain-0", "domain-1"]
    assert link.serialisation_s(9e6) == pytest.approx(1.0)
    assert link.bandwidth_bytes_per_s == pytest.approx(8e6)
    assert link.latency_s == pytest.approx(0.014)


def test_both_backends_stand_beside_one_measurement():
    rows = compare("dp", build_plan("dp", 2), SLOW, [2.0, 1.0, 4.0, 3.0, 5.0], MEASURED)
    assert [row.backend for row in rows] == ["analytic", "events"]
    for row in rows:
        assert (row.measured_s, row.spread_s) == (3.0, 2.0)
        assert row.error == pytest.approx(row.predicted_s / 3.0 - 1)
        assert row.dominated_by == "transfer"
    (fast, _) = compare("pp", build_plan("pp", 2), FAST, [1.0], None)
    assert fast.dominated_by == "compute"
    assert fast.trust is Trust.ASSUMED


@pytest.mark.real("torch")
def test_the_layer_table_counts_the_parameters_of_the_real_model():
    from strata.workload.tiny import Size, build_layer

    size = Size(LAYERS, MODEL.hidden_size, MODEL.num_heads, MODEL.vocab_size, MODEL.sequence_length)
    counted = [sum(p.numel() for p in build_layer(size, layer).parameters()) for layer in range(LAYERS)]
    np.testing.assert_array_equal(MODEL.layers().params, counted)
