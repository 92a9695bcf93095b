"""Plans whose domains deliver what they hold."""

from __future__ import annotations

import pytest

from strata.control.balance import balanced, by_devices, unevenness, work_shares
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.builders import job

JOB = job()
LAYERS = len(JOB.layers)


def shared(*parts):
    """Return a plan of one pipeline a part (copies, tensor-parallel degree, microbatches, samples)."""
    pipelines = [
        Pipeline((Stage(chr(97 + i), 0, LAYERS, degree),), copies, each, samples)
        for i, (copies, degree, each, samples) in enumerate(parts)
    ]
    return TrainingPlan(tuple(pipelines), 1)


def test_samples_are_spread_by_devices():
    plan = by_devices(shared((3, 4, 3, None), (1, 4, 3, 1)), 10)
    assert [plan.samples(pipeline) for pipeline in plan.pipelines] == [8, 2]
    assert plan.num_samples == 10


def test_who_has_another_degree_may_take_that_of_the_others():
    batch = JOB.global_batch
    plan = shared((4, 2, 1, 4), (2, 4, batch, (batch - 4) // 2), (2, 4, batch, batch - 4 - (batch - 4) // 2))
    ways = list(balanced(JOB, plan, fits=lambda _plan: True))
    assert len(ways) == 2
    assert ways[1].pipelines[0].stages[0].tensor_parallel == 4
    assert all(way.devices() == plan.devices() and way.num_samples == batch for way in ways)
    assert max(unevenness(JOB, way) for way in ways) < 1 / batch + 1e-9 < unevenness(JOB, plan)


def test_layers_move_to_who_has_too_few_and_no_stage_becomes_the_largest():
    each, more = divmod(LAYERS - 1, 3)  # stages of a domain
    counts = [2] * (each + 1 + more) + [1] * (each - 1 - more)
    stages, first = [], 0
    for i, count in enumerate(counts):
        stages.append(Stage("a" if i < each else "b", first, count, 1))
        first += count
    plan = TrainingPlan((Pipeline(tuple(stages), 1, JOB.global_batch),), 1)
    [way] = balanced(JOB, plan, fits=lambda _plan: True)
    moved = way.pipelines[0].stages
    assert unevenness(JOB, way) < unevenness(JOB, plan)
    assert [stage.first_layer for stage in moved] == [
        sum(s.num_layers for s in moved[:i]) for i in range(len(moved))
    ]
    assert sum(stage.num_layers for stage in moved) == LAYERS
    assert max(stage.num_layers for stage in moved) == 2


def test_what_does_not_fit_is_not_offered():
    plan = shared((3, 4, JOB.global_batch, JOB.global_batch - 1), (1, 4, 1, 1))
    assert not list(balanced(JOB, plan, fits=lambda _plan: False))


def test_shares_of_work_add_up():
    assert sum(work_shares(JOB, shared((3, 4, 3, None), (1, 4, 3, None))).values()) == pytest.approx(1.0)
