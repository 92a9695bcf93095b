"""The loop under virtual time: each case is a list of observations and what is asked for."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.control.candidates import Candidates
from strata.control.core import Outcome, Scheduler
from strata.control.outlook import History, outlook_of
from strata.control.policies import exact
from strata.control.state import (
    Cancelled,
    DomainSeen,
    DomainSilent,
    Drained,
    Job,
    JobPhase,
    JobSpec,
    PartPhase,
    PartSeen,
    Snapshot,
    Start,
    Stop,
    Submitted,
)
from strata.fleet.fleet import Fleet
from strata.fleet.schema import load_fleet
from strata.training.environment.network import scaled
from strata.workload.job import TrainingJob
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from strata.workload.schema import load_job

SLOW = load_fleet("seed").only(["East_DataCenter", "West_DataCenter"])
FLEET = SLOW.with_links(scaled(link, bandwidth=1000.0) for link in SLOW.links.values())
EAST, WEST = (domain.name for domain in FLEET.domains)
TRAINING = load_job("opt-350m")


def on(*domains: str, devices: int = 8, num_layers: int = len(TRAINING.layers)) -> TrainingPlan:
    pipelines = tuple(Pipeline((Stage(name, 0, num_layers, 1),), devices, 32) for name in domains)
    return TrainingPlan(pipelines, 1)


@cache
def candidates() -> Candidates:
    plans = [on(EAST, WEST), on(EAST), on(WEST), on(EAST, devices=4), on(WEST, devices=4)]
    return Candidates(FLEET, TRAINING, plans)


def planner(_fleet: Fleet, _job: TrainingJob) -> Candidates:
    return candidates()


SCHEDULER = Scheduler(exact, planner)


def spec(name: str = "a", **more: object) -> JobSpec:
    return replace(JobSpec(name, TRAINING, steps=100), **more)  # type: ignore[arg-type]


def seen(domain: str, *parts: PartSeen, at_s: float = 0.0) -> DomainSeen:
    return DomainSeen(domain, at_s, 8, parts)


def step(snapshot: Snapshot, *inbox: object, now_s: float = 0.0) -> Outcome:
    return SCHEDULER.step(replace(snapshot, inbox=inbox), now_s)  # type: ignore[arg-type]


def both(*parts: PartSeen) -> tuple[DomainSeen, DomainSeen]:
    return seen(EAST, *parts), seen(WEST, *parts)


def submitted(*specs: JobSpec) -> Outcome:
    return step(Snapshot(FLEET), *both(), *(Submitted(item) for item in specs))


def running(*specs: JobSpec) -> Snapshot:
    snapshot = submitted(*specs).snapshot
    for attempt in snapshot.attempts.values():
        parts = [seen(name, PartSeen(attempt.id, PartPhase.RUNNING)) for name in attempt.parts]
        snapshot = step(snapshot, *parts).snapshot
    return snapshot


def test_a_job_starts_on_the_best_plan_that_is_free():
    outcome = submitted(spec())
    assert [(a.domain, a.attempt.id) for a in outcome.actions if isinstance(a, Start)] == [
        (EAST, "a-1"),
        (WEST, "a-1"),
    ]
    assert outcome.decisions[0].decision.choice == on(EAST, WEST)


def test_a_start_is_asked_for_until_it_is_seen_and_never_for_another_attempt():
    first = submitted(spec())
    again = step(first.snapshot, *both(), now_s=1.0)
    assert again.actions == first.actions
    part = PartSeen("a-1", PartPhase.RUNNING)
    assert step(again.snapshot, *both(part), now_s=2.0).actions == ()


def test_a_job_that_ends_is_done_with_all_its_steps():
    after = step(running(spec()), *both(PartSeen("a-1", PartPhase.ENDED, step=100, exit_code=0)))
    job = after.snapshot.jobs["a"]
    assert (job.phase, job.steps_done, after.snapshot.live) == (JobPhase.DONE, 100, ())


def test_a_part_that_fails_stops_the_others_and_the_next_attempt_resumes_from_the_checkpoint():
    failed = seen(EAST, PartSeen("a-1", PartPhase.FAILED, step=50, checkpoint_step=40, exit_code=1))
    outcome = step(running(spec()), failed, seen(WEST, PartSeen("a-1", PartPhase.RUNNING, step=50)))
    assert outcome.actions == (Stop(WEST, "a-1", 60.0),)
    after = step(outcome.snapshot, seen(WEST, PartSeen("a-1", PartPhase.ENDED, step=50)))
    job = after.snapshot.jobs["a"]
    assert (job.steps_done, job.repeated_steps, job.failures) == (40, 10, 1)
    assert {a.attempt.from_step for a in after.actions if isinstance(a, Start)} == {40}


def test_an_attempt_that_ended_is_accounted_for_once_however_often_it_is_seen():
    part = PartSeen("a-1", PartPhase.FAILED, step=50, checkpoint_step=40)
    first = step(replace(running(spec()), domains={}), *both(part))
    assert step(first.snapshot, *both(part)).snapshot.jobs["a"].failures == 1
    assert "a-1" in first.snapshot.attempts  # so that it is kept as ended


def test_a_program_without_checkpoints_starts_from_zero():
    failed = PartSeen("a-1", PartPhase.FAILED, step=50, checkpoint_step=40)
    after = step(running(spec(can_resume=False)), *both(failed))
    assert (after.snapshot.jobs["a"].steps_done, after.snapshot.jobs["a"].repeated_steps) == (0, 50)


def test_a_checkpoint_that_cannot_be_read_costs_the_steps_since_the_one_before_each_counted():
    failed = PartSeen("a-1", PartPhase.FAILED, step=50, checkpoint_step=40)
    second = step(running(spec()), *both(failed)).snapshot
    # It says that it begins with step 21, so it found the checkpoint of step 20.
    part = PartSeen("a-2", PartPhase.RUNNING, step=25, checkpoint_step=20, first_step=21)
    second = step(second, *both(part)).snapshot
    assert (second.attempts["a-2"].from_step, second.attempts["a-2"].step) == (20, 25)
    done = step(second, *both(replace(part, phase=PartPhase.ENDED, step=100))).snapshot.jobs["a"]
    num_done = 50 + (100 - 20)  # in both attempts
    assert (done.phase, done.steps_done, done.repeated_steps) == (JobPhase.DONE, 100, num_done - 100)


def test_what_a_restart_takes_is_what_the_job_was_seen_to_take():
    part = PartSeen("a-1", PartPhase.RUNNING, step=3, launch_s=4.0)
    first = step(running(spec()), *both(part)).snapshot
    assert first.jobs["a"].restart_s == 8.0
    stopped = replace(part, phase=PartPhase.ENDED, stop_s=1.5)
    drained = step(first, *both(part), Drained(WEST), now_s=1.0).snapshot
    assert step(drained, *both(stopped), now_s=2.0).snapshot.jobs["a"].restart_s == 5.5


def test_a_job_that_restarts_fast_is_moved_for_less():
    held = np.ones((12, len(FLEET.links)))
    held[6:] = 0.4
    costs = [
        outlook_of(candidates(), History(held), current=0, interval_s=60.0, restart_s=s).cost[1]
        for s in (None, 2.0)
    ]
    assert costs[0] == pytest.approx(30 * costs[1], rel=0.2)


def test_a_job_that_is_over_is_told_once_then_left_out():
    done = step(running(spec()), *both(PartSeen("a-1", PartPhase.ENDED, step=100, exit_code=0)))
    assert done.snapshot.jobs["a"].phase is JobPhase.DONE
    after = step(done.snapshot, *both(PartSeen("a-1", PartPhase.ENDED, step=100)), Submitted(spec("b")))
    assert (list(after.snapshot.jobs), list(after.snapshot.attempts)) == (["b"], ["b-1"])


def test_a_job_that_fails_too_often_ends():
    broken = PartSeen("a-1", PartPhase.FAILED, step=30, checkpoint_step=20, message="ValueError: no such data")
    after = step(running(spec(most_failures=0)), *both(broken))
    assert after.snapshot.jobs["a"].phase is JobPhase.FAILED
    assert not after.snapshot.live
    (reason,) = after.decisions[0].decision.reasons
    assert str(reason) == (
        "a: given up at failure 1, as 0 are allowed; attempt 1 ended with: ValueError: no such data; 20 of 100 "
        "steps are in checkpoints"
    )
    assert step(after.snapshot, *both(broken), now_s=1.0).decisions == ()


def test_a_job_that_fails_at_once_waits_twice_as_long_each_time_and_says_so():
    snapshot, now_s, waits = running(spec(most_failures=9)), 0.0, []
    for number in range(1, 9):
        failed = PartSeen(f"a-{number}", PartPhase.FAILED, message="exit code 1")
        outcome = step(snapshot, *both(failed), now_s=now_s)
        job = outcome.snapshot.jobs["a"]
        assert (job.phase, outcome.actions) == (JobPhase.QUEUED, ())
        assert "(exit code 1): tried again in" in outcome.decisions[0].text
        waits.append(job.retry_s - now_s)
        early = step(outcome.snapshot, *both(failed), now_s=job.retry_s - 0.1)
        assert early.actions == ()
        assert early.decisions == ()
        now_s = job.retry_s
        snapshot = step(early.snapshot, *both(failed), now_s=now_s).snapshot
        assert f"a-{number + 1}" in snapshot.attempts
    assert waits == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]


def test_a_program_that_ends_well_before_its_last_step_waits_as_one_that_failed_and_is_told_where_it_ended():
    early = step(running(spec(can_resume=False)), *both(PartSeen("a-1", PartPhase.ENDED, step=3, exit_code=0)))
    (decided,) = early.decisions
    assert (decided.decision.reasons[0].token, early.actions) == ("tried-again-later", ())
    assert decided.decision.reasons[0].data["message"] == "it ended at step 3 of 100"


def test_a_job_that_got_further_before_it_failed_is_tried_again_at_once():
    failed = PartSeen("a-1", PartPhase.FAILED, step=50, checkpoint_step=40)
    assert step(running(spec()), *both(failed)).snapshot.jobs["a"].retry_s is None
    lost = PartSeen("a-1", PartPhase.LOST)
    assert step(running(spec()), *both(lost)).snapshot.jobs["a"].retry_s is None


def test_who_waits_after_a_failure_keeps_nobody_from_starting():
    failed = PartSeen("a-1", PartPhase.FAILED)
    after = step(running(spec()), *both(failed), Submitted(spec("b")))
    assert {action.attempt.job for action in after.actions if isinstance(action, Start)} == {"b"}


def test_each_driver_says_how_long_silence_lasts_until_what_runs_is_lost():
    quick = step(running(spec()), DomainSilent(WEST, 10.0, lost_after_s=12.0), now_s=10.0)
    assert step(quick.snapshot, seen(EAST, PartSeen("a-1", PartPhase.RUNNING)), now_s=21.9).actions == ()
    lost = step(quick.snapshot, seen(EAST, PartSeen("a-1", PartPhase.RUNNING)), now_s=22.0)
    assert lost.snapshot.attempts["a-1"].parts[WEST].phase is PartPhase.LOST


def test_a_domain_that_is_silent_loses_what_ran_there_and_is_stopped_when_it_is_back():
    part = PartSeen("a-1", PartPhase.RUNNING)
    quiet = step(running(spec()), DomainSilent(WEST, 10.0), now_s=10.0)
    assert quiet.actions == ()
    lost = step(quiet.snapshot, seen(EAST, part, at_s=80.0), DomainSilent(WEST, 80.0), now_s=80.0)
    assert lost.actions == (Stop(EAST, "a-1", 60.0),)
    moved = step(lost.snapshot, seen(EAST, replace(part, phase=PartPhase.ENDED), at_s=81.0), now_s=81.0)
    assert [a.domain for a in moved.actions if isinstance(a, Start)] == [EAST]
    back = step(moved.snapshot, seen(WEST, part, at_s=99.0), now_s=99.0)
    assert Stop(WEST, "a-1", 0.0) in back.actions


def test_a_drained_domain_is_left():
    outcome = step(running(spec()), *both(PartSeen("a-1", PartPhase.RUNNING)), Drained(WEST), now_s=1.0)
    assert {a.domain for a in outcome.actions if isinstance(a, Stop)} == {EAST, WEST}
    assert outcome.snapshot.jobs["a"].next_plan == on(EAST)
    assert outcome.snapshot.attempts["a-1"].reason == f"{WEST} is no longer there for jobs"


def test_who_is_drained_with_nowhere_to_go_is_said_to_have_left_because_of_the_drain():
    left = step(running(spec(min_devices=16)), *both(PartSeen("a-1", PartPhase.RUNNING)), Drained(WEST), now_s=1.0)
    assert left.snapshot.jobs["a"].next_plan is None
    assert left.snapshot.attempts["a-1"].reason == f"{WEST} is no longer there for jobs"


def test_an_elastic_job_leaves_a_drained_domain_though_another_job_waits():
    """It kept to its devices for who waits, those of the drained domain too."""
    parts = both(PartSeen("a-1", PartPhase.RUNNING))
    waits = step(running(spec(min_devices=4, max_devices=16)), *parts, Submitted(spec("b", min_devices=16)))
    assert [attempt.is_stopping for attempt in waits.snapshot.attempts.values()] == [False]
    left = step(waits.snapshot, *parts, Drained(WEST), now_s=1.0)
    assert left.snapshot.attempts["a-1"].is_stopping
    assert left.snapshot.jobs["a"].next_plan == on(EAST)


def test_a_cancelled_job_stops_and_does_not_start_again():
    outcome = step(running(spec()), Cancelled("a"))
    assert {type(action) for action in outcome.actions} == {Stop}
    after = step(outcome.snapshot, *both(PartSeen("a-1", PartPhase.ENDED, step=7, checkpoint_step=7)))
    assert (after.snapshot.jobs["a"].phase, after.actions) == (JobPhase.CANCELLED, ())


def test_the_larger_priority_goes_first_then_whose_owner_holds_less():
    wide = {"min_devices": 16}
    assert submitted(spec("a", **wide), spec("b", priority=1, **wide)).snapshot.attempts.keys() == {"b-1"}
    held = running(spec("a", owner="x", max_devices=4))
    queue = [spec("b", owner="x", submitted_s=1.0), spec("c", owner="y", submitted_s=2.0)]
    after = step(held, *(Submitted(item) for item in queue), now_s=3.0)
    assert "c-1" in after.snapshot.attempts
    assert not any(
        id_.startswith("b") and attempt.plan.num_devices > 4 for id_, attempt in after.snapshot.attempts.items()
    )


def test_a_job_gives_way_only_where_it_allows_it():
    urgent = Submitted(spec("b", priority=5, min_devices=16))
    parts = both(PartSeen("a-1", PartPhase.RUNNING))
    assert step(running(spec()), *parts, urgent).actions == ()
    outcome = step(running(spec(is_preemptible=True)), *parts, urgent)
    assert {a.domain for a in outcome.actions if isinstance(a, Stop)} == {EAST, WEST}
    assert outcome.snapshot.attempts["a-1"].reason == "ends its attempt and waits, so that b has room"
    assert "training-preempted" in [d.decision.reasons[0].token for d in outcome.decisions if d.job == "a"]
    after = step(outcome.snapshot, *both(PartSeen("a-1", PartPhase.ENDED, step=9, checkpoint_step=9)))
    assert {a.attempt.job for a in after.actions if isinstance(a, Start)} == {"b"}


def test_a_short_job_passes_one_that_waits_and_a_long_one_does_not():
    held = running(spec("a", max_devices=8, min_devices=8, steps=100))
    queue = [spec("wide", min_devices=16), spec("short", max_devices=4, steps=10, submitted_s=1.0)]
    after = step(held, *(Submitted(item) for item in queue))
    assert "short-1" in after.snapshot.attempts
    late = step(held, Submitted(queue[0]), Submitted(replace(queue[1], name="long", steps=10_000)))
    assert "long-1" not in late.snapshot.attempts


def test_a_domain_that_has_fewer_devices_than_run_there_holds_up_nobody_elsewhere():
    held = running(spec("a", max_devices=8, can_resume=False))
    (name,) = held.attempts["a-1"].parts
    fewer = replace(seen(name, PartSeen("a-1", PartPhase.RUNNING)), num_devices=4)
    after = step(held, fewer, Submitted(spec("b", max_devices=8)), now_s=1.0)
    (other,) = {EAST, WEST} - {name}
    assert [(a.domain, a.attempt.id) for a in after.actions] == [(other, "b-1")]
    lacking = [str(why) for item in after.decisions[0].decision.alternatives for why in item.reasons]
    # Which devices are free is no use to who waits without whom to ask for them.
    assert f"takes 8 devices of {name}, and 0 are free for it (held by a)" in lacking


@pytest.mark.parametrize(("left", "leave"), [(17, set()), (15, set()), (7, {"b-1"}), (0, {"a-1", "b-1"})])
def test_a_domain_may_have_more_devices_than_the_fleet_says_and_lose_them(left, leave):
    """The loop ended with an IndexError."""

    def first(count, *parts):
        return replace(seen(EAST, *parts), num_devices=count)

    queue = [Submitted(spec(name, max_devices=8, min_devices=8)) for name in "ab"]
    state = step(Snapshot(FLEET), first(16), *queue).snapshot
    parts = [PartSeen(id_, PartPhase.RUNNING) for id_ in state.attempts]
    assert len(parts) == 2
    after = step(step(state, first(16, *parts)).snapshot, first(left, *parts), now_s=1.0)
    assert {action.attempt for action in after.actions if isinstance(action, Stop)} == leave


def test_who_holds_more_devices_than_the_edited_fleet_has_is_moved_at_once():
    """The local agent reckoned with the domain as it is now, and ended the loop with an IndexError."""
    held = running(spec("a", max_devices=8, min_devices=8))
    (name,) = held.attempts["a-1"].parts
    (other,) = {EAST, WEST} - {name}
    few = replace(FLEET.domain(name), num_devices=4, devices_per_node=4)
    edited = replace(FLEET, domains=tuple(few if d.name == name else d for d in FLEET.domains))
    smaller = Scheduler(exact, lambda fleet, _job: Candidates(fleet, TRAINING, [on(other), on(name, devices=4)]))
    fewer = replace(seen(name, PartSeen("a-1", PartPhase.RUNNING)), num_devices=4)
    after = smaller.step(replace(held, fleet=edited, inbox=(fewer,)), 1.0).snapshot
    assert (after.attempts["a-1"].reason, after.jobs["a"].next_plan) == (
        f"takes 8 devices of {name}, and 4 are free for it", on(other),
    )  # fmt: skip


def test_what_was_decided_for_a_move_is_kept_free_for_it():
    held = running(spec("a", max_devices=8, min_devices=8))
    name = next(iter(held.attempts["a-1"].parts))
    part = PartSeen("a-1", PartPhase.RUNNING)
    moving = step(held, seen(name, part), Drained(name), now_s=1.0)
    after = step(moving.snapshot, Submitted(spec("b", min_devices=8)), now_s=2.0)
    assert not any(isinstance(action, Start) for action in after.actions)
    ended = replace(part, phase=PartPhase.ENDED, step=5, checkpoint_step=5)
    assert [a.attempt.id for a in step(after.snapshot, seen(name, ended), now_s=3.0).actions] == ["a-2"]


class Sites:
    """Domains that do what they are asked, or not yet, or fail, as drawn."""

    def __init__(self) -> None:
        self.parts: dict[tuple[str, str], PartSeen] = {}
        self.started: list[str] = []

    def act(self, action: object) -> None:
        if isinstance(action, Start):
            key = (action.domain, action.attempt.id)
            if key not in self.parts:
                from_step = action.attempt.from_step
                self.parts[key] = PartSeen(key[1], PartPhase.RUNNING, from_step, from_step)
                self.started.append(action.attempt.id)
        elif isinstance(action, Stop):
            key = (action.domain, action.attempt)
            part = self.parts.get(key, PartSeen(action.attempt, PartPhase.ENDED))
            if not part.phase.is_over:
                part = replace(part, phase=PartPhase.ENDED, checkpoint_step=part.step)
            self.parts[key] = part

    def seen(self, name: str, now_s: float) -> DomainSeen:
        return seen(name, *(part for (domain, _), part in self.parts.items() if domain == name), at_s=now_s)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("sfdcl"), st.integers(0, 5)), max_size=24), st.booleans())
def test_nothing_is_lost_nothing_runs_twice_and_steps_never_fall(events, crash):
    """s: steps are done, f: a part fails, d: a domain is drained or not, c: nothing is acted on, l: an order is
    lost."""
    sites, snapshot, now_s, before = Sites(), Snapshot(FLEET), 0.0, {"a": 0, "b": 0}
    known: dict[str, Job] = {}
    inbox: list[object] = [Submitted(spec("a")), Submitted(spec("b", max_devices=4, priority=1))]
    for kind, number in events:
        now_s += 400.0
        running_now = [key for key, part in sites.parts.items() if not part.phase.is_over]
        if kind == "s":
            for key in running_now:
                part = sites.parts[key]
                sites.parts[key] = replace(part, step=(part.step or 0) + number)
        elif kind == "f" and running_now:
            key = running_now[number % len(running_now)]
            sites.parts[key] = replace(sites.parts[key], phase=PartPhase.FAILED)
        elif kind == "d":
            inbox.append(Drained(WEST, number % 2 == 0))
        outcome = step(snapshot, *inbox, sites.seen(EAST, now_s), sites.seen(WEST, now_s), now_s=now_s)
        inbox = []
        if not (crash and kind == "c"):  # killed before the outcome was written: nothing was acted on either
            snapshot = outcome.snapshot
            for action in outcome.actions[number if kind == "l" else 0 :]:
                sites.act(action)
        elif not snapshot.jobs and not sites.started:
            inbox = [Submitted(spec("a")), Submitted(spec("b", max_devices=4, priority=1))]
        known |= snapshot.jobs
        assert crash or known.keys() == {"a", "b"}
        assert all(known[name].phase.is_final for name in known.keys() - snapshot.jobs.keys()), "a job was lost"
        for job in snapshot.jobs:
            ids = {id_ for (_, id_), part in sites.parts.items() if not part.phase.is_over and id_.startswith(job)}
            assert len(ids) <= 1, "two attempts of one job run"
            assert snapshot.jobs[job].steps_done >= before[job], "steps fell"
            before[job] = snapshot.jobs[job].steps_done
        for name in (EAST, WEST):
            used = sum(
                attempt.plan.devices().get(name, 0)
                for attempt in snapshot.attempts.values()
                if name in attempt.parts and not attempt.parts[name].phase.is_over
            )
            assert used <= 8
    assert len(set(sites.started)) <= len(sites.started)


@pytest.mark.parametrize("now_s", [0.0, 5.0])
def test_the_same_snapshot_and_time_give_the_same_outcome(now_s):
    snapshot = replace(Snapshot(FLEET), inbox=(*both(), Submitted(spec())))
    assert SCHEDULER.step(snapshot, now_s) == SCHEDULER.step(snapshot, now_s)


def test_a_job_without_any_plan_waits_at_every_step_and_holds_up_nobody():
    nothing = Scheduler(exact, lambda fleet, _job: Candidates(fleet, TRAINING, ()))
    snapshot = Snapshot(FLEET, inbox=(*both(), Submitted(spec()), Submitted(spec("b"))))
    first = nothing.step(snapshot, 0.0)
    again = nothing.step(replace(first.snapshot, inbox=both()), 1.0)
    assert [item.decision.reasons[0].token for item in first.decisions] == ["no-plan-fits"] * 2
    assert (again.actions, again.decisions) == ((), ())


def test_a_job_that_no_domain_can_be_planned_for_says_of_each_why():
    """Ascend910B2 has no rate for the job's fp32."""
    fleet = load_fleet("hub").only(["Guian"])
    outcome = Scheduler(exact, Candidates.of).step(Snapshot(fleet, inbox=(Submitted(spec()),)), 0.0)
    reasons = outcome.decisions[0].decision.reasons
    assert [(reason.token, reason.subject) for reason in reasons] == [
        ("no-plan-fits", "a"), ("figure-missing", "Guian"),
    ]  # fmt: skip


def test_who_waits_is_told_which_domains_are_closed_and_why():
    outcome = step(Snapshot(FLEET), seen(EAST), Drained(EAST), Submitted(spec()))
    (decided,) = outcome.decisions
    whys = [(reason.token, reason.data.get("domain")) for reason in decided.decision.reasons]
    assert whys == [("waits-for-devices", None), ("domain-drained", EAST), ("domain-unheard", WEST)]


def test_a_plan_that_is_not_free_says_what_it_lacks():
    first = running(spec(), spec("b", max_devices=8))  # b waits behind a, who holds both
    ended = step(first, *both(PartSeen("a-1", PartPhase.ENDED, step=100, exit_code=0)), Drained(WEST), now_s=1.0)
    decided = next(item for item in ended.decisions if item.job == "b")
    assert decided.decision.choice == on(EAST)
    lacking = [[str(why) for why in other.reasons] for other in decided.decision.alternatives]
    assert sorted(lacking) == [
        [],
        [f"{WEST} is drained: nothing starts there"],
        [f"{WEST} is drained: nothing starts there"],
        [f"{WEST} is drained: nothing starts there", "takes 16 devices, and the job allows 1 to 8"],
    ]
    held = submitted(spec(max_devices=8), spec("b"))
    (name,) = held.snapshot.attempts["a-1"].plan.domains
    decided = next(item for item in held.decisions if item.job == "b")
    taken = f"takes 8 devices of {name}, and 0 are free for it"
    assert [taken] in [[str(why) for why in other.reasons] for other in decided.decision.alternatives]


def test_a_job_that_allows_no_plan_is_not_said_to_wait_for_devices():
    (decided,) = submitted(spec(min_devices=17)).decisions
    assert [reason.token for reason in decided.decision.reasons] == ["no-plan-allowed"]
    (decided,) = step(Snapshot(FLEET), *both(), Submitted(spec(min_devices=9)), Drained(WEST)).decisions
    assert decided.decision.reasons[0].data["devices"] == 16
