"""What was asked has a hash that any change of it changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.decision import Trust
from strata.fleet.fleet import BandwidthCurve
from strata.training.plan.compare import plan_request
from strata.training.plan.planned import PlanRequest
from strata.training.plan.request import inputs_digest
from tests.support.builders import domain, fleet, job, layers, link

LINKS = [*link("a", "b", 5, 30), *link("b", "c", 5, 30)]
FLEET, JOB = fleet(domain("a"), domain("b"), domain("c"), links=LINKS), job(layers(8))


@pytest.mark.parametrize(
    "changed",
    [
        {"bandwidth_bytes_per_s": 1e9},
        {"latency_s": 0.5},
        {"price_usd_per_byte": 1e-9},
        {"trust": Trust.MEASURED},
        {"curve": BandwidthCurve((1.0, 2.0))},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_link_that_changes_changes_the_hash_of_the_fleet(changed):
    other = FLEET.with_links([replace(FLEET.links["b", "c"], **changed)])
    (was, before), (now, after) = inputs_digest(FLEET, JOB), inputs_digest(other, JOB)
    assert before.fleet != after.fleet
    assert before.job == after.job
    assert was != now


def test_the_ends_of_a_link_are_part_of_the_hash():
    moved = fleet(*FLEET.domains, links=[*link("a", "b", 5, 30), *link("a", "c", 5, 30)])
    assert inputs_digest(FLEET, JOB)[1].fleet != inputs_digest(moved, JOB)[1].fleet


def test_a_fleet_without_links_has_a_hash():
    alone = fleet(domain("a"), links=[])
    assert inputs_digest(alone, JOB)[1].fleet == inputs_digest(replace(alone), JOB)[1].fleet


@pytest.mark.long("searches until a limit of time")
def test_out_of_time_a_front_has_what_the_ranked_plans_make_of_it():
    now_s = 0.0

    def planned(_report):
        nonlocal now_s
        now_s = 1e9

    asked = PlanRequest(baselines=False, pareto=True)
    report = plan_request(FLEET, JOB, asked, clock=lambda: now_s, planned=planned)
    assert not report.front_complete
    assert report.best in report.front
