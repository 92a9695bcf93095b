"""The cheapest plan that is nearly as fast as the fastest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.training.plan.compare import plan_request
from strata.training.plan.knee import SLOWER, WORTH, knee
from strata.training.plan.objective import money
from strata.training.plan.planned import PlanRequest
from strata.training.plan.planner import plan_training
from strata.workload.job import Limits, Objective
from tests.support.builders import domain, fleet, job, layers
from tests.support.laws import examples
from tests.support.small_cases import small_case

DEAR = fleet(domain("cheap", 16, price=1.0), domain("dear", 2, price=40.0), gbps=400, ms=1)


def answer(place, asked):
    return plan_training(place, asked, clock=lambda: 0.0)


@pytest.mark.long("every plan of small fleets")
@examples(30)
@given(st.integers(0, 10**6))
def test_no_plan_within_a_tenth_of_the_best_time_is_cheaper(seed):
    place, asked = small_case(seed)
    asked = replace(asked, objective=Objective.TIME, limits=Limits(memory_headroom=asked.limits.memory_headroom))
    place = replace(place, domains=tuple(replace(d, price_usd_per_device_hour=2.0) for d in place.domains))
    report = answer(place, asked)
    found = knee(report, clock=lambda: 0.0, deadline=1.0)
    if report.best is None:
        assert found is None
        return
    assert found is not None
    assert found.report.step_time_s <= (1 + SLOWER) * report.best.report.step_time_s * (1 + 1e-9)
    floor = report.best.report.tokens_per_s / (1 + SLOWER)
    limits = replace(asked.limits, tokens_per_s=floor)
    cheapest = answer(place, replace(asked, objective=Objective.COST, limits=limits)).best
    assert cheapest is None or money(found.report) <= money(cheapest.report) * (1 + WORTH) / (1 - WORTH)


def test_a_dear_domain_that_helps_little_is_left_out_of_the_knee():
    report = answer(DEAR, job(layers(30), batch=64))
    best, found = report.best, knee(report, clock=lambda: 0.0, deadline=1.0)
    assert best is not None
    assert found is not None
    assert "dear" in best.plan.domains
    assert found.plan.domains == ("cheap",)
    assert money(found.report) < money(best.report)


@pytest.mark.parametrize(
    ("place", "asked"),
    [
        (fleet(domain("a", price=None)), job()),
        (DEAR, job(objective=Objective.COST)),
        (fleet(domain("a", 0)), job()),
    ],
)
def test_without_prices_or_another_goal_there_is_no_knee(place, asked):
    assert knee(answer(place, asked), clock=lambda: 0.0, deadline=1.0) is None


def test_the_knee_is_in_the_answer_with_its_ratios():
    request = PlanRequest(baselines=False, top=1)
    data = plan_request(DEAR, job(layers(30), batch=64), request, clock=lambda: 0.0).to_dict(request, {})
    assert data["knee"]["cost_ratio"] < 1 < data["knee"]["step_time_ratio"] <= 1 + SLOWER
    assert data["knee"]["plan"]["rank"] > 1
