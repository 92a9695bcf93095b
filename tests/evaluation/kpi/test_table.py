"""The rows run whole, on two tiny fleets, with the safe rule standing in for the policy."""

import json
from dataclasses import dataclass

import pytest

from strata.evaluation.kpi import (
    allocation_error,
    compared,
    coordination_time,
    dynamics,
    inter_domain_latency,
    intra_domain_latency,
    load_stability,
    network_degradation,
    pareto_coverage,
    utilization_improvement,
)
from strata.evaluation.kpi.instances import PlanningCase
from strata.evaluation.kpi.kpi import NAMES
from strata.evaluation.kpi.study import Study
from strata.evaluation.kpi.table import answer, measure_all
from strata.training.hi_ppo.policy import safe_policy
from tests.support.builders import domain, fleet, job

pytestmark = [
    pytest.mark.long("measures the whole table: a minute"),
    pytest.mark.xdist_group("kpi"),  # once
]


@dataclass(frozen=True)
class Tiny:
    """A series of two fleets of two or three domains."""

    devices: int = 8
    domains: tuple[int, ...] = (2,)

    def draw(self, *, quick):
        return [self.with_domains(count, index) for index, count in enumerate((2, 3))]

    def with_domains(self, count, index):
        local_steps = (8,) if index % 2 else ()
        sites = [domain(f"d{i}", 8 * (1 + (i + index) % 2)) for i in range(count)]
        return PlanningCase(index, fleet(*sites, gbps=5.0), job(local_steps=local_steps))


def ticking():
    now = [0.0]

    def clock():
        now[0] += 1e-4
        return now[0]

    return clock


@pytest.fixture(scope="module")
def rows():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compared, "PLANS", Tiny())
        patch.setattr(coordination_time, "COORDINATION", Tiny())
        patch.setattr(inter_domain_latency, "LATENCY", Tiny())
        patch.setattr(inter_domain_latency, "HEADLINE_DOMAINS", 2)
        patch.setattr(inter_domain_latency, "REPEATS", {True: 2})
        patch.setattr(inter_domain_latency, "OTHER_REPEATS", {True: 2})
        patch.setattr(inter_domain_latency, "_cold_start_s", lambda _study: 0.5)
        patch.setattr(intra_domain_latency, "SITES", (Tiny(),))
        patch.setattr(intra_domain_latency, "MOMENTS", {True: 3})
        patch.setattr(intra_domain_latency, "KEPT_MOMENTS", {True: 3})
        patch.setattr(load_stability, "LOAD", Tiny())
        patch.setattr(network_degradation, "NETWORK", Tiny())
        patch.setattr(allocation_error, "NETWORK", Tiny())
        for module in (dynamics, network_degradation):
            patch.setattr(module, "DECISIONS", 4)
        patch.setattr(pareto_coverage, "FRONTS", Tiny())
        patch.setattr(pareto_coverage, "MOST_PLANS", 32)
        patch.setattr(utilization_improvement, "JOBS", {True: 12})
        patch.setattr(utilization_improvement, "TRACES", {True: 2})
        study = Study(safe_policy(), ticking(), ticking(), quick=True)
        told = []
        found = list(measure_all(study, advance=lambda name, share: told.append((name, share))))
        return study, {row.name: row for row in found}, told


def test_all_eleven_rows_come_in_the_seeds_order_as_plain_json(rows):
    study, found, _ = rows
    assert tuple(found) == NAMES
    data = answer(list(found.values()), study, elapsed_s=1.0, is_whole=True)
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_every_row_but_bounds_on_decision_time_has_what_stands_beside(rows):
    beside = {name: set(row.beside) for name, row in rows[1].items()}
    ways = {"untrained", "never", "no_network_seen"}
    for name in ("coordination_time_s", "allocation_error", "load_stability", "network_degradation"):
        assert beside[name] == ways
    for name in ("training_time_reduction", "communication_cost_reduction"):
        assert beside[name] >= {"untrained", "no_network_seen", "uniform_split", "sailor_like"}
    assert beside["utilization_improvement"] >= {"untrained", "never", "fcfs", "backfill"}
    assert beside["pareto_coverage"] >= {"untrained", "all_candidates", "random_search"}
    # The safe rule stands in for the policy here, so both are one.
    for name in ("pareto_coverage", "training_time_reduction", "allocation_error", "network_degradation"):
        assert rows[1][name].beside["untrained"] == pytest.approx(rows[1][name].value)


def test_progress_of_every_row_that_takes_time_ends_whole(rows):
    last = dict(rows[2])
    assert all(last[name] == 1.0 for name in ("pareto_coverage", "load_stability", "coordination_time_s"))


def test_the_exact_score_covers_most_of_a_tiny_front(rows):
    row = rows[1]["pareto_coverage"]
    assert row.instances == 2
    assert row.value >= 0.85
    assert row.guards["hi_ppo"]["coverage_eps_0"] <= row.guards["hi_ppo"]["coverage_eps_5"]


def test_the_safe_rule_is_optimal_on_tiny_fleets_and_never_slower_than_one_domain(rows):
    assert 0 <= rows[1]["allocation_error"].value < 1
    assert rows[1]["training_time_reduction"].guards["share_slower_than_single"] == 0.0


def test_no_way_degrades_less_than_always_being_on_the_fastest_plan(rows):
    for figures in rows[1]["network_degradation"].guards["by_noise"].values():
        assert set(figures) >= {"hi_ppo", "never", "no_network_seen", "untrained"}
        assert min(figures.values()) >= figures["fastest_at_every_moment"] - 1e-9


def test_what_is_stable_holds_every_condition(rows):
    for figures in rows[1]["load_stability"].guards["by_load_and_rule"].values():
        assert figures["stable"] <= min(figures[check] for check in ("fits", "close", "bounded", "calm"))


def test_every_event_is_answered_by_the_loop(rows):
    guards = rows[1]["coordination_time_s"].guards
    events = guards["by_event"]
    assert events["devices_lost"]["events"] == events["domain_drained"]["events"] == 4  # of one job and of several
    assert set(guards["by_jobs"]) == {"1", "4"}
    assert events["domain_drained"]["asked_the_inter_domain_agent"] == 1.0


def test_utilisation_is_told_against_every_fixed_scheduler(rows):
    guards = rows[1]["utilization_improvement"].guards
    assert set(guards["gain_against"]) == {"home_domain", "alone", "fcfs", "mast_like", "backfill"}
