"""Orders of work stepped through level by level: published bubbles, and the recurrence of 1F1B."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strata.errors import UsageError
from strata.simulate.analytic import StepModel
from strata.simulate.order import dual_pipe_v, in_turn, interleaved, zero_bubble
from strata.simulate.ordered import Wires, ordered_s
from strata.simulate.pipeline import StageTimes, recurrence_s
from strata.simulate.screening import folded_bound_s, zero_bubble_share
from strata.simulate.timeline import SpanKind
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.builders import domain, fleet, job, layers
from tests.support.laws import examples


def alike(orders, *, busy=(1.0, 2.0, 0.0), **more):
    """Step time of equal stages without wires."""
    stages = len(orders)
    none = np.zeros((1, 2 * stages))
    seconds = np.repeat(np.array(busy)[None, :, None], stages, axis=2)
    return float(ordered_s(seconds, Wires(none, none), tuple(map(tuple, orders)), **more)[0])


@pytest.mark.parametrize(("stages", "rounds", "chunks"), [(2, 1, 2), (4, 2, 2), (4, 3, 4), (8, 1, 3)])
def test_interleaving_divides_the_bubble_by_the_chunks(stages, rounds, chunks):
    """arXiv 2104.04473 §2.2: a bubble of (p - 1)(f + b) / v."""
    count = stages * rounds
    orders = [interleaved(s, stages, count, chunks) for s in range(stages)]
    found = alike(orders, busy=(1 / chunks, 2 / chunks, 0.0))
    assert found == pytest.approx(3 * count + 3 * (stages - 1) / chunks)


@given(st.integers(1, 8), st.integers(1, 30), st.integers(1, 4))
@example(16, 120, 2)
@examples(60)
def test_no_number_of_microbatches_makes_interleaved_stages_wait_in_a_circle(stages, count, chunks):
    orders = [interleaved(s, stages, count, chunks) for s in range(stages)]
    step_s = alike(orders, busy=(1 / chunks, 2 / chunks, 0.0))
    assert 3 * count + 3 * (stages - 1) / chunks <= step_s + 1e-9 <= 3 * (count + stages * chunks)


@pytest.mark.parametrize(("stages", "count"), [(2, 2), (4, 4), (4, 12), (8, 30)])
def test_weight_gradients_that_wait_leave_a_third_of_the_bubble(stages, count):
    """arXiv 2401.10241, table 1: (p - 1)(T_F + T_B - T_W) under ZB-H1, a third of 1F1B's where all are alike."""
    orders = [zero_bubble(s, stages, count) for s in range(stages)]
    assert alike(orders, busy=(1.0, 1.0, 1.0)) == pytest.approx(3 * count + stages - 1)


@pytest.mark.parametrize(("stages", "count"), [(2, 4), (2, 7), (3, 6), (4, 8), (8, 30)])
def test_forwards_beside_backwards_leave_the_published_bubble(stages, count):
    """(PP/2 - 1)(F&B + B - 3W) of PP chunks, two a stage: the table in github.com/deepseek-ai/DualPipe."""
    forward, inputs, weight = 1.0, 1.0, 1.0
    orders = [dual_pipe_v(s, stages, count) for s in range(stages)]
    whole, beside = inputs + weight, forward + inputs + weight
    step_s = alike(orders, busy=(forward, inputs, weight, whole, beside), is_folded=True)
    assert step_s == pytest.approx(2 * count * beside + (stages - 1) * (beside + whole - 3 * weight))


@given(stages=st.integers(1, 6), more=st.integers(0, 9))
@examples(40)
def test_folded_stages_do_all_work_once_and_hold_one_chunk_more_than_there_are(stages, more):
    for stage in range(stages):
        order = dual_pipe_v(stage, stages, 2 * stages + more)
        place = {work.bare: at for at, work in enumerate(order)}
        assert len(place) == len(order)
        held = most = 0
        for at, work in enumerate(order):
            if work.kind is SpanKind.FORWARD:
                held += 1
                assert at < place[work.bare._replace(kind=SpanKind.BACKWARD)]
            elif work.kind is SpanKind.WEIGHT or work.is_whole:
                held -= 1
            if work.is_beside:
                assert order[at + 1].is_whole
                assert order[at + 1].chunk != work.chunk
            most = max(most, held)
        assert (held, most) == (0, 2 * stages + 1)


def test_fewer_microbatches_than_two_a_stage_cannot_be_folded():
    with pytest.raises(UsageError, match="dualpipev takes two microbatches a stage: 7 are fewer than 8"):
        dual_pipe_v(0, 4, 7)


@given(st.integers(0, 10**6))
@examples(40)
def test_folded_pipelines_take_no_less_than_their_bound(seed):
    rng = np.random.default_rng(seed)
    stages, more = int(rng.integers(2, 5)), int(rng.integers(0, 6))
    times = [rng.uniform(0, 1, (1, stages)) for _ in range(2)]
    links = [rng.uniform(0, 0.3, (1, stages - 1)) for _ in range(2)]
    weight = np.minimum(times[0], times[1] / 2) * rng.uniform(0, 1)
    busy = np.stack([times[0], times[1] - weight, weight, times[1], sum(times)], axis=1) / 2
    wires = [np.zeros((1, 2 * stages)) for _ in range(2)]
    for wire, link in zip(wires, links, strict=True):
        wire[:, :-2:2] = wire[:, 3::2] = link
    orders = tuple(tuple(dual_pipe_v(s, stages, 2 * stages + more)) for s in range(stages))
    step_s = ordered_s(busy, Wires(*wires), orders, is_folded=True)
    bound_s = folded_bound_s(StageTimes(*times, *links), 2 * stages + more, weight)
    assert bound_s <= step_s * (1 + 1e-9)


@given(st.integers(0, 10**6))
@examples(40)
def test_one_forward_and_one_backward_in_turn_is_the_recurrence(seed):
    rng = np.random.default_rng(seed)
    stages, count = int(rng.integers(1, 6)), int(rng.integers(1, 9))
    warmup = np.array([stages - 1 - s for s in range(stages)]) + int(rng.integers(0, 3))
    busy, links = rng.uniform(0, 1, (3, 3, stages)), rng.uniform(0, 1, (4, 3, stages))
    busy[:, 2] = 0.0
    wires = [np.zeros((3, 2 * stages)) for _ in range(2)]
    for way in (0, 1):  # wire 2 i to the next stage, 2 i + 1 to the one before
        for wire, rows in zip(wires, links[2 * way :], strict=False):
            wire[:, way::2] = rows
    found = ordered_s(busy, Wires(*wires), tuple(tuple(in_turn(int(w), count)) for w in warmup))
    times = StageTimes(
        busy[:, 0], busy[:, 1], links[0][:, :-1], links[1][:, :-1], links[2][:, 1:], links[3][:, 1:]
    )
    np.testing.assert_allclose(found, recurrence_s(times, count, warmup))


@pytest.mark.parametrize("schedule", [Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE, Schedule.DUAL_PIPE_V])
def test_of_very_many_operations_the_pace_is_taken_from_fewer(schedule, monkeypatch):
    model = StepModel(fleet(domain("a")), job(layers(6), batch=256))
    pipeline = Pipeline(tuple(Stage("a", 2 * i, 2, 2, 3 - i) for i in range(4)), 1, 256)
    plan = TrainingPlan((pipeline,), 1, schedule, virtual_stages=1 if schedule is Schedule.ZERO_BUBBLE else 2)
    whole = model.reports([plan])[0].step_time_s
    monkeypatch.setattr("strata.simulate.pipeline_times.MOST_WORK", 1 << 10)
    # Two folded microbatches in turn take a little unlike, by the wires between stages.
    near = 1e-4 if schedule is Schedule.DUAL_PIPE_V else 1e-9
    assert StepModel(model.fleet, model.job).reports([plan])[0].step_time_s == pytest.approx(whole, rel=near)


def test_a_schedule_without_chunks_takes_as_long_whatever_a_plan_says_of_them():
    model = StepModel(fleet(domain("a")), job(layers(6), batch=8))
    pipeline = Pipeline(tuple(Stage("a", 2 * i, 2, 2, 3 - i) for i in range(4)), 1, 8)
    plain = TrainingPlan((pipeline,), 1, Schedule.ZERO_BUBBLE)
    steps = [report.step_time_s for report in model.reports([plain, replace(plain, virtual_stages=2)])]
    assert steps[0] == steps[1]


def test_chunks_go_back_to_the_first_stage_over_a_wire():
    near = domain("a")
    far = replace(near, intra_latency_s=0.1)
    pipeline = Pipeline((Stage("a", 0, 4, 1, 1), Stage("a", 4, 4, 1)), 1, 2)
    plan = TrainingPlan((pipeline,), 1, Schedule.INTERLEAVED, virtual_stages=2)
    quick, slow = (StepModel(fleet(d), job(layers(6), batch=2)).reports([plan])[0] for d in (near, far))
    assert slow.step_time_s > quick.step_time_s + 0.5  # three hops down and three up


@given(st.integers(2, 5), st.integers(1, 17), st.integers(1, 4))
def test_no_backward_comes_before_its_own_forward(stages, microbatches, chunks):
    for stage in range(stages):
        place = {work: n for n, work in enumerate(interleaved(stage, stages, microbatches, chunks))}
        for work, n in place.items():
            if work.kind is SpanKind.BACKWARD:
                assert place[work._replace(kind=SpanKind.FORWARD)] < n


@given(st.integers(0, 10**6))
@examples(60)
def test_no_split_of_the_work_beats_the_bound_of_zero_bubble_over_all_splits(seed):
    rng = np.random.default_rng(seed)
    stages, count = int(rng.integers(1, 6)), int(rng.integers(1, 9))
    work, share = rng.uniform(0, 1, stages), float(rng.uniform(0, 1 / 3))
    weight = work * share * rng.uniform(0, 1, stages)
    forward = (work - weight) * rng.uniform(0, 1, stages)
    busy, none = np.stack([forward, work - weight - forward, weight])[None], np.zeros((1, 2 * stages))
    orders = tuple(tuple(zero_bubble(s, stages, count)) for s in range(stages))
    least_s = zero_bubble_share(stages, count, share) * work.sum()
    assert least_s <= float(ordered_s(busy, Wires(none, none), orders)[0]) * (1 + 1e-9)
