"""Links that several jobs send over: what each has is max-min fair, in the plan and in virtual time alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from strata.control.candidates import Candidates
from strata.control.measured import Measured
from strata.control.sharing import GRAIN, Shares, open_share, sent_s
from strata.control.simulated import SimulatedSites
from strata.control.state import Attempt, Job, JobSpec, Part, PartPhase, Snapshot, Start
from strata.simulate.analytic import StepModel
from strata.simulate.events.network import Flow, fair_rates
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.builders import domain, fleet, job, layers
from tests.support.laws import examples

FLEET = fleet(domain("a", 16), domain("b", 16), gbps=20.0)
HUNGRY, LIGHT = job(layers(mparams=900.0)), job(layers(gflops=40_000.0, mparams=2.0))
BOTH = TrainingPlan(tuple(Pipeline((Stage(name, 0, 10, 1),), 8, 4) for name in "ab"), 1)


def candidates(training):
    return Candidates(FLEET, training, [BOTH])


def rates_together(**jobs):
    """Return the steps a second of jobs that run together on both domains, and what each plans with."""
    sites, attempts = SimulatedSites(FLEET), {}
    known = {name: candidates(training) for name, training in jobs.items()}
    for name, training in jobs.items():
        parts = {place: Part(PartPhase.RUNNING) for place in "ab"}
        attempts[name] = Attempt(f"{name}-1", name, 1, BOTH, 0.0, 0, parts)
        for place in "ab":
            sites.start(Start(place, attempts[name], JobSpec(name, training, 10**9)), known[name])
    sites.advance(1e6)
    specs = {name: Job(JobSpec(name, training, 10**9)) for name, training in jobs.items()}
    measured = Measured(Snapshot(FLEET, specs, attempts), lambda _fleet, spec: known[spec.name])
    planned = {name: float(known[name].rates(measured.seen_by(name).rows[-1])[0]) for name in jobs}
    return {name: done / 1e6 for name, done in sites.trained.items()}, planned


def test_jobs_that_need_all_of_a_link_have_half_of_it_each():
    half = float(candidates(HUNGRY).rates((0.5, 0.5))[0])
    assert rates_together(x=HUNGRY, y=HUNGRY)[0] == pytest.approx({"x": half, "y": half})


def test_what_a_light_job_does_not_need_is_for_the_heavy():
    alone = float(candidates(HUNGRY).rates((1.0, 1.0))[0])
    rates, _ = rates_together(x=HUNGRY, y=LIGHT)
    assert 0.8 * alone < rates["x"] < alone


def test_for_a_job_alone_no_plan_is_timed_for_loads_that_decide_nothing(monkeypatch):
    attempts = {"x-1": Attempt("x-1", "x", 1, BOTH, 0.0, 0, {place: Part(PartPhase.RUNNING) for place in "ab"})}
    known, state = candidates(HUNGRY), Snapshot(FLEET, {"x": Job(JobSpec("x", HUNGRY, 10**9))}, attempts)
    monkeypatch.setattr(known, "loads", None)
    measured = Measured(state, lambda _fleet, _spec: known)
    assert measured.with_plan("x", BOTH).seen_by("x").rows == measured.seen_by("x").rows == [(1.0, 1.0)]


def test_two_jobs_that_would_fill_a_link_each_load_it_twice_and_one_that_has_ended_not_at_all():
    known = candidates(HUNGRY)
    parts = {place: Part(PartPhase.RUNNING) for place in "ab"}
    attempts = {name: Attempt(name, name, 1, BOTH, 0.0, 0, parts) for name in "xy"}
    specs = {name: Job(JobSpec(name, HUNGRY, 10**9)) for name in "xy"}

    def loads(**attempts):
        return Measured(Snapshot(FLEET, specs, attempts), lambda _fleet, _spec: known).loads()

    (alone,) = set(known.loads(BOTH, (1.0, 1.0)).values())
    assert loads(**attempts) == pytest.approx([2 * alone] * 2)
    assert loads(x=attempts["x"]) == pytest.approx([alone] * 2)
    assert loads() == pytest.approx([0.0, 0.0])


@pytest.mark.parametrize("other", [HUNGRY, LIGHT])
def test_what_is_planned_with_is_what_virtual_time_gives(other):
    rates, planned = rates_together(x=HUNGRY, y=other)
    assert planned == pytest.approx(rates)


def test_a_link_is_busy_for_the_bytes_that_the_cost_model_counts():
    split = TrainingPlan((Pipeline((Stage("a", 0, 5, 1, warmup=1), Stage("b", 5, 5, 1)), 2, 32),), 1)
    for plan in (BOTH, split):
        model = StepModel(FLEET, HUNGRY)
        sent = sum(sent_s(model, plan)[pair] * FLEET.links[pair].bandwidth_bytes_per_s for pair in FLEET.links)
        assert sent == pytest.approx(model.reports([plan])[0].wan_bytes_per_step)


LOADS = st.lists(st.floats(0.0, 1.0), max_size=6)


@examples(60)
@given(LOADS)
def test_the_share_of_one_more_is_that_of_progressive_filling(loads):
    env = simpy.Environment()
    flows = [Flow(None, 1.0, 1.0, limit, 0, env.event()) for limit in (*loads, float("inf"))]
    assert open_share(np.array(loads)) == pytest.approx(fair_rates(1.0, flows)[-1], abs=1e-9)


@examples(60)
@given(LOADS.filter(bool))
def test_jobs_together_never_have_more_than_there_is_and_none_less_than_an_equal_share(loads):
    shares = Shares(1, {str(number): {0: load} for number, load in enumerate(loads)})
    own = [float(shares.of(str(number))[0]) for number in range(len(loads))]
    assert sum(min(load, share) for load, share in zip(loads, own, strict=True)) <= 1 + 1e-9
    assert min(own) >= 1 / len(loads)
    assert 1 / (len(loads) + 1) <= shares.of("new")[0] <= 1


def test_a_job_alone_has_its_links_to_itself_and_one_domain_uses_none():
    inside = replace(BOTH, pipelines=BOTH.pipelines[:1])
    shares = Shares(2, {"x": {0: 0.3}, "y": candidates(HUNGRY).loads(inside, (1.0, 1.0))})
    assert shares.of("x").tolist() == [1.0, 1.0]
    assert shares.of("y").tolist() == [11 / GRAIN, 1.0]
