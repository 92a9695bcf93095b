"""Failures and link variation cost what hand arithmetic says."""

import numpy as np
import pytest

from strata.errors import UsageError
from strata.fleet.dynamics.noise import Uniform
from strata.fleet.dynamics.replay import Replay
from strata.simulate.analytic import StepModel
from strata.simulate.events.run import simulate
from strata.simulate.events.work import Conditions, DeviceFailure, Job, LinkFailure, LinkVariation, parse_failure
from strata.simulate.timeline import SpanKind
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.builders import domain, fleet, job

MODEL = StepModel(fleet(domain("a"), domain("b"), domain("c-d"), gbps=1.0, ms=10.0), job())
PLAN = TrainingPlan((Pipeline((Stage("a", 0, 5, 2, 0), Stage("b", 5, 5, 2)), 1, 1),), 1)
STEP_S = MODEL.reports([PLAN])[0].step_time_s


def run(*failures, steps=1, seed=0, jobs=1, **more):
    running = [Job(f"job{i}", MODEL, PLAN) for i in range(jobs)]
    conditions = Conditions(failures=failures, **more)
    return simulate(running, rng=np.random.default_rng(seed), steps=steps, conditions=conditions)


def total_s(*failures, steps=1, **more):
    return run(*failures, steps=steps, **more).reports[0].step_time_s * steps


@pytest.mark.parametrize(("every", "lost_steps"), [(1, 0), (2, 1), (4, 3), (10, 3)])
def test_a_failure_costs_the_work_since_the_checkpoint_and_the_restart(every, lost_steps):
    failure = DeviceFailure("b", 3.25 * STEP_S)
    found = total_s(failure, steps=6, checkpoint_steps=every, restart_s=100.0)
    assert found == pytest.approx(6 * STEP_S + (lost_steps + 0.25) * STEP_S + 100.0)


def test_a_failure_during_the_restart_starts_it_again():
    failures = DeviceFailure("a", 0.5 * STEP_S), DeviceFailure("b", 0.5 * STEP_S + 40)
    assert total_s(*failures, restart_s=100.0) == pytest.approx(1.5 * STEP_S + 140)


def test_a_failure_elsewhere_or_after_the_end_costs_nothing():
    assert total_s(DeviceFailure("c-d", 0.1), DeviceFailure("a", 1e6), restart_s=100.0) == pytest.approx(STEP_S)


def test_steps_run_again_send_their_bytes_again():
    found = run(DeviceFailure("b", 1.5 * STEP_S), steps=2).reports[0]
    assert found.wan_bytes_per_step == pytest.approx(1.5 * MODEL.reports([PLAN])[0].wan_bytes_per_step)
    assert found.egress_usd_per_step == pytest.approx(1.5 * MODEL.reports([PLAN])[0].egress_usd_per_step)


def test_the_failure_is_drawn_on_every_stage():
    spans = [s for s in run(DeviceFailure("b", 1.0), restart_s=50.0).timeline.spans if s.kind is SpanKind.FAILURE]
    assert [(span.start_s, span.end_s) for span in spans] == [(1.0, 51.0)] * 2


def test_the_flows_of_a_failed_job_leave_the_link_to_the_others():
    alone_s, restart_s = STEP_S, 1e4
    both = run(DeviceFailure("a", 0.1), jobs=2, restart_s=restart_s).reports
    assert both[0].step_time_s == both[1].step_time_s == pytest.approx(0.1 + restart_s + _two_jobs_s())
    assert _two_jobs_s() > alone_s


def _two_jobs_s():
    return run(jobs=2).reports[0].step_time_s


def test_a_cable_cut_while_a_message_crosses_it_costs_the_cut():
    forward_s = MODEL.times(PLAN, PLAN.pipelines[0]).forward_s[0]
    cut = LinkFailure("b", "a", forward_s + 0.01, 7.0)
    assert total_s(cut) == pytest.approx(STEP_S + 7.0)


def test_a_cable_cut_while_nobody_sends_costs_nothing():
    assert total_s(LinkFailure("a", "b", 0.0, 0.001)) == pytest.approx(STEP_S)


def test_links_at_half_their_bandwidth_take_twice_the_serialisation():
    hop = MODEL.times(PLAN, PLAN.pipelines[0]).there[0]
    half = Replay(np.array([0.0]), np.full((1, len(MODEL.fleet.links)), 0.5))
    assert total_s(link_variation=LinkVariation(1.0, bandwidth=half)) == pytest.approx(STEP_S + 2 * hop.serial_s)
    assert total_s(link_variation=LinkVariation(1.0, latency=half)) == pytest.approx(STEP_S - hop.latency_s)


def test_weather_is_the_same_for_a_seed_whatever_runs():
    link_variation = LinkVariation(0.5, Uniform(0.5), Uniform(0.5))
    first, again, other = (run(seed=seed, link_variation=link_variation) for seed in (3, 3, 4))
    assert first == again
    assert first.reports != other.reports


def test_failures_are_read_also_where_a_name_holds_a_hyphen():
    assert parse_failure("device:c-d@90s", MODEL.fleet) == DeviceFailure("c-d", 90.0)
    assert parse_failure("link:a-c-d@1min+500ms", MODEL.fleet) == LinkFailure("a", "c-d", 60.0, 0.5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("device:West@3s", "no domain 'West'"),
        ("link:a-West@3s+1s", "no link 'a-West'"),
        ("link:a-b@3s", "cannot read the failure"),
        ("device:a", "cannot read the failure"),
        ("fire:a@3s", "cannot read the failure"),
        ("device:a@-3s", "negative"),
        ("device:a@3", "no unit"),
    ],
)
def test_what_is_no_failure_is_refused(text, says):
    with pytest.raises(UsageError, match=says):
        parse_failure(text, MODEL.fleet)


def test_what_is_only_assumed_says_so():
    assert run().reports[0].trust == MODEL.reports([PLAN])[0].trust
    assert run(jitter=0.1).reports[0].trust == "assumed"


def test_the_critical_path_leads_through_the_failure_back_to_the_first_step():
    failure = DeviceFailure("b", 1.5 * STEP_S)
    chain = [s for s in run(failure, steps=3, restart_s=50.0).timeline.spans if s.is_critical]
    assert min(span.start_s for span in chain) == 0
    assert SpanKind.FAILURE in {span.kind for span in chain}
