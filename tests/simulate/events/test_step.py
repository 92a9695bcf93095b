"""Events without contention are the recurrence; with a slower stage, jitter or another job they are slower."""

import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import assume, event, example, given
from hypothesis import strategies as st

from strata.fleet.fleet import Link
from strata.simulate.analytic import StepModel
from strata.simulate.events.run import simulate
from strata.simulate.events.work import Conditions, Job
from strata.simulate.order import in_turn, interleaved
from strata.simulate.timeline import SpanKind
from strata.training.plan.planner import plan_training
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.builders import GBPS, domain, fleet, job, layers
from tests.support.laws import examples
from tests.support.small_cases import every_plan, small_case


def run(model, *plans, seed=0, **more):
    jobs = [Job(f"job{i}", model, plan) for i, plan in enumerate(plans)]
    return simulate(jobs, rng=np.random.default_rng(seed), **more)


def step_s(model, plan, **more):
    return run(model, plan, **more).reports[0].step_time_s


def across(*, microbatches=8, replicas=1, warmup=1, domains=("a", "b"), **more):
    """A pipeline of one stage in each of two domains."""
    stages = (Stage(domains[0], 0, 5, 2, warmup), Stage(domains[1], 5, 5, 2))
    return TrainingPlan((Pipeline(stages, replicas, microbatches),), 1, **more)


def two_domains(*, gbps=5.0, ms=30.0):
    return StepModel(fleet(domain("a"), domain("b"), gbps=gbps, ms=ms), job())


@pytest.mark.long("a law over every plan of small fleets")
@given(seed=st.integers(0, 2**32 - 1))
@example(57907)  # a profile whose backwards take less than half of the forwards, under ZB-H1
@examples(25)
def test_without_contention_the_events_are_the_recurrence(seed):
    hardware, work = small_case(seed, schedules=tuple(Schedule))
    problem = plan_training(hardware, work, clock=time.perf_counter, time_limit_s=1, rank=1).problem
    plans = [plan for plan, report in every_plan(problem) if np.isfinite(report.step_time_s)]
    chosen = np.random.default_rng(seed).permutation(len(plans))[:5]
    for plan in (plans[i] for i in chosen):
        expected = problem.model.reports([plan])[0].to_dict()
        found = run(problem.model, plan).reports[0].to_dict()
        for name in ("stages", "breakdown_s", "trust"):
            assert found.pop(name) == expected.pop(name)
        assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("schedule", [Schedule.ONE_F_ONE_B, Schedule.GPIPE])
def test_gradient_sums_copies_and_local_steps_are_the_recurrences(schedule):
    hardware = fleet(*(domain(name, 16) for name in "abc"), gbps=0.5)
    model = StepModel(hardware, job(layers(mparams=900)))
    for local_steps, members in ((1, "abc"), (8, "ab")):
        pipelines = tuple(Pipeline((Stage(name, 0, 10, 4),), 2, 4 + i) for i, name in enumerate(members))
        plan = TrainingPlan(pipelines, 1, schedule, local_steps=local_steps)
        assert step_s(model, plan) == pytest.approx(model.reports([plan])[0].step_time_s, rel=1e-12)


@given(seed=st.integers(0, 2**32 - 1))
@examples(40)
def test_sums_over_unlike_links_take_what_the_best_of_ring_direct_and_star_takes(seed):
    rng = np.random.default_rng(seed)
    names = "abcde"[: int(rng.integers(2, 6))]
    links = [
        Link(a, b, 10 ** rng.uniform(-1, 2) * GBPS, float(rng.choice([0.0, 0.01, 0.3])))
        for a, b in permutations(names, 2)
        if len(names) < 3 or rng.random() < 0.9 or names[0] in (a, b)
    ]
    model = StepModel(fleet(*map(domain, names), links=links), job(layers(mparams=float(rng.choice([1, 900])))))
    pipelines = [Pipeline((Stage(name, 0, 10, 4),), 1, 2) for name in names]
    if len(names) > 3:  # one that holds the model in two domains
        pipelines[2:4] = [Pipeline((Stage("c", 0, 3, 4, 1), Stage("d", 3, 7, 4)), 1, 2)]
    plan = TrainingPlan(tuple(pipelines), 1)
    assume(len(names) < 4 or {("c", "d"), ("d", "c")} <= model.fleet.links.keys())
    expected = model.reports([plan])[0].step_time_s
    assume(np.isfinite(expected))
    event(model.all_reduce(plan).algorithm)
    assert step_s(model, plan) == pytest.approx(expected, rel=1e-9)


@given(st.integers(1, 12), st.integers(0, 14))
def test_a_stage_does_all_its_work_once_each_forward_before_its_backward(microbatches, warmup):
    work = in_turn(warmup, microbatches)
    forwards = [w.microbatch for w in work if w.kind is SpanKind.FORWARD]
    assert forwards == [w.microbatch for w in work if w.kind is SpanKind.BACKWARD] == list(range(microbatches))
    first_backward = next(i for i, w in enumerate(work) if w.kind is SpanKind.BACKWARD)
    assert first_backward == min(warmup + (warmup < microbatches), microbatches)


@given(stages=st.integers(1, 5), groups=st.integers(1, 4), chunks=st.integers(1, 4))
@examples(30)
def test_interleaved_stages_do_all_work_once(stages, groups, chunks):
    for stage in range(stages):
        order = interleaved(stage, stages, stages * groups, chunks)
        assert Counter(order).most_common(1)[0][1] == 1
        assert len(order) == 2 * stages * groups * chunks
    if chunks == 1:
        assert interleaved(stages - 1, stages, 4, 1) == in_turn(0, 4)


def test_a_straggler_of_one_stage_slows_the_step_as_if_its_layers_were_longer():
    model, plan = two_domains(), across(microbatches=1, warmup=0)
    slow = Job("slow", model, plan, stragglers={(0, 1): 3.0})
    times = model.times(plan, plan.pipelines[0])
    expected = step_s(model, plan) + 2 * (times.forward_s[1] + times.backward_s[1])
    found = simulate([slow], rng=np.random.default_rng(0)).reports[0].step_time_s
    assert found == pytest.approx(expected)


def test_a_seed_is_one_run_and_another_seed_another():
    model, plan = two_domains(), across(replicas=2)
    jittery = Conditions(jitter=0.05)
    first, again, other = (run(model, plan, seed=seed, conditions=jittery) for seed in (1, 1, 2))
    assert first == again
    assert first.reports[0].step_time_s != other.reports[0].step_time_s


def test_jitter_keeps_the_mean_of_a_lone_stage():
    model = two_domains()
    plan = TrainingPlan((Pipeline((Stage("a", 0, 10, 2),), 1, 400),), 1)
    noisy = step_s(model, plan, conditions=Conditions(jitter=0.1), steps=3)
    assert noisy == pytest.approx(step_s(model, plan), rel=0.02)


def test_two_jobs_on_one_link_are_slower_than_one_alone():
    model, plan = two_domains(gbps=0.5, ms=1), across()
    alone = step_s(model, plan)
    both = run(model, plan, plan).reports
    assert both[0].step_time_s == both[1].step_time_s > 1.5 * alone


def test_jobs_over_different_links_of_a_site_share_its_uplink():
    sites = [replace(domain(name), uplink_bytes_per_s=GBPS if name == "a" else None) for name in "abc"]
    wide, narrow = (
        StepModel(fleet(*hardware, gbps=5.0, ms=0.0), job(layers(hidden_mib=64.0)))
        for hardware in ([domain(name) for name in "abc"], sites)
    )
    plans = [across(domains=("a", "b")), across(domains=("a", "c"))]
    for model, factor in ((wide, 1.0), (narrow, 1.5)):
        alone = step_s(model, plans[0])
        assert alone == pytest.approx(model.reports(plans[:1])[0].step_time_s)
        together = [report.step_time_s for report in run(model, *plans).reports]
        assert together[0] == pytest.approx(together[1])
        assert together[0] >= factor * alone * (1 - 1e-9)
        assert together[0] <= 2 * alone


def test_copies_share_the_link_whether_they_are_simulated_together_or_apart():
    model, plan = two_domains(gbps=0.5), across(replicas=4)
    apart = step_s(model, plan, conditions=Conditions(jitter=1e-13))
    assert apart == pytest.approx(step_s(model, plan), rel=1e-9)


def test_the_critical_path_is_a_chain_from_the_start_to_the_end():
    model, plan = two_domains(gbps=1), across(microbatches=6, warmup=3)
    timeline = run(model, plan, steps=2).timeline
    chain = sorted((s for s in timeline.spans if s.is_critical), key=lambda s: s.start_s)
    assert chain[0].start_s == 0
    assert chain[-1].end_s == timeline.end_s
    # The only gaps are the latencies of the link: what a chain waits for has ended before.
    gaps = [after.start_s - before.end_s for before, after in pairwise(chain)]
    assert min(gaps) > -1e-12
    assert all(gap < 1e-9 or gap == pytest.approx(0.03) for gap in gaps)


@pytest.mark.long("a law over every plan of small fleets")
@given(seed=st.integers(0, 2**32 - 1))
@examples(25)
def test_links_that_are_not_shared_give_the_analytic_step_whatever_crosses_them(seed):
    hardware, work = small_case(seed, schedules=(Schedule.ONE_F_ONE_B, Schedule.LATENCY_AWARE, Schedule.GPIPE))
    problem = plan_training(hardware, work, clock=time.perf_counter, time_limit_s=1, rank=1).problem
    plans = [plan for plan, report in every_plan(problem) if np.isfinite(report.step_time_s)]
    assume(plans)
    plan = plans[seed % len(plans)]
    expected_s = problem.model.reports([plan])[0].step_time_s
    # Two jobs on the same links: each takes what it takes alone, and its timeline ends with it.
    ran = run(problem.model, plan, plan, are_links_shared=False)
    assert [report.step_time_s for report in ran.reports] == pytest.approx([expected_s] * 2, rel=1e-9)
    if plan.local_steps == 1:
        assert ran.timeline.end_s == pytest.approx(expected_s, rel=1e-9)


def test_lanes_never_hold_two_things_at_once():
    model = StepModel(fleet(domain("a"), domain("b"), domain("c"), gbps=1), job())
    plans = (across(replicas=2), across(domains=("c", "b")))
    for conditions in (Conditions(), Conditions(jitter=0.1)):
        timeline = run(model, *plans, conditions=conditions).timeline
        for spans in timeline.by_lane().values():
            assert all(a.end_s <= b.start_s + 1e-12 for a, b in pairwise(spans))
        assert {span.kind for span in timeline.spans} >= {SpanKind.FORWARD, SpanKind.TRANSFER, SpanKind.UPDATE}
