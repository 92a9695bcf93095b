"""The analytic timeline against the recurrence and the reports it illustrates."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.errors import UsageError
from strata.simulate.analytic import PipelineTimes, stack
from strata.simulate.analytic_timeline import pipeline_timeline, plan_timeline
from strata.simulate.collective import eta
from strata.simulate.pipeline import recurrence_s
from strata.simulate.timeline import gaps, is_stage
from strata.simulate.traffic import Hop
from strata.training.plan.exact.problem import Problem
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.small_cases import every_plan, small_case

SEEDS = st.integers(0, 2**32 - 1)


def random_pipeline(seed):
    """A pipeline over three domains, some visited again, with its times."""
    rng = np.random.default_rng(seed)
    stages, microbatches = int(rng.integers(1, 6)), int(rng.integers(1, 10))
    warmups = np.cumsum(rng.integers(1, 4, stages))[::-1] - 1
    pipeline = Pipeline(
        tuple(Stage("ABC"[rng.integers(3)], i, 1, 1, int(warmups[i])) for i in range(stages)), 1, microbatches
    )

    def hop(is_wide):
        return Hop(*rng.uniform(0, 2, 2), wan_bytes=1.0) if is_wide else Hop(float(rng.uniform(0, 0.2)), 0.0)

    wide = [a.domain != b.domain for a, b in pairwise(pipeline.stages)]
    there, back = (tuple(map(hop, wide)) for _ in range(2))
    forward, backward = (tuple(rng.uniform(0.1, 2, stages).tolist()) for _ in range(2))
    return pipeline, PipelineTimes(forward, backward, forward, 0.0, there, back)


@given(seed=SEEDS)
@settings(max_examples=80, deadline=None)
def test_a_pipelines_timeline_ends_when_the_recurrence_says(seed):
    pipeline, times = random_pipeline(seed)
    timeline = pipeline_timeline(times, pipeline, prefix="job/")
    warmup = np.array([[stage.warmup for stage in pipeline.stages]])
    expected = recurrence_s(stack([times]), pipeline.microbatches, warmup)[0]
    assert timeline.end_s == pytest.approx(expected, rel=1e-12)


@given(seed=SEEDS)
@settings(max_examples=80, deadline=None)
def test_a_lane_does_one_thing_at_a_time_and_every_message_once(seed):
    pipeline, times = random_pipeline(seed)
    by_lane = pipeline_timeline(times, pipeline, prefix="job/").by_lane()
    wide = sum(hop.wan_bytes > 0 for hop in (*times.there, *times.back))
    assert len(by_lane) == len(pipeline.stages) + wide
    for lane, spans in by_lane.items():
        assert all(a.end_s <= b.start_s for a, b in pairwise(spans))
        assert len(spans) == pipeline.microbatches * (2 if "/stage" in lane else 1)


@given(seed=SEEDS)
@settings(max_examples=80, deadline=None)
def test_the_critical_path_with_its_waits_explains_the_whole_step(seed):
    pipeline, times = random_pipeline(seed)
    timeline = pipeline_timeline(times, pipeline, prefix="job/")
    chain = sorted((span for span in timeline.spans if span.is_critical), key=lambda span: span.start_s)
    assert chain[0].start_s == 0.0
    assert chain[-1].end_s == timeline.end_s
    # Between two of them lies at most what is not drawn: a latency, or a message inside a domain.
    waits = [hop.latency_s if hop.wan_bytes else hop.serial_s for hop in (*times.there, *times.back)]
    for a, b in pairwise(chain):
        assert -1e-12 <= b.start_s - a.end_s <= max(waits, default=0.0) + 1e-12


@given(seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_a_plans_timeline_ends_at_its_step_time_and_its_stages_work_or_idle(seed):
    problem = Problem.of(*small_case(seed, most_domains=2))
    plans = [(plan, report) for plan, report in every_plan(problem) if plan.schedule is not Schedule.INTERLEAVED]
    for plan, report in plans[:: 1 + len(plans) // 10]:
        timeline = plan_timeline(problem.model, plan, job="job")
        penalty = eta(plan.local_steps) - 1  # more tokens for the same model, which takes no time in this step
        assert timeline.end_s == pytest.approx(report.step_time_s, rel=1e-9 + penalty)
        stages = [spans for spans in timeline.by_lane().values() if is_stage(spans)]
        assert len(stages) == sum(len(pipeline.stages) for pipeline in plan.pipelines)
        for spans in stages:
            idle_s = sum(end - start for start, end in gaps(spans, timeline.end_s))
            busy_s = sum(span.end_s - span.start_s for span in spans)
            assert idle_s + busy_s == pytest.approx(timeline.end_s, rel=1e-9)


def test_an_interleaved_schedule_has_no_analytic_timeline():
    plan = TrainingPlan((Pipeline((Stage("a", 0, 1, 1),), 1, 1),), 1, schedule=Schedule.INTERLEAVED)
    with pytest.raises(UsageError, match="interleaved"):
        plan_timeline(Problem.of(*small_case(0)).model, plan, job="job")
