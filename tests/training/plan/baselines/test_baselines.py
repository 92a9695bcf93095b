from __future__ import annotations

import importlib.util
from dataclasses import replace
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.training.plan.baselines import BASELINES, absent, nsga2
from strata.training.plan.baselines.context import Context, evaluate
from strata.training.plan.baselines.floor import chain_floors
from strata.training.plan.baselines.random_search import legal_chain
from strata.training.plan.baselines.uniform_rules import data_parallel, equal_share, uniform_chain
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import TOLERANCE
from strata.training.plan.exact.rows import build_chain
from strata.training.plan.exact.search import Search
from strata.training.plan.objective import Scales, money, score_report
from strata.training.plan.planner import plan_training
from strata.workload.job import Objective, Recompute
from strata.workload.profile import LayerProfile, LayerTimes
from tests.support.builders import card, domain, fleet, job, layers, link
from tests.support.laws import examples
from tests.support.small_cases import small_case

ELSEWHERE = "equal_gpus_one_domain"
"""Not a rule for this fleet but a bound on another."""


def context(num_devices: int = 8) -> Context:
    return Context(Scales(), num_devices, np.random.default_rng(0), lambda: 0.0, 1.0)


def compare(problem, context) -> dict:
    return {name: rule(problem, context) for name, rule in BASELINES.items()}


def run(small, asked):
    answer = plan_training(small, asked, clock=lambda: 0.0)
    devices = answer.best.plan.num_devices if answer.best else 1
    return answer, compare(answer.problem, context(devices))


def test_the_names_of_the_baselines_are_stable():
    assert list(BASELINES) == [
        "best_single_domain", ELSEWHERE, "uniform_split", "home_domain", "mast_like", "sailor_like",
        "latency_blind", "random_search", "nsga2",
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_no_baseline_beats_the_exact_plan(seed, monkeypatch):
    monkeypatch.setattr(nsga2, "GENERATIONS", 2)
    small, asked = small_case(seed)
    answer, others = run(small, asked)
    for name, item in others.items():
        if item is not None and name not in (ELSEWHERE, "uniform_split", "sailor_like"):
            assert answer.best.score <= item.score * (1 + 1.01e-4)
        if item is not None and name != ELSEWHERE:
            assert answer.problem.model.fits(item.plan)


def test_what_the_search_knows_is_not_looked_for_again(monkeypatch):
    """Of a proved plan in one domain no rule that keeps to single domains searches anything."""
    a = domain("a", 4)
    problem_fleet = fleet(a, domain("b", 4, accelerator=card(tflops=10)), gbps=0.01, ms=500)
    answer = plan_training(problem_fleet, job(layers(14), batch=32), clock=lambda: 0.0)
    assert answer.best.plan.domains == ("a",)
    known = replace(context(4), plan=answer.best.plan, known=answer.search)
    monkeypatch.setattr(Search, "run", lambda *_, **__: pytest.fail("nothing is left to search"))
    for name in ("best_single_domain", "home_domain", "mast_like"):
        assert BASELINES[name](answer.problem, known).plan == answer.best.plan


@examples(12)
@given(st.integers(0, 10**6))
def test_rules_that_are_told_what_the_search_knows_choose_as_well_as_without(seed):
    small, asked = small_case(seed)
    answer = plan_training(small, asked, clock=lambda: 0.0)
    if answer.best is None:
        return
    bare = replace(context(answer.best.plan.num_devices), plan=answer.best.plan)
    told = replace(bare, known=answer.search, alone=[])
    for name, tolerance in (
        ("best_single_domain", TOLERANCE), ("home_domain", TOLERANCE), ("mast_like", TOLERANCE),
        ("latency_blind", np.inf),
    ):  # fmt: skip
        with_it, without = (BASELINES[name](answer.problem, each) for each in (told, replace(bare, alone=[])))
        assert (with_it is None) == (without is None)
        if with_it is not None and without is not None:
            assert with_it.score <= without.score * (1 + tolerance)


@pytest.mark.parametrize("gib", [1.2, 4.0])
def test_pipelines_that_are_not_built_because_they_could_not_fit_fit_in_no_split(gib):
    small = card(gib=gib)
    problem = Problem.of(fleet(domain("a", 4, accelerator=small), domain("b", 2)), job(layers(6), batch=8))
    skipped = 0
    for config in problem.configs:
        for order in (order for count in (1, 2) for order in permutations(range(2), count)):
            if all(problem.stages(problem.fleet.domains[i], config) for i in order):
                built = list(build_chain(problem, config, order))
                assert legal_chain(problem, config, order) == built
                skipped += not built
    assert skipped, "some do not fit"


@examples(20)
@given(st.integers(0, 10**6))
def test_what_a_rule_draws_is_never_better_than_the_floor_that_leaves_it_unbuilt(seed):
    small, asked = small_case(seed)
    problem = Problem.of(small, replace(asked, objective=(Objective.TIME, Objective.COST)[seed % 2]))
    rng, every = np.random.default_rng(seed), range(len(problem.fleet.domains))
    for _ in range(20):
        config = problem.configs[rng.integers(len(problem.configs))]
        order = tuple(int(i) for i in rng.permutation(every)[: rng.integers(1, len(every) + 1)])
        [(step_s, usd)] = chain_floors(problem, [config], [order])
        for report in problem.model.reports(legal_chain(problem, config, order)):
            assert step_s <= report.step_time_s
            assert usd <= money(report)


@examples(20)
@given(st.integers(0, 10**6))
def test_uniform_rules_build_the_best_of_all_that_they_could(seed):
    small, asked = small_case(seed)
    problem = Problem.of(small, replace(asked, objective=(Objective.TIME, Objective.COST)[seed % 2]))
    even, count = problem.evenly_recomputed, len(problem.fleet.domains)
    part = equal_share(even)
    built = [uniform_chain(even, config, range(count)) for config in even.configs] if links_all(even) else []
    built += [data_parallel(part, config) for config in even.configs]
    items = evaluate(even, context(), [plan for plan in built if plan is not None] if count > 1 else [])
    best_score = min((item.score for item in items), default=np.inf)
    rule = BASELINES["uniform_split"](problem, context())
    assert (np.inf if rule is None else rule.score) == pytest.approx(best_score, rel=1e-9)


def links_all(problem):
    names = [domain.name for domain in problem.fleet.domains]
    return all(pair in problem.fleet.links for a, b in pairwise(names) for pair in ((a, b), (b, a)))


@pytest.mark.parametrize("name", ["uniform_split", "sailor_like"])
def test_uniform_rules_are_no_better_where_layers_are_like(name):
    answer, others = run(fleet(domain("a", 4), domain("b", 4), gbps=50), job(layers(14), batch=32))
    assert others[name] is not None
    assert answer.best.score <= others[name].score * (1 + 1.01e-4)


@pytest.fixture(scope="module")
def unequal():
    big, small = domain("big", 8), domain("small", 4, accelerator=card("old", tflops=40))
    return run(fleet(big, small, gbps=2), job(layers(14), batch=64, home="small"))[1]


def test_a_link_of_one_direction_only_makes_no_uniform_pipeline():
    one_way = link("a", "b", 5, 30)[:1]
    problem = Problem.of(fleet(domain("a"), domain("b"), links=one_way), job(layers(4), batch=8))
    assert BASELINES["uniform_split"](problem, context()) is None


def test_the_home_domain_is_where_the_job_says_it_lives(unequal):
    assert unequal["home_domain"].plan.domains == ("small",)


def test_the_best_single_domain_is_the_fast_one_and_a_region_of_its_own(unequal):
    assert unequal["best_single_domain"].plan.domains == ("big",)
    assert unequal["mast_like"].score == unequal["best_single_domain"].score


def test_a_uniform_split_gives_every_domain_the_same(unequal):
    plan = unequal["uniform_split"].plan
    assert set(plan.domains) == {"big", "small"}
    assert len({pipeline.microbatches for pipeline in plan.pipelines}) == 1


def test_the_ideal_domain_has_as_many_devices_and_no_links(unequal):
    item = unequal[ELSEWHERE]
    assert item.plan.domains == ("ideal",)
    assert item.report.wan_bytes_per_step == 0


def test_mast_takes_one_region_and_plans_it_exactly():
    west = {"region": "west"}
    small = fleet(domain("a", 4, **west), domain("b", 4, **west), domain("c", 4), gbps=400, ms=1)
    answer, others = run(small, job(layers(30), batch=64))
    assert set(others["mast_like"].plan.domains) == {"a", "b"}
    assert len(answer.best.plan.domains) == 3


def test_latency_blind_pays_for_the_latency_it_did_not_see():
    answer, others = run(fleet(domain("a"), domain("b"), gbps=1000, ms=2000), job(layers(8), batch=16))
    assert others["latency_blind"].score > answer.best.score


@pytest.mark.parametrize("seed", range(8))
def test_latency_blind_chooses_as_well_where_the_plan_is_known_to_it(seed):
    small, asked = small_case(seed)
    answer = plan_training(small, asked, clock=lambda: 0.0)
    if answer.best is not None:
        place = answer.problem.fleet
        links = {pair: replace(each, latency_s=0.0) for pair, each in place.links.items()}
        chosen = [
            BASELINES["latency_blind"](answer.problem, replace(context(), plan=plan)).plan
            for plan in (None, answer.best.plan)
        ]
        reports = answer.problem.relinked(replace(place, links=links)).model.reports(chosen)
        alone, known = (score_report(answer.problem.job, Scales(), report) for report in reports)
        assert known <= alone * (1 + 1.01e-4)


def test_the_same_seed_draws_the_same_plans():
    problem = Problem.of(fleet(domain("a"), domain("b")), job(layers(4), batch=16))
    first, second = (BASELINES["random_search"](problem, context()) for _ in range(2))
    assert first == second


def test_without_pymoo_nsga2_has_no_plan(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "needs pymoo" in absent("nsga2")
    assert nsga2.plan(Problem.of(fleet(domain("a")), job()), context()) is None


def test_a_fleet_without_usable_domains_has_no_baselines():
    problem = Problem.of(fleet(domain("a", 0)), job())
    assert set(compare(problem, context()).values()) == {None}


def test_a_profile_with_gaps_on_a_card_of_unknown_peak_stops_no_baseline():
    unknown = replace(card("new"), fp16_flops=None)
    times = LayerTimes(np.full(6, 0.01), np.full(6, 0.02), np.zeros(6))
    asked = job(layers(4), batch=8, profile=LayerProfile({("new", 4, 1): times}), recompute=(Recompute.NONE,))
    answer, others = run(fleet(domain("a", 2, accelerator=unknown), domain("b", 2)), asked)
    assert answer.best is not None
    assert others["best_single_domain"] is not None


@pytest.mark.long("plans with all baselines")
def test_as_many_gpus_in_one_domain_are_of_the_kind_that_does_best():
    slow = domain("slow", 32, accelerator=card("slow", tflops=50.0))
    fast = domain("fast", 16, accelerator=card("fast", tflops=400.0))
    answer, others = run(fleet(slow, fast, gbps=400, ms=1), job(layers(30), batch=64))
    ideal = others[ELSEWHERE]
    assert {stage.accelerator for stage in ideal.report.stages} == {"fast"}
    assert ideal.report.step_time_s <= answer.best.report.step_time_s


def test_a_last_node_is_filled_up_for_as_many_gpus_in_one_domain():
    answer, others = run(fleet(domain("a", 5, per_node=1), domain("b", 16)), job(layers(30), batch=64))
    assert others[ELSEWHERE].report.num_devices <= -(-answer.best.report.num_devices // 8) * 8
