"""What a switch costs in virtual time: weights are where the last finished move brought them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import chain, count, repeat

import numpy as np
import pytest

from strata.control.candidates import Candidates
from strata.control.core import Scheduler
from strata.control.policies import PolicyName, choose_by
from strata.control.replay import ENDLESS, clairvoyant, run, trace_s
from strata.control.rollouts import Moving
from strata.control.simulated import SimulatedSites
from strata.control.state import Attempt, JobSpec, Part, PartPhase, Start
from strata.fleet.dynamics.replay import Replay
from strata.training.environment.network import scaled
from strata.training.hi_ppo.global_agent import RESTART_S
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.builders import domain, fleet, job, layers

_ALIKE = fleet(domain("a", 16), domain("b", 16), domain("c", 16), gbps=20.0)
FLEET = _ALIKE.with_links(  # away from a it takes long, between b and c it does not
    scaled(link, bandwidth=0.02 if "a" in pair else 1.0) for pair, link in _ALIKE.links.items()
)
TRAINING = job(layers(mparams=900.0))
A, B, C = (TrainingPlan((Pipeline((Stage(name, 0, 10, 1),), 8, 4),), 1) for name in "abc")


@cache
def candidates():
    return Candidates(FLEET, TRAINING, [A, B, C])


class Course:
    """One job whose attempts are started and stopped by hand."""

    def __init__(self):
        self.sites, self.numbers, self.attempt = SimulatedSites(FLEET), count(1), None

    def go(self, plan, after_s=0.0):
        self.sites.advance(self.sites.now_s + after_s)
        if self.attempt is not None:
            for name in self.attempt.plan.domains:
                self.sites.stop(self.attempt.id, name)
            self.sites.observe()
        number = next(self.numbers)
        parts = {name: Part(PartPhase.RUNNING) for name in plan.domains}
        self.attempt = Attempt(f"job-{number}", "job", number, plan, self.sites.now_s, 0, parts)
        for name in plan.domains:
            self.sites.start(Start(name, self.attempt, JobSpec("job", TRAINING, ENDLESS)), candidates())
        return self

    @property
    def pause_s(self):
        return self.sites.runs[self.attempt.id].pause_s


def move_s(source, dest):
    index = candidates().index
    return candidates().moves_s((1.0,) * len(FLEET.links))[index[source], index[dest]]


def test_who_leaves_before_weights_have_moved_pays_the_whole_move_from_where_they_are():
    assert move_s(A, B) > RESTART_S + 100
    assert move_s(B, C) < move_s(A, C) - 100
    assert Course().go(A).go(B, after_s=50).go(C, after_s=100).pause_s == pytest.approx(move_s(A, C))


def test_who_comes_back_before_weights_have_moved_pays_a_restart():
    assert Course().go(A).go(B, after_s=50).go(A, after_s=100).pause_s == RESTART_S


def test_who_trained_there_begins_the_next_move_there():
    course = Course().go(A).go(B, after_s=50).go(A, after_s=move_s(A, B) + 1)
    assert course.pause_s == pytest.approx(move_s(B, A))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rule", [PolicyName.EXACT, PolicyName.HYSTERESIS, "by way of b"])
def test_nobody_keeps_more_than_who_knows_the_trace_where_moves_take_several_decisions(seed, rule):
    both = TrainingPlan((Pipeline((Stage("b", 0, 5, 1, warmup=1), Stage("c", 5, 5, 1)), 8, 4),), 1)
    known, rng = Candidates(FLEET, TRAINING, [A, B, both]), np.random.default_rng(seed)
    assert known.nominal[2] > 1.2 * known.nominal[0]
    trace = Replay(np.arange(20) * 60.0, rng.choice([1.0, 0.2], (5, len(FLEET.links))).repeat(4, axis=0))
    way = chain([0, 1], repeat(2))
    kept = []
    most = clairvoyant(known, trace, interval_s=60.0)
    for choose in ((lambda _outlook, _legal: next(way)) if rule == "by way of b" else choose_by(rule), most):
        scheduler = Scheduler(choose, lambda _fleet, _job: known, 60.0)
        end_s = trace_s(trace, 60.0)
        result = run(FLEET, [JobSpec("job", TRAINING, ENDLESS)], scheduler, trace=trace, end_s=end_s)
        kept.append(result.trained["job"])
    assert kept[0] <= kept[1] * (1 + 1e-9)


def played(choose, until_s, speeds=None):
    """Return what a job keeps of decisions a minute apart, on links that stay."""
    scheduler = Scheduler(choose, lambda _fleet, _job: candidates(), 60.0)
    return run(FLEET, [JobSpec("job", TRAINING, ENDLESS)], scheduler, trace=None, speeds=speeds, end_s=until_s)


def test_a_job_that_still_moves_reckons_from_where_its_weights_lie():
    way, seen = chain([0], repeat(1)), []

    def choose(outlook, _legal):
        seen.append(outlook)
        return next(way)

    speeds = Replay(np.array([0.0]), np.ones((1, 3)))
    move = move_s(A, B)
    played(choose, 60 + move + 120, speeds)
    on_the_way, there = seen[2], seen[-1]
    assert on_the_way.rollouts.moving == Moving(0, pytest.approx((move - 60) / 60))
    assert on_the_way.cost == pytest.approx([0.0, 0.0, (move_s(A, C) - move + 60) / 60])
    assert there.rollouts.moving is None
    assert there.cost == pytest.approx([move_s(B, A) / 60, 0.0, move_s(B, C) / 60])


@pytest.mark.parametrize("rule", [PolicyName.EXACT, PolicyName.HYSTERESIS])
def test_nobody_breaks_off_a_move_that_is_nearly_over_for_what_is_near_where_it_goes(rule):
    arrives_s, way, decide = 60 + move_s(A, B), iter([0, 1]), choose_by(rule)
    speeds = np.array([[1.0, 0.9, 0.9], [0.01, 0.9, 0.9], [0.01, 0.05, 0.9]])
    trace = Replay(np.array([0.0, 60.0, np.ceil(arrives_s / 60 - 1) * 60]), speeds)  # at the last decision before

    def choose(outlook, legal):
        pick = decide(outlook, legal)
        return next(way, pick)

    changes = played(choose, 1.5 * arrives_s, trace).changes
    assert [change.decision.choice for change in changes] == [A, B, C]
    assert changes[2].at_s >= arrives_s


def test_weights_have_moved_once_the_first_step_is_done_or_the_time_is_over():
    attempt = Attempt("job-2", "job", 2, B, 100.0, 5, {}, step=5, moved_s=160.0)
    assert [attempt.left_s(now_s) for now_s in (120.0, 200.0)] == [40.0, 0.0]
    assert replace(attempt, step=6).left_s(120.0) == 0.0
    assert replace(attempt, moved_s=None).left_s(200.0) == np.inf
