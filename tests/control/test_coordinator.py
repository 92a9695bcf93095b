"""What a job's coordinator answers to events: inside a domain, between domains, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.control.bindings import held, rebound, seen_by
from strata.control.candidates import Candidates
from strata.control.core import Scheduler
from strata.control.drivers import devices
from strata.control.policies import exact
from strata.control.state import (
    DomainSeen,
    JobSpec,
    LinkSeen,
    PartPhase,
    PartSeen,
    Snapshot,
    Start,
    Stop,
    Submitted,
)
from strata.training.hi_ppo.assignment import assignments
from strata.training.hi_ppo.binding import planned_binding
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.control.test_core import (
    EAST,
    FLEET,
    TRAINING,
    WEST,
    candidates,
    on,
    seen,
    spec,
    step,
    submitted,
)

GOOD = (1.0,) * 8


def event(
    snapshot: Snapshot, domain: str, *speeds: float, now_s: float = 30.0
) -> tuple[Snapshot, list[str], object]:
    """Return what is known after a domain tells the speeds of its devices, the tokens of why, and the plan."""
    parts = [PartSeen(a.id, PartPhase.RUNNING) for a in snapshot.live if domain in a.parts]
    outcome = step(snapshot, DomainSeen(domain, now_s, 8, tuple(parts), devices=speeds), now_s=now_s)
    decided = outcome.decisions[-1].decision if outcome.decisions else None
    tokens = [] if decided is None else [reason.token for reason in decided.reasons]
    return outcome.snapshot, tokens, None if decided is None else decided.choice


def told(*specs: JobSpec) -> Snapshot:
    """Return jobs that run, on domains that tell of each device."""
    snapshot = submitted(*specs).snapshot
    seen = [
        DomainSeen(
            name, 1.0, 8, devices=GOOD,
            parts=tuple(PartSeen(a.id, PartPhase.RUNNING) for a in snapshot.live if name in a.parts),
        )
        for name in (EAST, WEST)
    ]  # fmt: skip
    return step(snapshot, *seen, now_s=1.0).snapshot


def test_a_lost_device_takes_its_copy_with_it_and_the_other_domain_keeps_its_part():
    after, tokens, plan = event(told(spec()), EAST, *GOOD[:7], 0.0)
    assert tokens == ["rebound", "device-gone"]
    assert plan.devices() == {EAST: 7, WEST: 8}
    assert plan.num_samples == on(EAST, WEST).num_samples
    assert after.attempts["a-1"].is_stopping
    assert after.jobs["a"].next_devices == {EAST: tuple(range(7))}


def test_a_slow_device_is_swapped_for_a_spare_of_its_domain_and_the_plan_stays():
    one = told(spec(min_devices=4, max_devices=4))
    home = one.attempts["a-1"].plan.domains[0]
    after, tokens, plan = event(one, home, 1.0, 0.3, *GOOD[2:])
    assert tokens == ["rebound"]
    assert plan == one.attempts["a-1"].plan
    assert set(after.jobs["a"].next_devices[home]) == {0, 2, 3, 4}
    ended = PartSeen("a-1", PartPhase.ENDED, step=5, checkpoint_step=5)
    told_by = DomainSeen(home, 31.0, 8, (ended,), devices=(1.0, 0.3, *GOOD[2:]))
    outcome = step(after, told_by, now_s=31.0)
    started = [action.attempt for action in outcome.actions if isinstance(action, Start)]
    assert [set(attempt.devices[home]) for attempt in started] == [{0, 2, 3, 4}]


def test_devices_that_others_took_are_not_swapped_in():
    two = told(spec(min_devices=4, max_devices=4), spec("b", min_devices=4, max_devices=4, submitted_s=1.0))
    home = two.attempts["a-1"].plan.domains[0]
    both = [attempt for attempt in two.live if home in attempt.parts]
    site, binding = seen_by(two, both[0], home, interval_s=300.0)
    others = [number for id_, numbers in held(two, home).items() if id_ != both[0].id for number in numbers]
    assert binding.used.tolist() == [0, 1, 2, 3]
    assert (site.speed[others] == 0).all()


def test_an_event_that_touches_nothing_in_use_is_not_a_decision():
    one = told(spec(min_devices=4, max_devices=4))
    home = one.attempts["a-1"].plan.domains[0]
    after, tokens, _ = event(one, home, *GOOD[:7], 0.0)
    assert (tokens, after.attempts["a-1"].is_stopping) == ([], False)


def test_a_domain_that_cannot_hold_its_part_wakes_the_agent_between_domains():
    one = told(spec(min_devices=8, max_devices=8))
    home, other = one.attempts["a-1"].plan.domains[0], {EAST, WEST} - set(one.attempts["a-1"].plan.domains)
    after, tokens, plan = event(one, home, *(0.0,) * 8)
    assert tokens[0] in ("training-placed", "training-switched")
    assert "cannot-hold" in tokens
    assert set(plan.domains) == other
    assert after.jobs["a"].next_plan == plan


def test_a_domain_that_lost_too_much_wakes_it_too_and_where_it_keeps_the_plan_the_domain_helps_itself():
    after, tokens, plan = event(told(spec(min_devices=12)), EAST, *GOOD[:6], 0.0, 0.0)
    assert tokens == ["rebound", "device-gone"]
    assert plan.devices()[EAST] == 6
    assert after.attempts["a-1"].is_stopping


def test_a_link_that_came_to_another_level_is_answered_before_the_interval_is_over():
    snapshot = told(spec())
    nominal = FLEET.links[EAST, WEST].bandwidth_bytes_per_s
    for at_s in range(10, 40):
        factor = 1.0 if at_s < 25 else 0.1
        links = [LinkSeen(*pair, float(at_s), nominal * factor) for pair in FLEET.links]
        outcome = step(snapshot, *links, now_s=float(at_s))
        snapshot = outcome.snapshot
        if outcome.decisions:
            break
    assert at_s in range(25, 40)
    assert "links-changed" in [reason.token for reason in outcome.decisions[0].decision.reasons]


@pytest.mark.parametrize("copies", [1, 3, 5, 7])
def test_a_bound_part_works_through_the_same_samples(copies):
    part = assignments(on(EAST, WEST))[EAST]
    binding = planned_binding(part)
    fewer = type(binding)(binding.devices[:copies], binding.microbatches[:copies])
    plan = rebound(part, fewer)
    assert plan.devices() == {EAST: copies, WEST: 8}
    assert plan.num_samples == part.plan.num_samples
    assert candidates().with_plan(plan).rates((1.0,) * len(FLEET.links)).min() > 0


def test_a_driver_gives_the_devices_that_were_chosen_unless_somebody_has_them():
    assert devices.free(8, 2, taken={0}, wanted=(5, 3)) == [5, 3]
    assert devices.free(8, 2, taken={0, 3}, wanted=(5, 3)) == [1, 2]


def test_a_stop_for_another_binding_is_asked_for_in_all_domains():
    snapshot = told(spec())
    parts = (PartSeen("a-1", PartPhase.RUNNING),)
    outcome = step(snapshot, DomainSeen(EAST, 30.0, 8, parts, devices=(*GOOD[:7], 0.0)), now_s=30.0)
    assert {action.domain for action in outcome.actions if isinstance(action, Stop)} == {EAST, WEST}


def test_a_copy_that_is_left_alone_has_the_warm_up_that_its_microbatches_need():
    """Two stages of copies with one microbatch each had none, and the loop fell when one was lost."""
    half = len(TRAINING.layers) // 2
    stages = (Stage(EAST, 0, half, 1), Stage(EAST, half, len(TRAINING.layers) - half, 1))
    plan = TrainingPlan((Pipeline(stages, 4, 1),), 1)
    scheduler = Scheduler(exact, lambda _fleet, _job: Candidates(FLEET, TRAINING, [plan]))
    snapshot, parts = Snapshot(FLEET), (PartSeen("a-1", PartPhase.RUNNING),)
    for item in (seen(EAST), Submitted(spec()), DomainSeen(EAST, 30.0, 8, parts, devices=(*GOOD[:6], 0.0, 0.0))):
        outcome = scheduler.step(replace(snapshot, inbox=(item,)), 30.0)
        snapshot = outcome.snapshot
    after = outcome.snapshot.jobs["a"].next_plan
    assert after is not None
    assert after.devices() == {EAST: 6}
    assert [stage.warmup for stage in after.pipelines[0].stages] == [1, 0]
