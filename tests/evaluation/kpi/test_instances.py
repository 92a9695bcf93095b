import numpy as np
import pytest

from strata.evaluation.kpi.instances import (
    COORDINATION,
    FRONTS,
    LOAD,
    NETWORK,
    PLANS,
    PlanningCase,
    at_crossover,
    crossover,
    with_regions,
)
from strata.training.plan.exact.problem import Problem
from tests.support.builders import domain, fleet, job, link

SERIES = (PLANS, FRONTS, NETWORK, LOAD, COORDINATION)


def test_seeds_are_above_those_of_training_and_no_two_series_share_one():
    seeds = [instance.seed for series in SERIES for instance in series.draw(quick=False)[:5]]
    assert min(seeds) >= 900_000
    assert len(set(seeds)) == len(seeds)


def test_the_same_seed_is_the_same_instance():
    assert FRONTS.at(1).fleet == FRONTS.at(1).fleet
    assert FRONTS.at(1).fleet != FRONTS.at(2).fleet


def test_quick_instances_are_the_first_of_the_full_ones():
    quick, full = (FRONTS.draw(quick=one) for one in (True, False))
    assert [one.fleet for one in quick] == [one.fleet for one in full[: len(quick)]]


def test_half_of_the_instances_are_synchronous_and_fronts_have_5_to_8_domains():
    drawn = [FRONTS.at(index) for index in range(16)]
    assert sum(instance.is_sync_only for instance in drawn) == 8
    assert {len(instance.fleet.domains) for instance in drawn} == {5, 6, 7, 8}
    # Every number of domains meets every job.
    assert len({(len(one.fleet.domains), one.job.name, one.is_sync_only) for one in drawn}) == 16


def test_sites_close_to_each_other_share_a_region():
    a, b, c = domain("a"), domain("b"), domain("c")
    links = [*link("a", "b", 5, 2), *link("a", "c", 5, 40), *link("b", "c", 5, 40)]
    regions = [d.region for d in with_regions(fleet(a, b, c, links=links)).domains]
    assert regions[0] == regions[1] != regions[2]


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_links_are_scaled_to_the_asked_crossover(ratio):
    instance = PlanningCase(0, fleet(domain("a"), domain("b"), gbps=3.0), job())
    assert crossover(at_crossover(instance, ratio).problem()) == pytest.approx(ratio)


def test_crossover_is_the_wire_time_of_a_batch_over_the_compute_of_a_step():
    problem = Problem.of(fleet(domain("a", 8), domain("b", 8), gbps=4.0), job(batch=64))
    wire_s = 64 * 32 * 2**20 / (4e9 / 8)
    compute_s = 3 * (8 + 0.5) * 4e12 * 64 / (16 * 100e12 * 0.45)
    assert crossover(problem) == pytest.approx(wire_s / compute_s)
    assert np.isfinite(crossover(problem))
