from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import UsageError
from strata.training.plan.compare import plan_request
from strata.training.plan.planned import PlanRequest
from strata.training.plan.planner import plan_training
from strata.workload.job import Limits, Recompute
from strata.workload.pins import Pins
from strata.workload.profile import LayerProfile, LayerTimes
from tests.support.builders import card, domain, fleet, job, layers
from tests.support.laws import examples
from tests.support.small_cases import small_case

TWO = fleet(domain("a", 8, per_node=4), domain("b", 8, per_node=4))


def plan(place, asked):
    return plan_training(place, asked, clock=lambda: 0.0)


def timed_on(card: str) -> LayerProfile:
    return LayerProfile({(card, 1, 1): LayerTimes(*[np.full(6, 0.1)] * 3)})


def sizes(plan) -> Pins:
    (tensor,) = {stage.tensor_parallel for pipeline in plan.pipelines for stage in pipeline.stages}
    (depth,) = {len(pipeline.stages) for pipeline in plan.pipelines}
    return Pins(tensor, depth, sum(pipeline.replicas for pipeline in plan.pipelines), plan.microbatch_size)


@pytest.mark.parametrize(
    "pins",
    [Pins(tensor=2), Pins(pipeline=3), Pins(data=4), Pins(microbatch=4), Pins(tensor=4, pipeline=2),
     Pins(tensor=1, pipeline=2, data=4, microbatch=2), Pins(pipeline=2, data=3), Pins(virtual_stages=2),
     Pins(stages=(("a", 1), ("b", 3))), Pins(stages=(("b", 2),)), Pins(stages=(("a", 2), ("b", 2)), pipeline=2),
     Pins(stages=(("a", 3), ("b", 1)), tensor=2, data=1, microbatch=3)],
    ids=str,
)  # fmt: skip
def test_every_plan_has_the_sizes_that_the_job_fixes(pins):
    answer = plan(TWO, job(layers(8), batch=48, pins=pins))
    assert answer.plans
    for item in answer.plans:
        assert item.plan.keeps(pins)


def test_domains_that_the_job_puts_no_stage_in_take_no_part():
    answer = plan(TWO, job(layers(8), batch=48, pins=Pins(stages=(("b", 2),))))
    assert {item.plan.domains for item in answer.plans} == {("b",)}
    assert [str(r) for r in answer.decision.reasons if r.token == "no-stages-asked"] == [
        "a: parallel.stages has no stage in a"
    ]


def test_stages_for_which_a_domain_is_too_small_leave_no_plan():
    answer = plan(TWO, job(layers(8), batch=48, pins=Pins(stages=(("a", 5), ("b", 1)), tensor=2)))
    assert answer.best is None
    tokens = {reason.token for reason in answer.decision.reasons}
    assert {"devices-short", "pins-too-narrow"} <= tokens


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({"pins": Pins(stages=(("aa", 1),))}, r"parallel.stages: no domain 'aa' in .* \(did you mean 'a'\?\)"),
        ({"limits": Limits(domains=frozenset({"a", "aa"}))}, "limits.domains: no domain 'aa'"),
        ({"home": "aa"}, "home: no domain 'aa'"),
        ({"calibration": {"H800": 1.1}}, "calibration: no accelerator has the name 'H800'"),
        ({"profile": timed_on("H800")}, "profile: no accelerator has the name 'H800'"),
        ({"calibration": {"crad": 1.1}}, "calibration: no accelerator has the name 'crad'"),
    ],
)
def test_what_a_job_says_of_a_domain_or_a_card_that_nobody_has_is_refused(said, fault):
    with pytest.raises(UsageError, match=fault):
        plan_request(TWO, job(**said), PlanRequest(), clock=lambda: 0.0)


def test_a_job_is_calibrated_for_cards_of_other_fleets_too_by_their_whole_names():
    asked = job(layers(4), batch=8, calibration={"card": 1.1, "H800-SXM5-80GB": 1.1})
    assert plan_request(TWO, asked, PlanRequest(baselines=False), clock=lambda: 0.0).best


@examples(30)
@given(st.integers(0, 10**6))
def test_fixing_the_stages_that_the_best_plan_has_anyway_loses_nothing(seed):
    place, asked = small_case(seed)
    free = plan(place, asked)
    if free.best is None:
        return
    held = {(d, n) for p in free.best.plan.pipelines for d, n in Counter(s.domain for s in p.stages).items()}
    pinned = plan(place, replace(asked, pins=Pins(stages=tuple(sorted(held)))))
    assert pinned.best is not None
    assert pinned.best.score <= free.best.score * (1 + 2e-3)


def test_several_pipelines_share_the_copies_that_are_fixed():
    joined = fleet(domain("a", 8), domain("b", 8), gbps=800.0, ms=0.1)
    answer = plan(joined, job(layers(8), batch=48, pins=Pins(tensor=1, pipeline=1, data=12)))
    best = answer.plans[0].plan
    assert len(best.pipelines) == 2
    assert sum(pipeline.replicas for pipeline in best.pipelines) == 12


@pytest.mark.long("plans many small jobs twice")
@examples(30)
@given(st.integers(0, 10**6))
def test_fixing_what_the_best_plan_has_anyway_loses_nothing(seed):
    """It may win: copies that are fixed may leave a domain's devices idle, which a free search does not try."""
    place, asked = small_case(seed)
    free = plan(place, asked)
    if free.best is None or len({s.tensor_parallel for p in free.best.plan.pipelines for s in p.stages}) > 1:
        return
    if len({len(pipeline.stages) for pipeline in free.best.plan.pipelines}) > 1:
        return
    pinned = plan(place, replace(asked, pins=sizes(free.best.plan)))
    assert pinned.best is not None
    assert pinned.best.score <= free.best.score * (1 + 2e-3)


def test_where_the_pins_leave_no_plan_the_one_to_give_up_is_named():
    answer = plan(TWO, job(layers(8), batch=48, pins=Pins(tensor=4, pipeline=9)))
    assert answer.decision.choice is None
    (reason,) = [reason for reason in answer.decision.reasons if reason.token == "pins-too-narrow"]
    assert str(reason) == "no plan fits with parallel: tensor 4, pipeline 9; one does without pipeline"


def test_a_node_smaller_than_the_tensor_degree_is_left_out_with_its_reason():
    place = fleet(domain("a", 8, per_node=4), domain("b", 8))
    answer = plan(place, job(layers(8), batch=48, pins=Pins(tensor=8)))
    assert [plan.plan.domains for plan in answer.plans] == [("b",)]
    assert [(r.subject, r.token) for r in answer.decision.reasons if r.token == "node-too-small"] == [
        ("a", "node-too-small")
    ]


def test_what_would_not_fit_without_pins_either_says_what_is_missing():
    tight = fleet(domain("a", 1, accelerator=card(gib=4.0)))
    asked = job(layers(8), recompute=tuple(Recompute), pins=Pins(microbatch=2))
    assert {reason.token for reason in plan(tight, asked).decision.reasons} & {"needs-devices"}


def test_baselines_keep_the_pins_too():
    pins = Pins(tensor=2, microbatch=2)
    report = plan_request(TWO, job(layers(8), batch=48, pins=pins), PlanRequest(), clock=lambda: 0.0)
    found = [item.plan.plan for item in report.baselines.values() if item.plan is not None]
    assert found
    assert all(plan.keeps(pins) for plan in found)


def test_the_learned_policy_refuses_a_fixed_layout():
    with pytest.raises(UsageError, match="keeps no `parallel:`"):
        plan_request(TWO, job(pins=Pins(tensor=2)), PlanRequest(planner="hi-ppo"), clock=lambda: 0.0)
