"""Plans that a running job may change to."""

from strata.control.candidates import Candidates
from strata.fleet.schema import load_fleet
from strata.workload.schema import load_job
from tests.support.builders import domain, fleet, job, layers


def test_a_domain_that_is_drained_leaves_a_plan_without_it():
    sites = fleet(domain("a", 2), domain("b", 2), gbps=1, ms=30)
    plans = Candidates.of(sites, job(layers(8), batch=16)).plans
    used = [set(plan.domains) for plan in plans]
    assert any("a" not in names for names in used)
    assert any("b" not in names for names in used)


def test_while_domains_are_free_a_job_has_a_plan_for_them():
    sites = fleet(*(domain(name, 2) for name in "abcde"), gbps=10, ms=1)
    plans = [set(plan.domains) for plan in Candidates.of(sites, job(layers(8), batch=16)).plans]
    assert all({name} in plans for name in "abcde")
    free = set("abcde") - plans[0]
    assert not free or any(names <= free for names in plans)


def test_each_domain_of_the_seed_has_a_plan_alone():
    seed = load_fleet("seed")
    alone = {
        plan.domains for plan in Candidates.of(seed, load_job("llama-3.1-8b")).plans if len(plan.domains) == 1
    }
    assert len(alone) == len(seed.domains)
