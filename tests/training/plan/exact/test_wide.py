from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import UsageError
from strata.training.plan.exact import wide
from strata.training.plan.exact.floors import least_slowest
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.routes import PairCosts
from strata.training.plan.exact.search import Search
from strata.training.plan.exact.shards import ShardSpace
from strata.training.plan.objective import Scales
from strata.training.plan.planner import plan_training
from strata.training.plan.shortlist.branches import Builder
from strata.workload.job import Objective
from tests.support.builders import domain, fleet, job, layers, link
from tests.support.laws import examples
from tests.support.small_cases import every_plan, small_case, small_fleet, small_job


@pytest.mark.long("searches fleets of 11 to 14 domains")
@examples(2)
@given(st.integers(0, 10**6), st.integers(11, 14), st.sampled_from([Objective.TIME, Objective.COST]))
def test_no_plan_of_a_wide_fleet_beats_its_bound(seed, size, objective):
    rng = np.random.default_rng(seed)
    big = small_fleet(rng, size)
    more = {"global_batch": int(rng.choice([1, 2, 4])), "local_steps": (), "gradient_compression": (1.0,)}
    problem = Problem.of(big, small_job(rng, big, objective=objective, **more))
    bound = wide.bound(problem, Scales(), ShardSpace(problem, tuple(range(len(problem.fleet.domains)))))
    best = [wide.search(problem, Scales(), clock=lambda: 0.0, deadline=1.0, rank=0).best_score]
    some = range(0, len(problem.fleet.domains), 2)
    best.append(Search(problem, Scales(), some, clock=lambda: 0.0, deadline=1.0).run().best_score)
    assert bound <= min(best) * (1 + 1e-9)


@pytest.mark.long("every plan of small fleets")
@examples(25)
@given(st.integers(0, 10**6))
def test_no_plan_of_a_small_fleet_beats_the_bound_of_wide_ones(seed):
    problem = Problem.of(*small_case(seed))
    plans = every_plan(problem)
    if not plans:
        return
    shards = ShardSpace(problem, tuple(range(len(problem.fleet.domains))))
    alone = min((report.step_time_s for plan, report in plans if plan.kind == "single"), default=np.inf)
    for known in (-np.inf, alone):
        bound = wide.bound(problem, Scales(), shards, alone=known)
        assert bound <= min(report.step_time_s for _, report in plans) * (1 + 1e-9)


def clusters() -> tuple:
    """Two clusters of six well-joined domains, far from each other."""
    names = [f"{side}{i}" for side in "xy" for i in range(6)]
    near = [(a, b) for a in names for b in names if a != b and a[0] == b[0]]
    far = [(a, b) for a in names for b in names if a[0] != b[0]]
    links = [one for pairs, gbps, ms in ((near, 400, 1), (far, 0.1, 200)) for pair in pairs
             for one in link(*pair, gbps, ms)[:1]]  # fmt: skip
    return fleet(*(domain(name, 4) for name in names), links=links)


@pytest.mark.long("searches fleets of more than ten domains")
def test_a_wide_search_finds_the_well_joined_cluster():
    answer = plan_training(clusters(), job(layers(14), batch=32), clock=lambda: 0.0)
    sides = {name[0] for name in answer.best.plan.domains}
    assert len(answer.best.plan.domains) > 1
    assert len(sides) == 1


@pytest.mark.long("searches fleets of more than ten domains")
@pytest.mark.parametrize("objective", [Objective.TIME, Objective.COST])
def test_a_wide_answer_reports_a_gap_below_one(objective):
    answer = plan_training(clusters(), job(layers(14), batch=32, objective=objective), clock=lambda: 0.0)
    assert 0 <= answer.search.gap < 1
    assert answer.search.bound <= answer.best.score


@pytest.mark.long("searches fleets of more than ten domains")
def test_a_wide_search_out_of_time_keeps_its_best_plan_and_a_bound_that_holds():
    ticks = count()
    full = plan_training(clusters(), job(layers(14), batch=32), clock=lambda: float(next(ticks)), time_limit_s=1e9)
    almost, ticks = next(ticks) * 0.8, count()
    cut = plan_training(
        clusters(), job(layers(14), batch=32), clock=lambda: float(next(ticks)), time_limit_s=almost
    )
    assert cut.search.stopped
    assert cut.best.score >= full.best.score
    assert 0 < cut.search.bound <= full.best.score
    assert cut.search.gap < 1


@pytest.mark.parametrize("size", [63, 200, 1000])
def test_a_fleet_of_any_size_has_a_plan_however_short_the_time(size):
    sizes = np.random.default_rng(size).integers(1, 9, size)
    domains = [domain(f"d{i}", int(count) * 4) for i, count in enumerate(sizes)]
    ring = [one for i in range(size) for one in link(f"d{i}", f"d{(i + 1) % size}", 10, 20)]
    ticks = count()
    answer = plan_training(
        fleet(*domains, links=ring), job(layers(14), batch=32), clock=lambda: float(next(ticks)), time_limit_s=2
    )
    assert answer.search.stopped
    assert answer.best.plan.kind == "single"
    alone = fleet(domain("largest", int(sizes.max()) * 4))
    assert answer.best.score <= plan_training(alone, job(layers(14), batch=32), clock=lambda: 0.0).best.score
    assert not {"needs-devices"} & {reason.token for reason in answer.decision.reasons}


def test_a_first_plan_in_one_domain_looks_at_no_link(monkeypatch):
    def of(*_: object) -> PairCosts:
        raise AssertionError("links of a thousand domains take a second to look at")

    monkeypatch.setattr(PairCosts, "of", of)
    many = fleet(*(domain(f"d{i}", 8 + 8 * (i % 3)) for i in range(24)))
    answer = plan_training(many, job(layers(14), batch=32), clock=count().__next__, time_limit_s=0)
    assert answer.best.plan.kind == "single"


def test_the_learned_policy_refuses_more_domains_than_it_can_choose_among():
    many = fleet(*(domain(f"d{i}") for i in range(63)), links=[])
    with pytest.raises(UsageError, match="up to 62 domains, and this job may use 63") as error:
        Builder(Problem.of(many, job(layers(14))))
    assert error.value.hint.startswith("--planner exact")


def test_the_fleet_of_a_bottleneck_is_joined_by_its_least_slowest_link():
    slowness = np.array([[0, 1, 9, 9], [1, 0, 4, 9], [9, 4, 0, 2], [9, 9, 2, 0.0]])
    assert least_slowest(slowness, most=4).tolist() == [0, 1, 4, 4]
