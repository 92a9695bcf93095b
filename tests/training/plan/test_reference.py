"""The reward's baseline: one for every planner, also where no single domain holds the job, and of egress alone."""

from __future__ import annotations

import math
import sys
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from strata.errors import UsageError
from strata.fleet.synthetic import random_fleet
from strata.training.hi_ppo.plan import plan_hi_ppo
from strata.training.hi_ppo.policy import safe_policy
from strata.training.plan.exact.problem import Problem
from strata.training.plan.planner import ENDS_SHARE, plan_training
from strata.training.plan.reference import reference
from strata.workload.job import Limits, Objective
from tests.support.builders import card, domain, fleet, job, layers, link

REWARDS = [Objective.REWARD, Objective.REWARD_EGRESS]


def sites(gib=80.0, **more):
    return fleet(
        *(domain(name, 4, accelerator=card(gib=gib)) for name in "abc"), **{"gbps": 50.0, "ms": 5.0, **more}
    )


def both(fleet, asked):
    """Return the answers of the exact planner and of Hi-PPO."""
    exact = plan_training(fleet, asked, clock=lambda: 0.0, rank=20)
    return exact, plan_hi_ppo(fleet, asked, policy=safe_policy(), clock=lambda: 0.0)


@pytest.mark.parametrize("gib", [80.0, 6.0], ids=["one domain holds it", "none does"])
@pytest.mark.parametrize("objective", REWARDS)
def test_exact_and_hi_ppo_measure_against_one_baseline_and_rank_alike(gib, objective):
    asked = job(batch=64, objective=objective)
    exact, learned = both(sites(gib), asked)
    assert exact.scales == learned.scales
    known = {item.plan: item.score for item in exact.plans}
    shared = [item for item in learned.search.by_set.values() if item.plan in known]
    assert shared
    for item in shared:
        assert item.score == pytest.approx(known[item.plan], rel=1e-9, abs=1e-12)
    by_exact = sorted(shared, key=lambda item: known[item.plan])
    assert by_exact == sorted(shared, key=lambda item: item.score)
    assert learned.plans[0].score == pytest.approx(exact.plans[0].score, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("time_limit_s", "is_estimate"), [(30.0, False), (1e-3, True)])
def test_hi_ppo_looks_for_the_baseline_no_longer_than_half_of_its_time(time_limit_s, is_estimate):
    """It had ten seconds of its own, whatever the limit was."""
    answer = plan_hi_ppo(
        sites(6.0), job(batch=64, objective=Objective.REWARD),
        policy=safe_policy(), clock=count(0.0, 1e-4).__next__, time_limit_s=time_limit_s,
    )  # fmt: skip
    assert answer.scales.is_estimate is is_estimate
    assert answer.best is not None


def test_where_no_single_domain_holds_the_job_the_reward_is_measured_against_the_uniform_split():
    asked = job(batch=64, objective=Objective.REWARD)
    answer = plan_training(sites(6.0), asked, clock=lambda: 0.0)
    assert all(len(item.plan.domains) > 1 for item in answer.plans)
    assert answer.scales.baseline_s > 5  # it was 1 s for any job, and scores were step times
    assert all(abs(item.score) < 3 for item in answer.plans)
    assert (
        answer.plans[0].score <= 0.3
    )  # no worse than the uniform split itself, of which R is 0.3 U - 0.3 at least


def test_where_the_uniform_split_does_not_fit_either_it_is_the_fastest_plan():
    small = domain("c", 1, accelerator=card(gib=0.5))
    one = fleet(*(domain(name, 4, accelerator=card(gib=6.0)) for name in "ab"), small, gbps=50.0, ms=5.0)
    problem = Problem.of(one, job(batch=64, objective=Objective.REWARD))
    fastest = plan_training(one, job(batch=64), clock=lambda: 0.0).best
    scales = reference(problem, clock=lambda: 0.0, deadline=1.0)
    assert scales.baseline_s == pytest.approx(fastest.report.step_time_s, rel=1e-6)


def test_nothing_fits_and_there_is_no_baseline():
    problem = Problem.of(sites(0.1), job(batch=64, objective=Objective.REWARD))
    assert reference(problem, clock=lambda: 0.0, deadline=1.0) is None


def test_egress_alone_leaves_out_what_devices_cost():
    asked = job(batch=64, objective=Objective.REWARD_EGRESS, weights=(0.4, 0.3, 0.3))
    cheap, dear = (
        plan_training(
            replace(
                one, domains=tuple(replace(d, price_usd_per_device_hour=price) for d in one.domains)
            ), asked, clock=lambda: 0.0,
        )
        for one, price in ((sites(), 1.0), (sites(), 100.0))
    )  # fmt: skip
    assert [item.score for item in cheap.plans] == [item.score for item in dear.plans]
    for item in cheap.plans:
        report, scales = item.report, cheap.scales
        efficiency = 1 - report.step_time_s / scales.baseline_s
        reward = (
            0.4 * efficiency + 0.3 * report.utilization - 0.3 * report.egress_usd_per_step / scales.baseline_usd
        )
        assert item.score == pytest.approx(-reward, abs=1e-9)
    assert cheap.scales.baseline_usd < math.inf


@pytest.mark.parametrize(
    ("given", "more", "said"),
    [
        (sites(links=[part for a, b in ("ab", "bc", "ac") for part in link(a, b, 5, 30, usd_per_gb=0.0)]), {},
         "no link of .* has a price"),
        (sites(), {"limits": Limits(cost_usd_per_step=1.0)}, "leaves out what devices cost"),
    ],
)  # fmt: skip
def test_what_egress_alone_cannot_weigh_is_said(given, more, said):
    with pytest.raises(UsageError, match=said):
        plan_training(given, job(batch=64, objective=Objective.REWARD_EGRESS, **more), clock=lambda: 0.0)


MEASURED = [*REWARDS, Objective.TCHEBYCHEFF]


def large():
    """Return a fleet and a job that no limit of these tests is enough for."""
    cards = (card("x", gib=24.0), card("y", tflops=300))
    return random_fleet(10, cards, np.random.default_rng(1), devices=256), layers(32, mparams=2_000.0)


@pytest.mark.long("searches until a limit of time")
@pytest.mark.parametrize("objective", MEASURED)
def test_the_reference_has_a_share_of_the_time_limit_and_that_it_is_an_estimate_is_said(objective):
    """The clock counts calls of functions, so that the speed of this machine has no say."""
    sites, model = large()
    calls, limit, phases = 0, 2_000_000, []

    def count_calls(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    @contextmanager
    def progress(label, *, total=None):
        begun = calls
        yield lambda _done: None
        phases.append((label, calls - begun))

    before = sys.getprofile()
    sys.setprofile(count_calls)
    try:
        answer = plan_training(
            sites, job(model, batch=512, objective=objective), clock=lambda: float(calls), time_limit_s=limit,
            progress=progress,
        )  # fmt: skip
    finally:
        sys.setprofile(before)
    assert answer.best is not None
    assert [label for label, _ in phases] == ["what scores are measured against", "planning"]
    assert phases[0][1] < 1.2 * ENDS_SHARE * limit
    assert calls < 1.2 * limit
    assert answer.scales.is_estimate
    assert "scale-estimated" in [reason.token for reason in answer.decision.reasons]


@pytest.mark.parametrize("objective", MEASURED)
def test_a_reference_that_is_proved_is_no_estimate(objective):
    answer = plan_training(sites(), job(batch=64, objective=objective), clock=lambda: 0.0)
    assert not answer.scales.is_estimate
    assert "scale-estimated" not in [reason.token for reason in answer.decision.reasons]
    assert plan_training(sites(), job(batch=64), clock=lambda: 0.0).scales.is_estimate is False


@pytest.mark.parametrize("objective", MEASURED)
def test_without_any_time_scores_are_measured_against_a_first_plan(objective):
    ticks = iter(range(10**9))
    asked = job(batch=64, objective=objective)
    answer = plan_training(sites(), asked, clock=lambda: float(next(ticks)), time_limit_s=0)
    assert answer.best is not None
    assert answer.scales.is_estimate
    assert abs(answer.best.score) < 3
