"""A head that is tied to the embedding and lies on another stage: what its copy of the table takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from strata.simulate.analytic import StepModel
from strata.simulate.events.run import simulate
from strata.simulate.events.work import Job
from strata.simulate.timeline import SpanKind
from strata.training.plan.exact.problem import Problem
from strata.workload.huggingface import model
from strata.workload.job import Schedule
from strata.workload.layer_table import layer_table
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from strata.workload.profile import LayerProfile, LayerTimes
from tests.support.builders import domain, fleet, job, layers, link, tied
from tests.support.laws import examples
from tests.support.small_cases import every_plan, small_case

TABLE = 250e6
"""Parameters: gradients of half a gigabyte."""


def of_stages(*stages: Stage, replicas: int = 1, **more) -> TrainingPlan:
    return TrainingPlan((Pipeline(stages, replicas, 8),), 1, **more)


def across(*domains: str, **more) -> TrainingPlan:
    each = 12 // len(domains)
    stages = [Stage(name, i * each, each, 1, len(domains) - 1 - i) for i, name in enumerate(domains)]
    return of_stages(*stages, **more)


def models(place) -> tuple[StepModel, StepModel]:
    """Of a tied model, and of one that has two tables."""
    asked = job(tied(layers(10), TABLE))
    return StepModel(place, asked), StepModel(place, asked.untied)


def test_the_table_counts_once_where_one_stage_has_both_ends_and_twice_elsewhere():
    opt = model("opt-350m")
    bare, own = (layer_table(replace(opt, tied_embeddings=is_tied), 2048) for is_tied in (True, False))
    assert own.params.sum() - bare.params.sum() == bare.table_params == 50_272 * 512
    assert bare.untied.params.tolist() == own.params.tolist()
    place = fleet(domain("a"), domain("b"))
    one_stage, two_stages = (
        of_stages(Stage("a", 0, 26, 1)),
        of_stages(Stage("a", 0, 13, 1, 1), Stage("b", 13, 13, 1)),
    )

    def held(table):
        reports = StepModel(place, job(table)).reports([one_stage, two_stages])
        return [stage.memory_bytes for report in reports for stage in report.stages]

    once, twice = held(bare), held(own)
    # Weights, gradients and Adam's state take 16 bytes a parameter.
    assert twice[0] - once[0] == 16 * 50_272 * 512
    assert once[1:] == twice[1:]


def test_two_stages_sum_the_gradients_of_both_tables_over_the_link_between_them():
    ours, two_tables = models(fleet(domain("a"), domain("b"), gbps=8.0, ms=30.0))
    for copies in (1, 4):
        plan = across("a", "b", replicas=copies)
        tied_step, other = ours.details([plan])[0], two_tables.details([plan])[0]
        # Each way goes one table of each copy at 1 GB/s; a ring of two waits twice for the link.
        more_s = copies * 2 * TABLE / 1e9 + 2 * 0.03
        assert tied_step.step_time_s - other.step_time_s == pytest.approx(more_s)
        assert tied_step.wan_bytes_per_step - other.wan_bytes_per_step == copies * 2 * 2 * TABLE
        assert tied_step.breakdown_s["wan"] - other.breakdown_s["wan"] == pytest.approx(more_s)
        paid = tied_step.egress_usd_per_step - other.egress_usd_per_step
        assert paid == pytest.approx(copies * 2 * 2 * TABLE * 0.02e-9)


def test_the_events_draw_the_sum_of_both_tables():
    ours, _ = models(fleet(domain("a"), domain("b"), gbps=8.0))
    plan = across("a", "b", replicas=4)
    timeline = simulate([Job("job", ours, plan)], rng=np.random.default_rng(0)).timeline
    [lane, *_] = timeline.by_lane().values()
    kinds = [(span.label, span.end_s - span.start_s) for span in lane if span.kind is SpanKind.COLLECTIVE]
    times = ours.times(plan, plan.pipelines[0])
    assert kinds == [("sum of tied tables", pytest.approx(times.tables_s))]
    assert times.copies_s == 0  # it hides behind the last backward


def test_without_a_link_between_both_ends_the_gradients_go_through_the_stages_between():
    wires = [*link("a", "b", 8.0, 10.0), *link("b", "c", 4.0, 20.0)]
    ours, two_tables = models(fleet(domain("a"), domain("b"), domain("c"), links=wires))
    plan = across("a", "b", "c")
    more_s = ours.reports([plan])[0].step_time_s - two_tables.reports([plan])[0].step_time_s
    assert more_s == pytest.approx(2 * TABLE / 0.5e9 + 2 * 0.03)  # at the pace of the slower link


def test_inside_a_domain_they_go_over_what_joins_the_nodes():
    for per_node, bandwidth, latency_s in ((8, 300e9, 5e-6), (1, 50e9, 10e-6)):
        ours, two_tables = models(fleet(domain("a", per_node=per_node)))
        step, other = (each.details([across("a", "a")])[0] for each in (ours, two_tables))
        more_s = 2 * TABLE / bandwidth + 2 * latency_s
        assert step.step_time_s - other.step_time_s == pytest.approx(more_s)
        assert step.breakdown_s["sync"] - other.breakdown_s["sync"] == pytest.approx(more_s)
        assert step.wan_bytes_per_step == 0.0


def test_a_measured_head_updates_its_table_only_where_it_has_its_own():
    times = LayerTimes(np.full(12, 0.01), np.full(12, 0.02), np.full(12, 1e-3))
    place, table = fleet(domain("a"), domain("b")), tied(layers(10), 300e6)
    profile = LayerProfile({("card", 1, 1): times})
    alone, apart = of_stages(Stage("a", 0, 12, 1)), of_stages(Stage("a", 0, 1, 1), Stage("b", 1, 11, 1))
    measured = StepModel(place, job(table, profile=profile))
    update_s = [measured.times(plan, plan.pipelines[0]).update_s for plan in (alone, apart)]
    assert update_s == pytest.approx([11.25e-3, 11e-3])  # 100 of the head's 400 million parameters, or all


@examples(40)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_plans_of_a_tied_model_differ_from_those_of_two_tables_by_their_sum_alone(seed, drawn):
    """A plan whose ends lie together has one table."""
    place, asked = small_case(seed, profile=None)
    assume(asked.layers.kinds[-1] == "head")
    asked = replace(asked, layers=tied(asked.layers, 3e7))
    ours, two_tables = StepModel(place, asked), StepModel(place, asked.untied)
    plans = every_plan(Problem.of(place, asked), all_splits=False)
    assume(plans)
    plan, _ = plans[drawn % len(plans)]
    step, other = (each.reports([plan])[0] for each in (ours, two_tables))
    is_apart = len(plan.pipelines) == 1 and len(plan.pipelines[0].stages) > 1
    if not is_apart or plan.schedule is Schedule.DUAL_PIPE_V:
        assert step.step_time_s <= other.step_time_s
        return
    times = ours.times(plan, plan.pipelines[0])
    assert [s.memory_bytes for s in step.stages] == [s.memory_bytes for s in other.stages]
    assert step.step_time_s - other.step_time_s == pytest.approx(times.tables_s)
