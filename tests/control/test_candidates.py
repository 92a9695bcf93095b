"""Plans that a running job may change to."""

from strata.control.candidates import Candidates
from tests.support.builders import domain, fleet, job, layers


def test_a_domain_that_is_drained_leaves_a_plan_without_it():
    sites = fleet(domain("a", 2), domain("b", 2), gbps=1, ms=30)
    plans = Candidates.of(sites, job(layers(8), batch=16)).plans
    used = [set(plan.domains) for plan in plans]
    assert any("a" not in names for names in used)
    assert any("b" not in names for names in used)
