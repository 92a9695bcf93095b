from __future__ import annotations

import numpy as np
import pytest

from strata.simulate.gradient_shares import exchanged, shares
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, Stage, TrainingPlan

BEFORE = np.arange(11.0)  # ten layers of one parameter


def plan(virtual, *pipelines):
    schedule = Schedule.INTERLEAVED if virtual > 1 else Schedule.ONE_F_ONE_B
    return TrainingPlan(tuple(Pipeline(p, 1, 4) for p in pipelines), 1, schedule=schedule, virtual_stages=virtual)


def test_chunks_of_an_interleaved_stage_lie_in_several_places():
    stages = (Stage("a", 0, 5, 1), Stage("b", 5, 5, 1))
    straight, woven = (plan(v, stages) for v in (1, 2))
    assert shares(straight, straight.pipelines[0], BEFORE) == (("a", 0.0, 0.5), ("b", 0.5, 1.0))
    assert [name for name, _, _ in shares(woven, woven.pipelines[0], BEFORE)] == ["a", "b", "a", "b"]


def test_two_domains_exchange_what_all_chunks_of_theirs_have_in_common():
    woven = plan(2, (Stage("a", 0, 5, 1), Stage("b", 5, 5, 1)), (Stage("c", 0, 10, 1),))
    held = [shares(woven, pipeline, BEFORE) for pipeline in woven.pipelines]
    found = {(r, q, pair): share for r, q, pair, share in exchanged(held)}
    assert found == {
        (0, 1, ("a", "c")): pytest.approx(0.5), (0, 1, ("b", "c")): pytest.approx(0.5),
        (1, 0, ("c", "a")): pytest.approx(0.5), (1, 0, ("c", "b")): pytest.approx(0.5),
    }  # fmt: skip


def test_stages_of_one_domain_hold_one_piece_however_they_are_woven():
    woven = plan(2, (Stage("a", 0, 5, 1), Stage("a", 5, 5, 1)))
    assert shares(woven, woven.pipelines[0], BEFORE) == (("a", 0.0, 1.0),)
