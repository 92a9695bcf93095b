from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from strata.training.hi_ppo.capacity import capacity, delivered
from strata.training.hi_ppo.coordinator import Coordinator, SchedulingState
from strata.training.hi_ppo.domain_state import nominal_state
from strata.training.replan.rules import hysteresis
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.builders import GBPS, domain, fleet, job, layers, link
from tests.training.hi_ppo.domain_states import LOST, SLOW

NAMES = ("a", "b", "c")
JOB = job(layers(2), batch=48)


class Planner:
    """A global level that gives every domain it sees 2-stage copies of the model; it remembers what it saw."""

    def __init__(self, *, ranks: int = 2, most: int = 3) -> None:
        self.ranks, self.most = ranks, most
        self.seen: list[object] = []

    def __call__(self, seen, current, woken):
        self.seen.append((seen, current, woken))
        pipelines = []
        for one in seen.domains:
            copies = min(self.most, one.num_devices // (2 * self.ranks))
            stages = tuple(Stage(one.name, 2 * i, 2, self.ranks, 1 - i) for i in range(2))
            if copies:
                pipelines.append(Pipeline(stages, copies, 8))
        return TrainingPlan(tuple(pipelines), 1) if pipelines else None


def world(*names, devices=16, links=None):
    here = fleet(*[domain(name, devices, per_node=4) for name in names or NAMES], links=links)
    return here, {one.name: nominal_state(one) for one in here.domains}


def broken(domain_state, **states):
    health, load, memory = (
        domain_state.health.copy(),
        domain_state.load.copy(),
        domain_state.free_memory_bytes.copy(),
    )
    health[states.get("slow", [])] = SLOW
    health[states.get("lost", [])] = LOST
    memory[states.get("full", [])] = 0.0
    return replace(domain_state, health=health, load=load, free_memory_bytes=memory)


def started(planner=None, **more):
    """A coordinator after its first answer: (coordinator, planner, fleet, sites, standing)."""
    planner = planner or Planner()
    boss = Coordinator(planner, hysteresis(), **more)
    here, domain_states = world()
    first = boss.respond(SchedulingState(), JOB, fleet=here, domain_states=domain_states, iteration=0)
    return boss, planner, here, domain_states, first.state


def tokens(response):
    return [reason.token for reason in response.woken]


def test_the_first_answer_asks_the_global_level_and_binds_every_domain():
    here, domain_states = world()
    response = Coordinator(Planner(), hysteresis()).respond(
        SchedulingState(), JOB, fleet=here, domain_states=domain_states, iteration=7
    )
    assert tokens(response) == ["no-plan-yet"]
    assert set(response.state.bindings) == set(NAMES)
    assert response.state.iteration == 7


def test_a_quiet_iteration_changes_nothing_and_wakes_nobody():
    boss, planner, here, domain_states, before = started()
    response = boss.respond(before, JOB, fleet=here, domain_states=domain_states, iteration=1)
    assert not response.woken
    assert len(planner.seen) == 1
    assert all(answer.name == "keep" for answer in response.local.values())
    assert response.state.plan is before.plan


@pytest.mark.parametrize("states", [{"slow": [0]}, {"lost": [5]}])
def test_a_straggler_or_a_lost_device_is_answered_without_the_global_level(states):
    boss, planner, here, domain_states, before = started()
    response = boss.respond(
        before,
        JOB,
        fleet=here,
        domain_states={**domain_states, "b": broken(domain_states["b"], **states)},
        iteration=1,
    )
    assert not response.woken
    assert len(planner.seen) == 1
    assert response.local["b"].name != "keep"
    assert response.local["a"].name == response.local["c"].name == "keep"
    assert response.state.bindings["b"] is response.local["b"].binding


def test_the_global_level_is_asked_every_so_many_iterations_and_may_keep_its_plan():
    boss, _, here, domain_states, before = started(every=10)
    assert not boss.respond(before, JOB, fleet=here, domain_states=domain_states, iteration=9).woken
    response = boss.respond(before, JOB, fleet=here, domain_states=domain_states, iteration=10)
    assert tokens(response) == ["interval-over"]
    assert response.state.iteration == 10
    assert response.state.bindings["a"] is before.bindings["a"]


def test_a_link_in_use_that_changes_a_lot_wakes_the_global_level_once():
    boss, _, _, domain_states, before = started(link_change=0.3)
    slower, _ = world(links=[*link("a", "b", 3.4, 30), *link("a", "c", 5, 30), *link("b", "c", 5, 30)])
    response = boss.respond(before, JOB, fleet=slower, domain_states=domain_states, iteration=1)
    assert {str(reason) for reason in response.woken} == {
        f"link {a}-{b} is at 3.4Gbps where the plan was made at 5Gbps" for a, b in (("a", "b"), ("b", "a"))
    }
    assert response.state.links["a", "b"] == 3.4 * GBPS
    assert not boss.respond(response.state, JOB, fleet=slower, domain_states=domain_states, iteration=2).woken


def test_small_changes_add_up_since_the_last_global_decision():
    boss, _, _, domain_states, state = started(link_change=0.3)
    woken = []
    for iteration, gbps in enumerate((4.5, 4.0, 3.6, 3.2), start=1):
        now, _ = world(links=[*link("a", "b", gbps, 30), *link("a", "c", 5, 30), *link("b", "c", 5, 30)])
        response = boss.respond(state, JOB, fleet=now, domain_states=domain_states, iteration=iteration)
        state = response.state
        woken.append(bool(response.woken))
    assert woken == [False, False, False, True]


def test_a_domain_that_cannot_hold_its_part_is_planned_smaller():
    boss, planner, here, domain_states, before = started()
    ill = {**domain_states, "b": broken(domain_states["b"], lost=range(13))}
    response = boss.respond(before, JOB, fleet=here, domain_states=ill, iteration=1)
    assert [(reason.token, reason.subject) for reason in response.woken] == [("cannot-hold", "b")]
    seen, current, _ = planner.seen[-1]
    assert current is None
    assert "b" not in response.state.plan.domains
    assert seen.domain("a").num_devices == 16


def test_an_offer_that_cannot_be_bound_shrinks_until_it_can():
    # Each node of b has one device left: four in all, but no group of two, and one alone has not the memory.
    planner, heavy = Planner(most=1), job(layers(2, mparams=3000), batch=16)
    boss = Coordinator(planner, hysteresis())
    here, domain_states = world("a", "b")
    ill = {**domain_states, "b": broken(domain_states["b"], lost=[i for i in range(16) if i % 4])}
    response = boss.respond(SchedulingState(), heavy, fleet=here, domain_states=ill, iteration=0)
    assert [len(seen.domains) for seen, _, _ in planner.seen] == [2, 1]
    assert response.state.plan.domains == ("a",)


def test_a_domain_that_vanishes_is_planned_around_and_said():
    boss, _, here, domain_states, before = started()
    response = boss.respond(
        before,
        JOB,
        fleet=here.only(["a", "c"]),
        domain_states={name: domain_states[name] for name in ("a", "c")},
        iteration=1,
    )
    assert [str(reason) for reason in response.woken] == ["b: b is no longer in the fleet"]
    assert response.state.plan.domains == ("a", "c")
    assert set(response.state.bindings) == {"a", "c"}
    # What the other domains do has not changed, so neither have their devices.
    assert np.array_equal(response.state.bindings["a"].devices, before.bindings["a"].devices)


def test_a_domain_without_a_snapshot_has_vanished_too():
    boss, _, here, domain_states, before = started()
    response = boss.respond(
        before, JOB, fleet=here, domain_states={name: domain_states[name] for name in ("a", "b")}, iteration=1
    )
    assert tokens(response) == ["domain-vanished"]
    assert response.state.plan.domains == ("a", "b")


def test_where_no_plan_fits_there_is_none_and_it_is_asked_for_again():
    boss = Coordinator(Planner(), hysteresis())
    here, domain_states = world("a")
    ill = {"a": broken(domain_states["a"], lost=range(16))}
    response = boss.respond(SchedulingState(), JOB, fleet=here, domain_states=ill, iteration=0)
    assert response.state.plan is None
    assert tokens(boss.respond(response.state, JOB, fleet=here, domain_states=domain_states, iteration=1)) == [
        "no-plan-yet"
    ]


def test_what_still_runs_goes_on_where_the_global_level_finds_nothing():
    boss, _, here, domain_states, before = started(every=1)
    helpless = replace(boss, replan=lambda seen, current, woken: None)
    response = helpless.respond(before, JOB, fleet=here, domain_states=domain_states, iteration=1)
    assert response.state.plan is before.plan
    assert set(response.state.bindings) == set(NAMES)


def test_capacity_tells_what_is_usable_free_lost_and_queued():
    boss, _, here, domain_states, before = started()
    ill = {**domain_states, "b": broken(domain_states["b"], lost=[15], full=[14])}
    told = boss.respond(before, JOB, fleet=here, domain_states=ill, iteration=1, queues={"b": 4}).capacity
    mine = {one.domain: one for one in told}
    assert (mine["a"].usable_devices, mine["a"].free_devices, mine["a"].speed) == (16, 4, 1)
    assert (mine["b"].usable_devices, mine["b"].lost_devices, mine["b"].queue) == (14, 1, 4)


def test_the_global_level_sees_fewer_and_slower_devices():
    here, domain_states = world("a", "b")
    told = {
        "a": capacity(broken(domain_states["a"], slow=range(16)), None, job=JOB),
        "b": capacity(broken(domain_states["b"], lost=[0, 1, 4]), None, job=JOB, ranks=2),
    }
    seen = delivered(here, told)
    assert seen.domain("a").accelerator.fp16_flops == pytest.approx(0.3 * here.domain("a").accelerator.fp16_flops)
    assert seen.domain("b").num_devices == 12
    assert seen.links == here.links


def test_a_step_on_fewer_devices_is_no_fault_of_the_devices():
    boss, _, here, domain_states, before = started(most_fall=0.9)
    ill = {**domain_states, "b": broken(domain_states["b"], lost=range(8))}
    response = boss.respond(before, JOB, fleet=here, domain_states=ill, iteration=1)
    told = {one.domain: one for one in response.capacity}["b"]
    assert response.local["b"].throughput < 0.8
    assert told.speed == pytest.approx(1, abs=0.05)
