"""Plans are made once for each kind of job: a name makes no other kind, a measured profile does."""

from dataclasses import replace

import numpy as np

from strata.control import plans
from strata.fleet.schema import load_fleet
from strata.workload.profile import LayerProfile, LayerTimes
from strata.workload.schema import load_job


def test_jobs_that_differ_by_name_alone_share_their_plans(monkeypatch):
    made = []
    monkeypatch.setattr(plans.Candidates, "of", lambda _fleet, job, **_: made.append(job.name) or object())
    fleet, plan = load_fleet("seed"), plans.planner()
    job = load_job("opt-350m")
    other = replace(load_job("opt-350m"), name="other")
    times = LayerTimes(*(np.ones(1),) * 3)
    measured = replace(job, profile=LayerProfile({("A100-SXM4-80GB", 1, 1): times}))
    larger = replace(job, global_batch=2 * job.global_batch)
    assert plan(fleet, job) is plan(fleet, other) is plan(fleet, job)
    assert len({id(plan(fleet, each)) for each in (job, measured, larger)}) == 3
    assert len(made) == 3
    assert plan(load_fleet("seed"), job) is not None
    assert len(made) == 4
