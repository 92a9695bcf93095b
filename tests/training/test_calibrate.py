"""The fit of kernel rates: what made the step times is found again, and what cannot be told is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.decision import Trust
from strata.errors import UsageError
from strata.simulate.analytic import StepModel
from strata.training.calibrate import TimedRun, calibrate
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.builders import card, domain, fleet, job, layers
from tests.support.laws import examples

PLACE = fleet(domain("a", 16, accelerator=card("fast", tflops=300)), domain("b", 16, accelerator=card("slow")))
JOB = job(layers(8), batch=32)
A1 = TrainingPlan((Pipeline((Stage("a", 0, 10, 4, 0),), 4, 8),), 1)
A2 = TrainingPlan((Pipeline((Stage("a", 0, 5, 4, 1), Stage("a", 5, 5, 4, 0)), 2, 16),), 1)
B1 = TrainingPlan((Pipeline((Stage("b", 0, 10, 8, 0),), 2, 16),), 1)
AB = TrainingPlan((Pipeline((Stage("a", 0, 6, 4, 1), Stage("b", 6, 4, 4, 0)), 4, 8),), 1)


def timed(*plans, asked=JOB, **ratios):
    model = StepModel(PLACE, replace(asked, calibration=ratios))
    return [TimedRun(plan, model.reports([plan])[0].step_time_s) for plan in plans]


@examples(20)
@given(fast=st.floats(0.3, 3.0), slow=st.floats(0.3, 3.0))
def test_the_rates_that_made_the_step_times_are_found_again(fast, slow):
    fitted = calibrate(PLACE, JOB, timed(A1, A2, B1, AB, fast=fast, slow=slow))
    assert fitted.ratios == pytest.approx({"fast": fast, "slow": slow}, rel=1e-4)


def test_errors_are_told_before_after_and_left_out():
    runs = timed(A1, A2, fast=0.5)
    for run, fit in zip(runs, calibrate(PLACE, JOB, runs).runs, strict=True):
        assert fit.before_s < 0.8 * run.step_s
        assert (fit.after_s, fit.left_out_s) == pytest.approx((run.step_s, run.step_s))


def test_a_run_that_the_others_say_nothing_of_has_no_error_left_out():
    runs = timed(A1, A2, B1, fast=0.5)
    assert [fit.left_out_s is None for fit in calibrate(PLACE, JOB, runs).runs] == [False, False, True]


def test_what_a_job_had_is_replaced_and_the_job_states_an_efficiency_all_the_same():
    asked = replace(JOB, flops_efficiency=0.4, calibration={"fast": 3.0})
    assert calibrate(PLACE, asked, timed(A1, asked=asked, fast=0.7)).ratios == pytest.approx({"fast": 0.7})


def test_one_run_on_two_accelerators_does_not_tell_them_apart():
    with pytest.raises(UsageError, match="do not tell how fast the kernels of fast and slow are") as caught:
        calibrate(PLACE, JOB, timed(AB))
    assert "on each accelerator alone" in caught.value.hint


@pytest.mark.parametrize("step_s", [1e-4, 1e5])
def test_a_step_time_that_no_rate_explains_is_refused(step_s):
    with pytest.raises(UsageError, match=r"no rate of fast's kernels explains|do not tell") as caught:
        calibrate(PLACE, JOB, [TimedRun(A1, step_s)])
    assert caught.value.hint


def test_layer_times_of_a_calibrated_accelerator_are_calibrated_and_as_much_faster():
    times = [
        StepModel(PLACE, replace(JOB, calibration=own)).layers(PLACE.domain("a"), 1, 1, JOB.recompute[0])
        for own in ({}, {"fast": 2.0}, {"slow": 2.0})
    ]
    assert [each.trust for each in times] == [Trust.ASSUMED, Trust.CALIBRATED, Trust.ASSUMED]
    assert times[1].work[-1] == pytest.approx(times[0].work[-1] / 2)
    assert times[2].work[-1] == times[0].work[-1]
