"""Jobs that decide at one time on shared links: each reckons with what those before it decided."""

from __future__ import annotations

import numpy as np
import pytest

from strata.control.candidates import Candidates
from strata.control.core import Scheduler
from strata.control.measured import Measured
from strata.control.policies import PolicyName, choose_by
from strata.control.replay import ENDLESS, run
from strata.control.state import Job, JobSpec, Snapshot
from strata.fleet.dynamics.replay import Replay
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
