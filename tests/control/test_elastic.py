"""Elastic jobs: who gives up devices for whom, who grows again, and that nothing is ever given twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.control.candidates import Candidates
from strata.control.core import Outcome, Scheduler
from strata.control.elastic import at_least, at_most, with_smaller
from strata.control.free import Room
from strata.control.policies import exact
from strata.control.queue import ordered
from strata.control.simulated import SimulatedSites
from strata.control.state import Job, JobPhase, JobSpec, Snapshot, Start, Stop, Submitted
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.control.test_core import EAST, FLEET, TRAINING, WEST, on, spec
from tests.support.builders import domain, fleet, job, layers

PLANS = Candidates(FLEET, TRAINING, [on(EAST, WEST)])
SCHEDULER = Scheduler(exact, lambda _fleet, _job: PLANS, interval_s=300.0)
WIDE = {"min_devices": 4, "max_devices": 16, "steps": 10**6}


class World:
    """The loop on simulated domains, a step at a time; every step is looked at."""

    def __init__(self) -> None:
        self.sites, self.snapshot, self.jobs = SimulatedSites(FLEET), Snapshot(FLEET), dict[str, Job]()
        self.outcome: Outcome

    def at(self, now_s: float, *specs: JobSpec) -> dict[str, int]:
        """Let time pass, submit, and return the devices that each job runs on once nothing more happens."""
        self.sites.advance(now_s)
        inbox = tuple(Submitted(item) for item in specs)
        for _ in range(12):
            self.outcome = SCHEDULER.step(replace(self.snapshot, inbox=(*inbox, *self.sites.observe())), now_s)
            self.snapshot, inbox = self.outcome.snapshot, ()
            self.jobs |= self.snapshot.jobs  # those that are over leave the snapshot
            self._check()
            for action in self.outcome.actions:
                if isinstance(action, Start):
                    self.sites.start(action, PLANS)
                elif isinstance(action, Stop):
                    self.sites.stop(action.attempt, action.domain)
            if not self.outcome.actions:
                break
        return {attempt.job: attempt.plan.num_devices for attempt in self.snapshot.live}

    def _check(self) -> None:
        used = dict.fromkeys((EAST, WEST), 0)
        for attempt in self.snapshot.live:
            held = self.snapshot.jobs[attempt.job].spec
            assert (held.min_devices or 0) <= attempt.plan.num_devices <= (held.max_devices or 16)
            for name, count in attempt.plan.devices().items():
                used[name] += count * (not attempt.parts[name].phase.is_over)
        assert max(used.values()) <= 8, "a device was given twice"
        assert len({attempt.job for attempt in self.snapshot.live}) == len(self.snapshot.live)


def test_a_larger_priority_is_given_what_it_needs_and_no_job_is_ended_for_it():
    world = World()
    assert world.at(0.0, spec("a", **WIDE)) == {"a": 16}
    assert world.at(1.0, spec("b", priority=1, min_devices=8, max_devices=8)) == {"a": 8, "b": 8}
    assert world.jobs["a"].failures == 0


def test_why_it_shrank_is_a_decision():
    world = World()
    world.at(0.0, spec("a", **WIDE))
    urgent = Submitted(spec("b", priority=1, min_devices=8, max_devices=8))
    snapshot = replace(world.snapshot, inbox=(*world.sites.observe(), urgent))
    made = {item.job: item.decision for item in SCHEDULER.step(snapshot, 1.0).decisions}
    assert made["a"].reasons[0].token == "training-shrunk"
    assert made["a"].choice.num_devices == 8


def test_it_grows_again_once_nobody_waits():
    world = World()
    world.at(0.0, spec("a", **WIDE))
    world.at(1.0, spec("b", priority=1, min_devices=8, max_devices=8, steps=1))
    grown = [world.at(now_s) for now_s in (500.0, 1000.0, 1500.0)][-1]
    assert world.jobs["b"].phase is JobPhase.DONE
    assert grown == {"a": 16}


def test_who_can_never_run_keeps_nobody_small():
    world = World()
    world.at(0.0, spec("a", **WIDE))
    world.at(1.0, spec("b", priority=1, min_devices=8, max_devices=8, steps=1), spec("huge", min_devices=99))
    assert [world.at(now_s) for now_s in (500.0, 1000.0)][-1] == {"a": 16}


@pytest.mark.parametrize(
    ("owners", "sizes"),
    [
        pytest.param(("x", "x"), {"a": 16}, id="who holds the same share waits"),
        pytest.param(("x", "y"), {"a": 8, "b": 8}, id="who holds less is let in"),
    ],
)
def test_between_like_priorities_the_fair_share_decides(owners, sizes):
    world = World()
    world.at(0.0, spec("a", owner=owners[0], **WIDE))
    assert world.at(1.0, spec("b", owner=owners[1], min_devices=8, max_devices=8)) == sizes


def test_nobody_shrinks_below_its_least_or_for_somebody_who_still_would_not_fit():
    world = World()
    world.at(0.0, spec("a", **{**WIDE, "min_devices": 12}))
    assert world.at(1.0, spec("b", priority=1, min_devices=8, max_devices=8)) == {"a": 16}


def test_a_job_that_is_not_elastic_gives_way_only_where_it_may_be_preempted():
    world = World()
    world.at(0.0, spec("a", min_devices=16, max_devices=16, steps=10**6))
    assert world.at(1.0, spec("b", priority=1, min_devices=8, max_devices=8)) == {"a": 16}


def test_smaller_plans_work_through_the_same_samples():
    plans = with_smaller(PLANS).plans
    assert [plan.num_devices for plan in plans] == [16, 8, 4, 2]
    assert {plan.num_samples for plan in plans} == {on(EAST, WEST).num_samples}


def test_a_job_that_may_have_fewer_devices_than_any_of_its_plans_has_one_in_each_domain():
    """One that asked for four devices at most was refused: the best plans are on sixteen."""
    plans = at_most(PLANS, 4)
    legal = Room({domain.name: domain.num_devices for domain in FLEET.domains}).legal(plans, spec(max_devices=4))
    assert {plan.domains for plan, fits in zip(plans.plans, legal, strict=True) if fits} == {(EAST,), (WEST,)}
    assert at_most(PLANS, 16) is PLANS


def test_a_job_that_needs_more_devices_than_any_of_its_plans_has_those_on_as_many():
    """Who asked for sixteen of two domains of eight was refused where each domain alone is faster."""
    sites, work = fleet(domain("a", 2), domain("b", 2), gbps=1, ms=30), job(layers(8), batch=16)
    alone = Candidates(sites, work, [on("a", devices=2, num_layers=8), on("b", devices=2, num_layers=8)])
    wide = at_least(alone, 4)
    legal = Room({"a": 2, "b": 2}).legal(wide, spec(min_devices=4))
    assert legal.tolist() == [False, False, *[True] * (len(wide.plans) - 2)]
    assert legal.any()
    assert [at_least(alone, count) for count in (2, 99)] == [alone, alone]


def test_smaller_plans_of_stages_that_had_a_microbatch_each_fall_in_warm_up_as_1f1b_does():
    """Rates of these could not be told: a copy with a microbatch has no warm-up, with two it must have."""
    half = len(TRAINING.layers) // 2
    stages = (Stage(EAST, 0, half, 1), Stage(EAST, half, len(TRAINING.layers) - half, 1))
    plan = TrainingPlan((Pipeline(stages, 4, 1),), 1)
    smaller = with_smaller(Candidates(FLEET, TRAINING, [plan]))
    assert [[stage.warmup for stage in item.pipelines[0].stages] for item in smaller.plans] == [
        [0, 0], [1, 0], [1, 0]
    ]  # fmt: skip
    assert (smaller.nominal > 0).all()


JOBS = st.builds(
    lambda least, more, **rest: {"min_devices": least, "max_devices": min(16, least * more), **rest},
    least=st.sampled_from([2, 4, 8, 16]), more=st.sampled_from([1, 2, 16]), priority=st.integers(0, 2),
    owner=st.sampled_from("xyz"), is_preemptible=st.booleans(), steps=st.integers(1, 100),
)  # fmt: skip
LOOK_S = 1000.0
SLOWEST_S = float(1 / with_smaller(PLANS).nominal.min())
"""A step on as few devices as there is a plan for."""


@settings(max_examples=25, deadline=None)
@given(jobs=st.lists(JOBS, min_size=1, max_size=6), gap_s=st.sampled_from([0.0, 7.0, 60.0]))
def test_devices_are_never_given_twice_nor_left_idle_every_job_keeps_its_bounds_and_all_end(jobs, gap_s):
    world = World()
    for number, more in enumerate(jobs):
        world.at(number * gap_s, spec(f"job{number}", **more))
    # One after another on the fewest devices, an end seen a look late; restarts take less than half of every look.
    enough_s = 2 * sum(job["steps"] * SLOWEST_S + LOOK_S for job in jobs)
    now_s = len(jobs) * gap_s
    while now_s < len(jobs) * gap_s + enough_s and not all(job.phase.is_final for job in world.jobs.values()):
        now_s += LOOK_S
        world.at(now_s)
        queue = ordered(world.snapshot, now_s)
        assert not queue or not Room.of(world.snapshot).legal(with_smaller(PLANS), queue[0].spec).any()
    assert {job.phase for job in world.jobs.values()} == {JobPhase.DONE}
    assert all(job.steps_done == job.spec.steps for job in world.jobs.values())
