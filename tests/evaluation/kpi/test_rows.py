import json

import numpy as np
import pytest

from strata.control.balance import work_shares
from strata.decision import Trust
from strata.evaluation.kpi import allocation_error, communication_cost_reduction, training_time_reduction
from strata.evaluation.kpi import compared as compared_module
from strata.evaluation.kpi.compared import SYNC_DP, Compared, compare
from strata.evaluation.kpi.dynamics import DECISIONS, Change, Dynamics, Played, corners, independent
from strata.evaluation.kpi.instances import PlanningCase
from strata.evaluation.kpi.kpi import NAMES, Kpi, jsonable, summary
from strata.evaluation.kpi.study import Study
from strata.evaluation.kpi.table import answer, measure_all
from strata.evaluation.kpi.ways import ways
from strata.simulate.report import StepReport
from strata.training.hi_ppo.policy import HiPpoPolicy, safe_policy
from strata.training.plan.baselines import BASELINES
from strata.training.plan.baselines.context import Unfinished
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import Evaluated
from strata.training.plan.planner import plan_training
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.builders import domain, fleet, job

KEYS = {
    "met_without",
    "beside",
    "strongest",
    "name",
    "definition",
    "baseline",
    "value",
    "target",
    "sense",
    "met",
    "ci95",
    "instances",
    "guards",
    "trust",
}


def ticking():
    """A clock that no machine makes slow."""
    now = [0.0]

    def clock():
        now[0] += 1e-3
        return now[0]

    return clock


def study(**more):
    return Study(safe_policy(), ticking(), ticking(), quick=True, **more)


def plan(*domains, local_steps=1):
    stages = [Stage(name, 0, 10, 8) for name in domains]
    pipelines = tuple(Pipeline((stage,), 1, 8) for stage in stages)
    return TrainingPlan(pipelines, 1, local_steps=local_steps)


def item(step_s, egress=0.0, *domains, local_steps=1):
    chosen = plan(*(domains or ("a",)), local_steps=local_steps)
    report = StepReport(
        step_time_s=step_s,
        tokens_per_s=1000 / step_s,
        utilization=0.5,
        wan_bytes_per_step=0.0,
        egress_usd_per_step=egress,
        cost_usd_per_step=egress + 1.0,
        cost_usd_per_mtoken=(egress + 1.0) * 1000,
        num_devices=8 * len(chosen.pipelines),
        stages=(),
        trust=Trust.ANALYTIC,
        breakdown_s={},
    )
    return Evaluated(chosen, report, step_s)


def compared(ours, *, is_single_best=False, front=(), **others):
    named = dict.fromkeys((*training_time_reduction.NAMED, SYNC_DP))
    instance = PlanningCase(900_000, fleet(domain("a"), domain("b")), job())
    own = tuple(front) or (ours,)
    return Compared(instance, ours, own, ours, own, {**named, **others}, (), is_single_best)


def row(value, target, sense):
    return Kpi("x", "d", "b", value, target, sense, (None, None), 1, {}, Trust.MEASURED)


@pytest.mark.parametrize(
    ("value", "target", "sense", "met"),
    [
        (0.85, 0.85, "at least", True),
        (0.84, 0.85, "at least", False),
        (1.0, 1.0, "below", False),
        (2.0, 2.0, "at most", True),
        ("PPO", "PPO", "is", True),
        ("none", "PPO", "is", False),
        (None, 0.05, "below", False),
    ],
)
def test_a_row_is_met_as_its_sense_says(value, target, sense, met):
    assert row(value, target, sense).met is met


def test_json_of_a_row_has_stable_keys_and_no_nan():
    data = row(float("nan"), 1.0, "below").to_dict()
    assert set(data) == KEYS
    assert data["value"] is None
    assert data["met"] is False
    json.dumps(jsonable({"a": np.float64("inf"), "b": (np.int64(1), np.bool_(True))}), allow_nan=False)


def test_a_summary_of_nothing_says_nothing():
    assert set(summary([]).values()) == {None}


def test_time_reduction_is_the_mean_over_instances_with_a_single_domain():
    rows = [
        compared(item(6.0), best_single_domain=item(10.0)),
        compared(item(8.0), best_single_domain=item(10.0)),
        compared(item(8.0)),
    ]
    kpi = training_time_reduction.measure(study(), rows)
    assert kpi.value == pytest.approx(0.3)
    assert kpi.instances == 2
    assert kpi.guards["instances_no_single_domain_can_run"] == 1


def test_a_target_met_against_the_single_domain_alone_is_said():
    rows = [compared(item(5.0), best_single_domain=item(10.0), mast_like=item(5.0)) for _ in range(2)]
    kpi = training_time_reduction.measure(study(), rows)
    assert kpi.met
    assert kpi.guards["passes_only_against"] == ["best_single_domain"]
    assert "mast_like" in kpi.guards["misses_against"]


def test_a_plan_slower_than_the_single_domain_is_counted():
    rows = [compared(item(12.0), best_single_domain=item(10.0), is_single_best=True) for _ in range(2)]
    guards = training_time_reduction.measure(study(), rows).guards
    assert guards["share_slower_than_single"] == 1.0
    assert guards["share_where_a_single_domain_is_best"] == 1.0


def test_cost_is_compared_at_equal_time_and_plans_that_stay_at_home_do_not_count():
    fast, cheap, late = item(10.0, 8.0, "a", "b"), item(10.4, 4.0, "a", "b"), item(11.0, 1.0, "a", "b")
    rows = [
        compared(fast, front=(fast, cheap, late, item(10.0)), **{SYNC_DP: item(10.0, 10.0, "a", "b")})
        for _ in range(2)
    ]
    kpi = communication_cost_reduction.measure(study(), rows)
    assert kpi.value == pytest.approx(0.6)
    assert kpi.guards["one_domain_allowed"]["mean"] == pytest.approx(1.0)
    assert kpi.guards["saving_of_the_time_optimal_plan"]["mean"] == pytest.approx(0.2)


def test_extra_tokens_of_local_steps_are_paid_for():
    one, many = item(1.0, 1.0, "a", "b"), item(1.0, 1.0, "a", "b", local_steps=32)
    assert communication_cost_reduction.egress(many) > communication_cost_reduction.egress(one)


def test_the_safe_rule_finds_the_optimum_of_a_small_fleet():
    instance = PlanningCase(0, fleet(domain("a", 8), domain("b", 8), gbps=50.0, ms=1.0), job())
    found = compare(study(), instance)
    assert found is not None
    optimum = plan_training(instance.fleet, instance.job, clock=ticking()).best
    assert optimum is not None
    assert found.ours.report.step_time_s < 1.01 * optimum.report.step_time_s
    assert found.others["best_single_domain"] is not None


@pytest.mark.parametrize(("gbps", "is_best"), [(1000.0, False), (0.001, True)])
def test_whether_a_single_domain_is_best_is_what_the_exact_planner_says(gbps, is_best):
    instance = PlanningCase(0, fleet(domain("a", 8), domain("b", 8), gbps=gbps, ms=1.0), job())
    found = compare(study(), instance)
    best = plan_training(instance.fleet, instance.job, clock=ticking()).best
    assert found is not None
    assert best is not None
    assert found.is_single_best is is_best
    assert (best.plan.kind == "single") is is_best


def test_a_baseline_whose_search_does_not_end_is_named_and_left_out(monkeypatch):
    def endless(_problem, _context):
        raise Unfinished

    monkeypatch.setitem(BASELINES, "latency_blind", endless)
    instance = PlanningCase(7, fleet(domain("a", 8), domain("b", 8), gbps=50.0, ms=1.0), job())
    found = compare(study(), instance)
    assert found is not None
    assert found.others["latency_blind"] is None
    row = training_time_reduction.measure(study(), [found])
    assert row.guards["searches_stopped"] == ["latency_blind, 7"]
    assert row.beside["no_network_seen"] is None


def test_it_is_not_searched_for_a_faster_plan_where_one_is_known(monkeypatch):
    def never(*_given, **_more):
        raise AssertionError("searched")

    monkeypatch.setattr(compared_module, "exact", never)
    instance = PlanningCase(0, fleet(domain("a", 8), domain("b", 8), gbps=1000.0, ms=1.0), job())
    found = compare(study(), instance)
    assert found is not None
    assert found.is_single_best is False


def test_no_plan_is_no_comparison():
    huge = job(batch=1, local_steps=())
    instance = PlanningCase(0, fleet(domain("a", 0)), huge)
    assert compare(study(), instance) is None


@pytest.fixture(scope="module")
def dynamics():
    return Dynamics(PlanningCase(0, fleet(domain("a", 8), domain("b", 8), gbps=20.0, ms=1.0), job()))


def noisy(case):
    rng = np.random.default_rng(0)
    return Change(
        independent(rng, len(case.candidates.pairs), half_width=0.3), 1 / independent(rng, 2, half_width=0.2)
    )


@pytest.mark.parametrize("way", ways(safe_policy()))
def test_nothing_is_lost_while_nothing_changes(dynamics, way):
    played = dynamics.play(ways(safe_policy())[way], Change(np.ones((DECISIONS, len(dynamics.candidates.pairs)))))
    assert played.kept == pytest.approx(1.0, abs=0.02)
    assert not played.switched.any()


def test_nobody_keeps_more_than_who_knows_all_and_pays_for_no_switch(dynamics):
    change = noisy(dynamics)
    most = dynamics.rates(change).max(axis=1).mean()
    for way in ways(safe_policy()).values():
        assert dynamics.play(way, change).kept <= most + 1e-9


def test_a_slower_domain_is_computed_slower_by_the_plans_that_use_it(dynamics):
    slow = dynamics.rates(Change(speeds=np.tile([0.5, 1.0], (DECISIONS, 1))))[0]
    usual = dynamics.rates(Change(speeds=np.ones((DECISIONS, 2))))[0]
    uses = dynamics.candidates.devices[:, 0] > 0
    assert (slow[uses] < usual[uses]).all()
    assert (slow[uses] >= 0.5 * usual[uses] - 1e-9).all()
    assert slow[~uses] == pytest.approx(usual[~uses])


def test_a_domain_that_slows_down_for_good_is_left_by_who_sees_it(dynamics):
    speeds = np.ones((DECISIONS, 2))
    seen = ways(safe_policy())
    start = dynamics.play(seen["never"], Change(speeds=speeds)).plans[0]
    home = int(dynamics.candidates.devices[start].argmax())
    speeds[8:, home] = 0.2
    sees, blind = (
        dynamics.play(seen[name], Change(speeds=speeds)).kept for name in ("untrained", "no_network_seen")
    )
    assert sees > blind


def test_the_clairvoyant_earns_at_least_what_staying_earns(dynamics):
    rates = dynamics.rates(noisy(dynamics))
    plans = dynamics.clairvoyant(rates)
    left = np.where(np.eye(rates.shape[1]) > 0, 1.0, 1 - dynamics.switch_share)
    earned = rates[0, plans[0]] + sum(
        left[plans[t - 1], plans[t]] * rates[t, plans[t]] for t in range(1, len(plans))
    )
    assert earned >= rates.sum(axis=0).max() - 1e-9


def test_what_equal_shares_on_equal_devices_deliver_is_what_was_asked(dynamics):
    both = plan("a", "b")
    case = Dynamics(dynamics.instance)
    case.candidates = case.candidates.with_plan(both)
    index = case.candidates.index[both]
    played = Played(np.full(DECISIONS, index), 1.0)
    assert allocation_error.error(case, played, Change(speeds=np.ones((DECISIONS, 2)))) == pytest.approx(
        0.0, abs=1e-9
    )


def test_what_a_domain_delivers_is_counted_in_flops_not_in_layers():
    training = job()
    layers = len(training.layers)
    half = layers // 2
    stages = (Stage("a", 0, half, 1), Stage("b", half, layers - half, 1))
    shares = work_shares(training, TrainingPlan((Pipeline(stages, 1, 8),), 1))
    flops = training.layers.forward_flops
    assert shares["a"] == pytest.approx(float(flops[:half].sum() / flops.sum()))
    assert sum(shares.values()) == pytest.approx(1.0)


def test_a_corner_lasts_and_is_at_both_ends():
    drawn = corners(np.random.default_rng(0), 64, half_width=0.2)
    assert set(np.unique(drawn).round(9)) == {0.8, 1.2}
    assert (drawn == drawn[0]).all()


def test_the_policy_less_row_says_that_a_rule_stands_in():
    [kpi] = measure_all(study(), names=("algorithm",))
    assert not kpi.met
    data = answer([kpi], study(), elapsed_s=1.0, is_whole=True)
    assert data["kpis"][0]["name"] == NAMES[0]
    assert set(data["policy"]) == {"file", "trained_at", "seed"}


def test_the_exact_planner_and_the_study_see_the_same_problem():
    instance = PlanningCase(0, fleet(domain("a", 8), domain("b", 8)), job())
    best = plan_training(instance.fleet, instance.job, clock=ticking()).best
    ours = study().decide(Problem.of(instance.fleet, instance.job))
    assert best is not None
    assert ours is not None
    assert ours.report.step_time_s >= best.report.step_time_s - 1e-9


@pytest.mark.parametrize(
    ("record", "value"),
    [
        ({"updates": 3, "evaluation": {"update": 2}, "ppo_gain": {"low": 0.001, "high": 0.1}}, "PPO"),
        (
            {"updates": 3, "evaluation": {"update": 2}, "ppo_gain": {"low": -0.001, "high": 0.1}},
            "PPO, no gain shown",
        ),
        ({"updates": 3, "evaluation": {"update": 2}}, "PPO, its gain not measured"),
        ({"updates": 3, "evaluation": {"update": 0}, "ppo_gain": {"low": 0.0, "high": 0.0}}, "imitation"),
        ({}, "not recorded"),
    ],
)
def test_the_algorithm_is_what_the_record_says(record, value):
    policy = HiPpoPolicy("file.onnx", record, session=object())
    [kpi] = measure_all(Study(policy, ticking(), ticking()), names=("algorithm",))
    assert kpi.value == value
    assert kpi.met is (value == "PPO")
