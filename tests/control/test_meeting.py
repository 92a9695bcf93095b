"""Domains whose drivers cannot meet: no plan is made over both, and decisions say why."""

from __future__ import annotations

import pytest

from strata.control.candidates import Candidates
from strata.control.core import Scheduler
from strata.control.meeting import apart
from strata.control.policies import exact
from strata.control.prospects import refusals
from strata.control.state import DomainSeen, JobSpec, Snapshot, Submitted
from strata.fleet.schema import KubeEntry, LocalEntry, SlurmEntry
from strata.workload.pins import Pins
from tests.support.builders import domain, fleet, job, layers

PLAIN = LocalEntry(kind="local")
INSIDE = LocalEntry(kind="local", namespace="east")
REACHED = LocalEntry(kind="local", namespace="west", address="10.77.0.2")
NORTH = LocalEntry(kind="local", namespace="north", address="10.77.0.3")
SLURM = SlurmEntry(kind="slurm")
SLURM_REACHED = SlurmEntry(kind="slurm", address="10.1.0.7")
PODS = KubeEntry(kind="kubernetes", image="x")
PODS_REACHED = KubeEntry(kind="kubernetes", image="x", address="10.1.0.8")


@pytest.mark.parametrize(
    ("first", "second", "meet"),
    [
        pytest.param(PLAIN, PLAIN, True, id="processes of one machine"),
        pytest.param(INSIDE, INSIDE, True, id="one namespace"),
        pytest.param(INSIDE, PLAIN, False, id="a loopback is another one in a namespace"),
        pytest.param(REACHED, NORTH, True, id="namespaces that are joined"),
        pytest.param(SLURM, SLURM, True, id="clusters tell their nodes' addresses in a shared folder"),
        pytest.param(REACHED, SLURM, False, id="a namespace and a cluster without an address"),
        pytest.param(REACHED, SLURM_REACHED, True, id="a namespace and a cluster with one"),
        pytest.param(PLAIN, SLURM_REACHED, False, id="a loopback leads no cluster here"),
        pytest.param(PODS, PODS_REACHED, False, id="pods without an address"),
        pytest.param(PODS_REACHED, PODS_REACHED, True, id="pods of two clusters with addresses"),
        pytest.param(PODS_REACHED, REACHED, False, id="pods and processes"),
        pytest.param(SLURM_REACHED, PODS_REACHED, False, id="a cluster and pods"),
    ],
)  # fmt: skip
def test_drivers_meet_where_each_is_reached_by_the_other(first, second, meet):
    pairs = apart({"a": first, "b": second})
    assert set(pairs) == (set() if meet else {("a", "b"), ("b", "a")})
    assert len(set(map(str, pairs.values()))) <= 1


FLEET = fleet(domain("a"), domain("b"), domain("c"), gbps=100.0, ms=1.0)
CUT = apart({"a": INSIDE, "b": SLURM, "c": SLURM})
WIDE = job(layers(gflops=40_000.0))


def test_no_plan_has_both_of_two_domains_that_cannot_meet_and_who_can_still_do():
    free, cut = ({plan.domains for plan in Candidates.of(FLEET, WIDE, apart=gone).plans} for gone in ({}, CUT))
    assert any({"a", "b"} <= set(names) for names in free)
    assert not any({"a", "b"} <= set(names) or {"a", "c"} <= set(names) for names in cut)
    assert any({"b", "c"} == set(names) for names in cut)
    assert ("a",) in cut


def decided(training):
    scheduler = Scheduler(exact, lambda fleet_, training_: Candidates.of(fleet_, training_, apart=CUT))
    inbox = (*(DomainSeen(name, 0.0, 8) for name in "abc"), Submitted(JobSpec("x", training, 10)))
    return scheduler, scheduler.step(Snapshot(FLEET, inbox=inbox), 0.0).decisions[0].decision


def test_a_decision_says_which_domains_were_not_planned_over_and_why():
    why = {other.name: str(other.reasons[0]) for other in decided(WIDE)[1].alternatives if not other.cost}
    sentence = "{0} and {1} cannot work on one job together: no `address` leads to {0} or {1} from elsewhere"
    assert why == {f"{a} + {b}": sentence.format(a, b) for a, b in (("a", "b"), ("a", "c"))}


def test_a_job_that_only_they_could_hold_says_why_it_waits():
    training = job(layers(24), pins=Pins(data=3, pipeline=1, tensor=8))
    scheduler, decision = decided(training)
    assert decision.choice is None
    assert {other.reasons[0].token for other in decision.alternatives} == {"domains-cannot-meet"}
    spec = JobSpec("x", training, 10)
    reasons = refusals(FLEET, spec, scheduler.plans(FLEET, spec), clock=lambda: 0.0)
    assert "domains-cannot-meet" in [reason.token for reason in reasons]
