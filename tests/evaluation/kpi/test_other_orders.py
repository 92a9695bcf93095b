import numpy as np
import pytest

from strata.evaluation.kpi.other_orders import other_orders
from strata.training.plan.exact.pareto import vector
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import Evaluated
from strata.training.plan.shortlist.selection import shortlist
from tests.support.builders import domain, fleet, job, link


def crossed(count):
    """Domains whose quick links are dear and whose slow links are cheap: order trades time for money."""
    rng = np.random.default_rng(3)
    names = [f"d{i}" for i in range(count)]
    links = []
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            gbps = float(rng.uniform(1, 20))
            links += link(a, b, gbps, 5.0, usd_per_gb=0.01 * gbps)
    return Problem.of(fleet(*(domain(name, 8) for name in names), links=links), job(batch=16))


@pytest.fixture(scope="module")
def six():
    problem = crossed(6)
    return problem, shortlist(problem)


def test_other_orders_are_new_plans_that_fit_in_the_same_domains(six):
    problem, items = six
    found = other_orders(problem, items)
    known = {item.plan for item in items}
    sets = {frozenset(item.plan.domains) for item in items}
    assert found
    assert all(item.plan not in known and problem.model.fits(item.plan) for item in found)
    assert {frozenset(item.plan.domains) for item in found} <= sets


def test_few_domains_have_no_other_orders():
    problem = crossed(3)
    assert other_orders(problem, shortlist(problem)) == []
    assert other_orders(problem, []) == []


def test_other_orders_are_evaluated_as_the_model_does(six):
    problem, items = six
    one = other_orders(problem, items)[0]
    [report] = problem.model.reports([one.plan])
    assert isinstance(one, Evaluated)
    assert vector(one.report) == vector(report)
