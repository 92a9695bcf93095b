from __future__ import annotations

from dataclasses import replace
from itertools import count
from math import inf

import pytest

from strata.training.plan.planner import plan_training, problem_of
from strata.training.plan.relax import smallest
from strata.workload.job import Limits, Recompute
from tests.support.builders import card, domain, fleet, job, layers


def plan(fleet, job):
    return plan_training(fleet, job, clock=lambda: 0.0)


def reason(answer, token: str):
    return next(reason for reason in answer.decision.reasons if reason.token == token)


def grown(small, devices: int):
    """The fleet with so many more devices in its first domain."""
    first, *rest = small.domains
    return replace(small, domains=(replace(first, num_devices=first.num_devices + devices), *rest))


@pytest.mark.parametrize(("devices", "node"), [(2, 1), (2, 2), (4, 4)])
def test_the_devices_said_to_be_missing_are_enough_and_one_node_fewer_is_not(devices, node):
    small = fleet(domain("a", devices, per_node=node, accelerator=card(gib=12.0)))
    asked = job(layers(30, mparams=200.0, hidden_mib=1.0), batch=8, recompute=(Recompute.FULL,))
    answer = plan(small, asked)
    assert answer.decision.choice is None
    missing = int(reason(answer, "needs-devices").data["count"])
    assert missing % node == 0
    assert plan(grown(small, missing), asked).best is not None
    assert plan(grown(small, missing - node), asked).best is None


def test_where_recomputation_is_enough_that_is_what_strata_says():
    small = fleet(domain("a", 1, accelerator=card(gib=24.0)))
    asked = job(layers(6, hidden_mib=64.0), batch=8)
    answer = plan(small, asked)
    assert answer.decision.choice is None
    assert reason(answer, "fits-with-recompute").data["mode"] == "full"
    assert plan(small, replace(asked, recompute=(Recompute.NONE, Recompute.FULL))).best is not None


def test_where_no_card_computes_in_a_precision_those_that_all_have_are_named():
    answer = plan(fleet(domain("a"), domain("b")), job(layers(4), batch=8, precision="fp8"))
    assert answer.decision.choice is None
    assert (
        str(reason(answer, "needs-precision"))
        == "no device has a rate for fp8; all have one for fp32 or bf16 or fp16"
    )


def test_a_layer_no_device_can_hold_needs_more_devices_than_there_are():
    answer = plan(fleet(domain("a", 1, accelerator=card(gib=4.0))), job(layers(4, mparams=9000.0), batch=1))
    assert reason(answer, "needs-devices").data["count"].startswith("over ")


def test_a_budget_below_every_plan_names_the_budget_that_would_do():
    small, asked = fleet(domain("a"), domain("b")), job(layers(4), batch=16)
    answer = plan(small, replace(asked, limits=Limits(cost_usd_per_step=1e-9)))
    assert answer.decision.choice is None
    assert reason(answer, "needs-limit").data["limit"].startswith("cost")


def test_a_floor_above_every_plan_names_the_floor_that_would_do():
    small, asked = fleet(domain("a"), domain("b")), job(layers(4), batch=16)
    answer = plan(small, replace(asked, limits=Limits(tokens_per_s=1e15)))
    assert answer.decision.choice is None
    assert reason(answer, "needs-limit").data["limit"].endswith("tokens_per_s")
    assert answer.search.branches == 0, "no sharing reaches the floor: none is to be looked into for minutes"


def test_without_any_domain_there_is_nothing_to_relax():
    answer = plan(fleet(domain("a", 0)), job())
    assert [reason.token for reason in answer.decision.reasons] == ["no-accelerators"]


@pytest.mark.parametrize("named", ["devices", "limit"])
def test_where_time_is_out_before_a_relaxation_is_known_that_is_said_and_none_is_made_up(named):
    if named == "limit":
        asked = job(layers(4), batch=8, limits=Limits(cost_usd_per_step=1e-9))
    else:
        asked = job(layers(30, mparams=200.0, hidden_mib=1.0), batch=8)
    problem = problem_of(fleet(domain("a", 4, accelerator=card(gib=12.0))), asked)

    def within(looks: float) -> tuple[str, str]:
        ticks = count()
        [said] = smallest(problem, refusal=None, clock=lambda: float(next(ticks)), deadline=looks)
        return said.token, str(said.data.get("limit"))

    late, known = within(0.0), within(inf)
    assert (late[0], known[0]) == ("needs-unknown", f"needs-{'limit' if named == 'limit' else 'devices'}")
    assert {within(float(looks)) for looks in range(0, 400, 40)} == {late, known}
