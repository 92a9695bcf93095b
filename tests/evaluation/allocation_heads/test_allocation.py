"""Ratios become whole layers and samples, and those a plan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.evaluation.allocation_heads.allocation import WORST_REWARD, Allocator, largest_remainder
from strata.evaluation.allocation_heads.layered import Layered
from strata.training.plan.exact.problem import Problem
from strata.training.plan.planner import plan_training
from strata.workload.job import Schedule
from tests.support.builders import domain, fleet, job, layers, link


def no_time() -> float:
    return 0.0


def three() -> Problem:
    sites = fleet(domain("a", 16), domain("b", 16), domain("c", 8), gbps=50.0, ms=1.0)
    return Problem.of(sites, job(layers(22)))


def plan_of(problem: Problem, *ratios: float):
    found = Allocator(problem).allocate(np.array([ratios], dtype=float))[0]
    assert found.best is not None
    return found.best.plan


def layers_of(plan) -> dict[str, int]:
    (pipeline,) = plan.pipelines
    held: dict[str, int] = {}
    for stage in pipeline.stages:
        held[stage.domain] = held.get(stage.domain, 0) + stage.num_layers
    return held


@given(st.lists(st.floats(0, 1), min_size=1, max_size=32).filter(lambda r: sum(r) > 1e-6), st.integers(1, 2048))
def test_whole_shares_sum_exactly_and_none_is_a_whole_one_off(ratios, total):
    counts = np.array(largest_remainder(np.array(ratios), total))
    assert counts.sum() == total
    share = np.array(ratios) / sum(ratios)
    assert (np.abs(counts / total - share) < 1 / total + 1e-9).all()
    assert not counts[np.array(ratios) == 0].any()


def test_a_pipeline_holds_the_layers_it_is_given():
    for plan in Layered(three()).plans((12, 8, 4), most=3):
        assert layers_of(plan) == {"a": 12, "b": 8, "c": 4}


def test_a_pipeline_takes_the_best_order():
    ends = [*link("a", "b", 1, 80), *link("a", "c", 50, 1), *link("b", "c", 50, 1)]
    problem = Problem.of(fleet(domain("a"), domain("b"), domain("c"), links=ends), job(layers(22)))
    (plan,) = Layered(problem).plans((8, 8, 8), most=1)
    assert plan.pipelines[0].domains[1] == "c"


def test_a_shared_batch_is_done_whole_and_in_proportion():
    # Classic 1F1B would pay the latency at every microbatch; a sum of gradients pays it once.
    sites = fleet(domain("a", 16), domain("b", 16), domain("c", 8), gbps=800.0, ms=300.0)
    problem = Problem.of(sites, job(layers(22, gflops=40000.0), schedules=(Schedule.ONE_F_ONE_B,)))
    plan = plan_of(problem, 2, 2, 1)
    assert plan.kind == "dp"
    done = {
        pipeline.stages[0].domain: pipeline.replicas * pipeline.microbatches * plan.microbatch_size
        for pipeline in plan.pipelines
    }
    assert sum(done.values()) >= 64
    for name, share in zip("abc", largest_remainder(np.array([2.0, 2.0, 1.0]), 64), strict=True):
        whole = next(p.replicas for p in plan.pipelines if p.stages[0].domain == name) * plan.microbatch_size
        assert share <= done[name] < share + whole


def test_a_ratio_of_zero_drops_the_domain():
    assert set(plan_of(three(), 1, 0, 1).domains) == {"a", "c"}


def test_a_ratio_too_small_for_a_layer_and_a_sample_drops_the_domain():
    assert set(plan_of(three(), 1, 1, 1e-4).domains) == {"a", "b"}


def test_a_single_ratio_is_the_domains_own_best_plan():
    problem = three()
    alone = fleet(domain("a", 16))
    best = plan_training(alone, problem.job, clock=no_time).best
    found = Allocator(problem).allocate(np.array([[1.0, 0.0, 0.0]]))[0].best
    assert best is not None
    assert found is not None
    assert found.plan.kind == "single"
    assert found.plan.domains == ("a",)
    assert found.report.step_time_s == pytest.approx(best.report.step_time_s, rel=0.02)


def test_rows_do_not_know_of_each_other():
    problem, rows = three(), np.array([[1.0, 1, 1], [1, 0, 0], [2, 1, 1]])
    together = Allocator(problem).allocate(rows)
    alone = [Allocator(problem).allocate(row[None])[0] for row in rows]
    assert [item.best.plan for item in together if item.best] == [item.best.plan for item in alone if item.best]


def test_the_reward_is_the_seeds_efficiency_no_worse_than_the_worst():
    found = Allocator(three()).allocate(np.array([[1.0, 1.0, 1.0]]))[0]
    assert found.best is not None
    step_s = found.best.report.step_time_s
    assert found.reward(2 * step_s) == pytest.approx(0.5)
    assert found.reward(step_s) == 0.0
    assert found.reward(step_s / 100) == WORST_REWARD


def test_ratios_that_nothing_can_follow_have_the_worst_reward_and_a_reason():
    # No link joins the two, so neither activations nor gradients can cross.
    problem = Problem.of(fleet(domain("a"), domain("b"), links=[]), job())
    found = Allocator(problem).allocate(np.array([[1.0, 1.0], [1.0, 0.0]]))
    assert found[0].best is None
    assert found[0].reason is not None
    assert found[0].reason.token == "ratios-without-plan"
    assert found[0].reward(1.0) == WORST_REWARD
    assert found[1].best is not None


def test_every_plan_of_ratios_fits_memory():
    problem = three()
    for found in Allocator(problem).allocate(np.random.default_rng(0).dirichlet(np.ones(3), 8)):
        assert found.best is None or problem.model.fits(found.best.plan)


def test_no_ratios_beat_the_exact_search():
    sites, work = fleet(domain("a", 16), domain("b", 8), gbps=50.0, ms=1.0), job(layers(22))
    exact = plan_training(sites, work, clock=no_time).best
    assert exact is not None
    for found in Allocator(Problem.of(sites, work)).allocate(np.random.default_rng(0).dirichlet(np.ones(2), 16)):
        assert found.best is None or found.best.report.step_time_s >= exact.report.step_time_s * (1 - 1e-3)
