"""The inter-domain agent on small fleets: first plans, keep or switch, and what it says when things are odd."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from strata.fleet.schema import load_fleet
from strata.training.hi_ppo.global_agent import InUse, Outlook, answers, decide
from strata.training.hi_ppo.plan import plan_hi_ppo
from strata.training.hi_ppo.policy import load_policy, safe_policy
from strata.training.plan.exact.problem import Problem
from strata.training.plan.planner import plan_training
from strata.training.plan.shortlist.preferences import preferences
from strata.training.plan.shortlist.selection import shortlist
from strata.training.replan.options import HORIZONS
from strata.workload.job import Limits, Objective
from strata.workload.schema import load_job
from tests.support.builders import domain, fleet, job, layers, link

EAST_WEST = fleet(domain("east", 8), domain("west", 16), gbps=50.0, ms=5.0)
JOB = job(batch=64)


def problem(fleet=EAST_WEST, job=JOB) -> Problem:
    return Problem.of(fleet, job)


def choose(asked=None, policy=None, **more):
    return decide(asked or problem(), policy=policy or load_policy(), clock=lambda: 0.0, **more)


def links_at(*factors: float, stay: float = 0.9) -> Outlook:
    """One pair of domains: its share of bandwidth now and at the horizons ahead."""
    return Outlook(np.array([factors]).T, np.array([stay]))


@pytest.mark.parametrize("objective", [Objective.TIME, Objective.COST])
def test_a_first_plan_is_the_best_candidate(objective):
    asked = problem(job=replace(JOB, objective=objective))
    made = choose(asked)
    exact = plan_training(EAST_WEST, asked.job, clock=lambda: 0.0).best
    reached = made.best.report
    if objective is Objective.TIME:
        assert reached.step_time_s <= 1.02 * exact.report.step_time_s
    else:
        assert reached.cost_usd_per_step <= 1.02 * exact.report.cost_usd_per_step


@pytest.mark.long("plans a real model")
def test_experts_are_spread_as_the_planner_does():
    """All experts lay on every device: of mixtures the policy's plans took up to a fifth longer."""
    sites, work = load_fleet("hub").only(["Chongqing"]), load_job("qwen3-30b-a3b")
    work = replace(work, objective=Objective.TIME)
    best = plan_training(sites, work, clock=lambda: 0.0, rank=0).best
    made = choose(problem(sites, work)).best
    assert best.plan.expert_parallel > 1
    assert made.report.step_time_s <= 1.02 * best.report.step_time_s


def test_the_best_plan_in_use_is_kept_and_that_is_explained():
    first = choose()
    again = choose(in_use=InUse(first.best.plan), items=first.items)
    assert again.best.plan == first.best.plan
    assert again.explanation.in_use == again.explanation.taken


def test_a_better_plan_is_not_worth_it_when_trouble_passes_but_is_when_it_stays():
    across = choose()
    assert across.best.plan.kind != "single"
    running = InUse(across.best.plan, interval_s=300.0, restart_s=150.0)
    passes = choose(in_use=running, items=across.items, outlook=links_at(0.02, 1.0, 1.0, 1.0, 1.0, stay=0.0))
    stays = choose(in_use=running, items=across.items, outlook=links_at(*[0.02] * 5, stay=0.99))
    assert passes.best.plan == across.best.plan
    assert stays.best.plan != across.best.plan
    assert stays.explanation.keeping["over_16_steps"] > 0


def test_a_plan_whose_domain_vanished_is_left_and_that_is_said():
    across = choose()
    made = choose(problem(EAST_WEST.only(["west"])), in_use=InUse(across.best.plan))
    assert made.best.plan.domains == ("west",)
    assert [reason.token for reason in made.reasons] == ["plan-gone"]


def test_a_fleet_larger_than_tried_is_left_to_the_safe_rule_and_that_is_said():
    small = replace(load_policy(), record={"most_domains": 1})
    made = choose(policy=small)
    assert [reason.token for reason in made.reasons] == ["fleet-too-large"]
    assert made.best.plan == choose(policy=safe_policy()).best.plan


@pytest.mark.long("a law over many fleets")
def test_where_nothing_fits_there_is_no_plan_and_no_error():
    huge = job(layers(8, mparams=1e6))
    made = choose(problem(job=huge))
    assert made.best is None
    answer = plan_hi_ppo(EAST_WEST, huge, policy=load_policy(), clock=lambda: 0.0)
    assert answer.best is None
    assert answer.decision.choice is None
    assert any(reason.token == "needs-devices" for reason in answer.decision.reasons)


def test_plans_that_no_link_can_bring_the_weights_to_are_no_options_and_no_fault():
    links = link("east", "west", 50.0, 5.0) + link("west", "far", 50.0, 5.0)
    chain = problem(fleet(domain("east", 8), domain("west", 16), domain("far", 8), links=links))
    first = choose(chain)
    alone = next(item.plan for item in first.items if item.plan.domains == ("east",))
    made = choose(chain, in_use=InUse(alone), items=first.items)
    assert made.reasons == ()
    assert any(item.plan.domains == ("far",) for item in made.ranked)
    assert "far" not in made.best.plan.domains


def test_bandwidth_that_is_not_a_number_is_answered_by_the_safe_rule():
    first = choose()
    broken = links_at(np.nan, np.nan, np.nan, np.nan, np.nan)
    made = choose(in_use=InUse(first.best.plan), items=first.items, outlook=broken)
    assert "figures-not-finite" in [reason.token for reason in made.reasons]
    assert made.best.plan == first.best.plan


def test_corner_preferences_return_the_ends_of_the_candidates():
    asked = problem()
    items = shortlist(asked)
    picked = answers(asked, items, preferences(16), policy=load_policy())
    assert len(picked) <= 16
    assert min(i.report.step_time_s for i in picked) == min(i.report.step_time_s for i in items)
    assert min(i.report.cost_usd_per_step for i in picked) == pytest.approx(
        min(i.report.cost_usd_per_step for i in items)
    )


def test_an_answer_ranks_one_plan_a_set_of_domains_the_choice_first():
    answer = plan_hi_ppo(EAST_WEST, JOB, policy=load_policy(), clock=count().__next__)
    assert answer.plans[0].plan == answer.decision.choice
    sets = [item.domain_set for item in answer.plans]
    assert len(sets) == len(set(sets))
    assert answer.policy["explanation"]["taken"]


@pytest.mark.long("a law over many fleets")
def test_limits_hold_for_every_candidate():
    floor = 1.01 * choose().best.report.tokens_per_s
    made = choose(problem(job=replace(JOB, limits=Limits(tokens_per_s=floor))))
    assert made.best is None


def test_nominal_links_change_nothing():
    made = choose()
    same = choose(items=made.items, outlook=Outlook.nominal(2))
    assert same.best.plan == made.best.plan
    assert len(Outlook.nominal(2).factors) == len(HORIZONS)
