"""Plans as rows of a formula, held against the cost model they come from."""

import numpy as np
import pytest

from strata.simulate.analytic import StepModel
from strata.training.environment.network import scaled
from strata.training.plan.exact.problem import Problem
from strata.training.plan.shortlist.selection import shortlist
from strata.training.replan import response as response_module
from strata.training.replan.response import PlanResponse, pair_numbers
from tests.support.builders import card, domain, fleet, job, layers


def cases(**more):
    """Three sites whose links matter, and some dozens of plans on them."""
    sites = fleet(*(domain(name, 8, accelerator=card(gib=40)) for name in "abc"), gbps=8.0, ms=20.0)
    problem = Problem.of(sites, job(layers(hidden_mib=8.0, mparams=200), batch=32, **more))
    return problem, [item.plan for item in shortlist(problem, most=48)]


def truth(problem, plans, factors):
    numbers = pair_numbers(len(problem.fleet.domains))
    at = problem.fleet.index
    links = problem.fleet.links.values()
    changed = (scaled(k, bandwidth=float(factors[numbers[at(k.source), at(k.dest)]])) for k in links)
    model = StepModel(problem.fleet.with_links(changed), problem.job)
    return np.array([report.step_time_s for report in model.reports(plans)])


@pytest.mark.parametrize("more", [{}, {"local_steps": (8,)}], ids=["in-step", "diloco"])
def test_at_nominal_links_it_is_the_cost_model(more):
    problem, plans = cases(**more)
    response = PlanResponse.of(problem.model, plans)
    assert {plan.kind for plan in plans} >= {"single", "pp"}
    np.testing.assert_allclose(response.step_s(np.ones(3)), truth(problem, plans, np.ones(3)), rtol=1e-9)


def test_when_all_links_change_alike_it_stays_close():
    problem, plans = cases(local_steps=(8,))
    response = PlanResponse.of(problem.model, plans)
    for factor in (0.5, 0.7, 1.3):
        error = response.step_s(np.full(3, factor)) / truth(problem, plans, np.full(3, factor)) - 1
        assert np.abs(error).max() < 0.12
        assert np.abs(error).mean() < 0.02


@pytest.mark.parametrize(("draw", "lost_share"), [("within 30 %", 0.01), ("regimes", 0.15)])
def test_its_choice_costs_little_when_links_differ(draw, lost_share, rng):
    """In regimes a gradient sum is what differs: the cost model picks another ring, the row keeps its own."""
    problem, plans = cases(local_steps=(8,))
    response = PlanResponse.of(problem.model, plans)
    lost = []
    for _ in range(12):
        factors = rng.choice((1.0, 0.5, 0.15), size=3) if draw == "regimes" else rng.uniform(0.7, 1.3, size=3)
        step_s = truth(problem, plans, factors)
        lost.append(step_s[response.step_s(factors).argmin()] / step_s.min() - 1)
    assert np.mean(lost) < lost_share


def test_slower_links_and_busier_domains_never_help(rng):
    problem, plans = cases()
    response = PlanResponse.of(problem.model, plans)
    for _ in range(50):
        fast = rng.uniform(0.1, 2.0, size=3)
        slow = fast * rng.uniform(0.1, 1.0, size=3)
        assert (response.step_s(slow) >= response.step_s(fast) - 1e-12).all()
        assert (response.step_s(fast, slow=1.2) >= response.step_s(fast)).all()


def test_a_plan_of_one_domain_does_not_know_the_network():
    problem, plans = cases()
    alone = [plan for plan in plans if plan.kind == "single"]
    response = PlanResponse.of(problem.model, alone)
    np.testing.assert_array_equal(response.step_s(np.full(3, 0.02)), response.step_s(np.ones(3)))


def test_some_rows_answer_as_they_did_among_all():
    problem, plans = cases()
    response = PlanResponse.of(problem.model, plans)
    factors = np.array([0.4, 0.9, 1.1])
    np.testing.assert_array_equal(response.only([3, 1]).step_s(factors), response.step_s(factors)[[3, 1]])


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def test_links_that_ask_for_more_than_the_whole_step_leave_some_of_it_to_compute(monkeypatch):
    problem, plans = cases()
    real = response_module._terms

    def dear(model, plan):
        row = real(model, plan)
        for number in list(row.links):
            row.links[number] = row.links[number] * 1e4
        return row

    monkeypatch.setattr(response_module, "_terms", dear)
    response = PlanResponse.of(problem.model, plans)
    assert (response.compute_s > 0).all()
    np.testing.assert_allclose(response.step_s(np.ones(3)), truth(problem, plans, np.ones(3)), rtol=1e-9)
