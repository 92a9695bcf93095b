"""Jobs that share links decide with each other in view: with what others decided, and what a plan costs them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from strata.control.candidates import Candidates
from strata.control.choosing import choice
from strata.control.core import Scheduler
from strata.control.free import Room
from strata.control.measured import Measured
from strata.control.outlook import outlook_of
from strata.control.policies import Learned, PolicyName, choose_by
from strata.control.replay import ENDLESS, run
from strata.control.sharing import Shares
from strata.control.simulated import SimulatedSites
from strata.control.state import Attempt, Job, JobSpec, Part, PartPhase, Snapshot, Start
from strata.fleet.dynamics.replay import Replay
from strata.training.hi_ppo.policy import load_policy
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.builders import domain, fleet, job, layers

FLEET = fleet(*(domain(name, 64) for name in "abcd"), gbps=10.0)
TRAINING = job(layers(mparams=900.0))
NOMINAL = Replay(np.arange(12) * 300.0, np.ones((12, len(FLEET.links))))


def over(names, microbatches=4):
    return TrainingPlan(tuple(Pipeline((Stage(name, 0, 10, 1),), 8, microbatches) for name in names), 1)


def played(plans, rule):
    """Return what two jobs train together, in steps a second, and how often they switched."""
    known = Candidates(FLEET, TRAINING, plans)
    scheduler = Scheduler(choose_by(rule), lambda _fleet, _job: known)
    specs = [JobSpec(name, TRAINING, ENDLESS) for name in "xy"]
    result = run(FLEET, specs, scheduler, trace=NOMINAL, end_s=3600.0)
    return sum(result.trained.values()) / 3600.0, result.switches


@pytest.mark.parametrize("rule", list(PolicyName))
def test_jobs_that_start_together_do_not_all_take_the_same_links(rule):
    plans = [over("ab"), over("cd")]
    alone = float(Candidates(FLEET, TRAINING, plans).nominal[0])
    assert played(plans, rule) == (pytest.approx(2 * alone), 0)


def test_who_decides_second_sees_what_the_first_goes_to():
    plans = [over("ab"), over("cd")]
    known = Candidates(FLEET, TRAINING, plans)
    state = Snapshot(FLEET, {name: Job(JobSpec(name, TRAINING, ENDLESS)) for name in "xy"})
    before = Measured(state, lambda _fleet, _spec: known)
    after = before.with_plan("x", plans[0])
    rates = [known.rates(measured.seen_by("y").rows[-1]) for measured in (before, after)]
    assert rates[1][0] < rates[0][0]
    assert rates[1][1] == rates[0][1]
    back = after.with_plan("x", over("a"))
    assert known.rates(back.seen_by("y").rows[-1]).tolist() == rates[0].tolist()


def running(known, **plans):
    """Return a snapshot in which jobs run, and what each trains in virtual time, in steps a second."""
    sites, attempts = SimulatedSites(FLEET), {}
    specs = {name: JobSpec(name, TRAINING, ENDLESS) for name in plans}
    for name, plan in plans.items():
        parts = {place: Part(PartPhase.RUNNING) for place in plan.domains}
        attempts[name] = Attempt(f"{name}-1", name, 1, plan, 0.0, 0, parts)
        for place in plan.domains:
            sites.start(Start(place, attempts[name], specs[name]), known)
    sites.advance(1e3)
    rates = {name: done / 1e3 for name, done in sites.trained.items()}
    return Snapshot(FLEET, {name: Job(spec) for name, spec in specs.items()}, attempts), rates


def test_what_others_earn_beside_a_plan_is_what_virtual_time_gives_them():
    plans = [over("ab"), over("cd"), over("bc")]
    known = Candidates(FLEET, TRAINING, plans)
    state, _ = running(known, x=plans[0], y=plans[0], z=plans[0], w=plans[1])
    beside = Measured(state, lambda _fleet, _spec: known).beside("x", known, plans[0])
    for own, earned in zip(plans, beside.tolist(), strict=True):
        _, rates = running(known, x=own, y=plans[0], z=plans[0], w=plans[1])
        assert earned == pytest.approx((sum(rates.values()) - rates["x"]) / known.nominal.max())
    assert beside[0] < beside[2]
    assert beside[1] < beside[2]


def test_nobody_shares_where_no_other_job_is_on_the_links():
    known = Candidates(FLEET, TRAINING, [over("ab")])
    state = Snapshot(FLEET, {"x": Job(JobSpec("x", TRAINING, ENDLESS))})
    assert Measured(state, lambda _fleet, _spec: known).beside("x", known, over("ab")) is None


def test_a_plan_that_is_a_little_slower_is_taken_where_others_gain_more():
    plans = [over("ab"), over("c", microbatches=20)]
    known = Candidates(FLEET, TRAINING, plans)
    alone, half = (float(known.rates((share,) * 12)[0]) for share in (1.0, 0.5))
    assert half > known.nominal[1] > 2 * half - alone
    assert played(plans, PolicyName.HI_PPO)[0] > 1.05 * played(plans, PolicyName.HYSTERESIS)[0]


def test_a_decision_says_where_the_untrained_rule_stands_in_for_the_network():
    known = Candidates(FLEET, TRAINING, [over("ab"), over("cd")])
    policy = replace(load_policy(), record={"decides": {"one job": "untrained", "several jobs": "network"}})
    for jobs, is_said in ((("x",), True), (("x", "y"), False)):
        state, _ = running(known, **dict.fromkeys(jobs, over("ab")))
        measured = Measured(state, lambda _fleet, _spec: known)
        own = choice(
            known, Learned(policy), state, state.jobs["x"], now_s=0.0,
            room=Room({domain.name: 64 for domain in FLEET.domains}), current=over("ab"), interval_s=300.0,
            measured=measured,
        )  # fmt: skip
        tokens = [reason.token for reason in own.decision.reasons]
        assert ("rule-by-record" in tokens) == is_said


def test_the_loops_share_of_links_is_that_of_one_filling_after_another():
    shares = Shares(3, {"x": {0: 0.9, 1: 0.2}, "y": {0: 0.5}, "z": {0: 0.1, 1: 1.0}})
    own = np.array([[0.0, 0.0, 0.0], [0.8, 0.0, 1.0], [0.1, 0.3, 0.0]])  # of y
    links, beside = shares.beside("x", "y", own)
    for loads, row in zip(own, beside, strict=True):
        moved = shares.with_loads("y", {link: load for link, load in enumerate(loads.tolist()) if load})
        assert row.tolist() == moved.of("x")[links].tolist()


def test_who_is_placed_beside_another_leaves_its_links_alone_where_it_earns_about_as_much():
    plans = [over("ab", microbatches=4), over("cd", microbatches=5)]
    known = Candidates(FLEET, TRAINING, plans)
    assert known.nominal[0] > known.nominal[1]
    state, _ = running(known, x=plans[0])
    measured = Measured(state, lambda _fleet, _spec: known)
    history = measured.seen_by("new")
    alone, together = (
        outlook_of(known, history, current=-1, interval_s=300.0, beside=beside).gain
        for beside in (lambda: None, lambda: measured.beside("new", known, None))
    )
    assert together[1] - together[0] > alone[1] - alone[0]


def test_of_plans_that_are_alike_none_is_taken_that_the_rule_did_not_mean():
    """It chose one that earns less: better ones are not alike."""
    plans = [over("ab"), over("c")]
    known = Candidates(FLEET, TRAINING, plans)
    assert known.nominal[1] > 1.5 * known.nominal[0]
    scheduler = Scheduler(lambda _outlook, _legal: 0, lambda _fleet, _job: known)
    result = run(FLEET, [JobSpec("x", TRAINING, ENDLESS)], scheduler, trace=NOMINAL, end_s=600.0)
    assert [item.decision.choice for item in result.changes] == [plans[0]]
