from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import UsageError
from strata.training.plan.exact.pareto import front, vector
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.shards import ShardSpace
from strata.training.plan.exact.unit import Units
from strata.workload.job import Limits
from tests.support.builders import domain, fleet, job, layers, link
from tests.support.laws import examples
from tests.support.small_cases import every_plan, small_case


def non_dominated(values):
    kept = np.empty((0, 3))
    for point in np.unique(np.array(values).reshape(-1, 3), axis=0):  # sorted: none is dominated by a later one
        if not (kept <= point).all(axis=1).any():
            kept = np.vstack([kept, point])
    return kept


@pytest.mark.long("every plan of small fleets")
@examples(30)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 4, 6]))
def test_the_front_is_exactly_the_non_dominated_set(seed, batch):
    problem = Problem.of(*small_case(seed, global_batch=batch))
    found, complete = front(problem, clock=lambda: 0.0, deadline=1.0)
    mine = np.array([vector(item.report) for item in found]).reshape(-1, 3)
    best = non_dominated([vector(report) for _, report in every_plan(problem)])
    assert complete
    assert mine.tolist() == sorted(mine.tolist())
    assert mine.shape == best.shape
    assert np.allclose(mine, best, rtol=1e-9)


def test_the_front_keeps_the_jobs_limits():
    loose = Problem.of(fleet(domain("a"), domain("b")), job(layers(4), batch=8))
    dearest = max(vector(item.report)[2] for item in front(loose, clock=lambda: 0.0, deadline=1.0)[0])
    limits = Limits(cost_usd_per_step=dearest * 0.99)
    tight = Problem.of(loose.fleet, job(layers(4), batch=8, limits=limits))
    kept = [vector(item.report)[2] for item in front(tight, clock=lambda: 0.0, deadline=1.0)[0]]
    assert kept
    assert max(kept) <= dearest * 0.99


def test_the_front_is_whole_and_quiet_where_the_ends_of_a_chain_of_domains_have_no_link():
    ends = [domain("b", 2, region="r"), domain("a", 2, region="r"), domain("c", 2)]
    chain = fleet(*ends, links=[*link("a", "b", 10.0, 1.0), *link("a", "c", 10.0, 1.0)])
    found, complete = front(Problem.of(chain, job(layers(4), batch=8)), clock=lambda: 0.0, deadline=1.0)
    assert found
    assert complete


def test_out_of_time_the_front_says_it_is_not_complete():
    ticks = count()
    problem = Problem.of(fleet(domain("a"), domain("b")), job(layers(4), batch=8))
    _, complete = front(problem, clock=lambda: float(next(ticks)), deadline=1.0)
    assert not complete


def test_sharings_that_take_long_to_build_keep_the_time_limit(monkeypatch):
    now_s = 0.0

    def slow(self, *given):
        nonlocal now_s
        now_s += 1.0
        return build(self, *given)

    build = Units.inners_of_kind
    monkeypatch.setattr(Units, "inners_of_kind", slow)
    sites = [domain(name, devices) for name, devices in zip("abcde", (4, 8, 12, 16, 24), strict=True)]
    problem = Problem.of(fleet(*sites, gbps=1000.0, ms=0.0), job(layers(4), batch=64))
    found, complete = front(problem, clock=lambda: now_s, deadline=0.5)
    assert now_s < 2  # was: all kinds in all settings, and nothing found
    assert found
    assert not complete


def test_more_than_eight_domains_are_refused_with_what_to_do():
    problem = Problem.of(fleet(*(domain(f"d{i}", 1) for i in range(9))), job())
    with pytest.raises(UsageError, match="up to 8 domains") as error:
        front(problem, clock=lambda: 0.0, deadline=1.0)
    assert "limits.domains" in error.value.hint


def test_a_fleet_that_cannot_hold_the_model_has_an_empty_front():
    problem = Problem.of(fleet(domain("a", 1)), job(layers(64, mparams=1000.0)))
    assert front(problem, clock=lambda: 0.0, deadline=1.0) == ([], True)


@pytest.mark.long("every sharing of small fleets is built")
@examples(40)
@given(st.integers(0, 10**6), st.sampled_from([4, 16, 64]), st.sampled_from([(), (8,)]))
def test_no_plan_that_a_sharing_is_built_as_beats_its_bounds(seed, batch, local_steps):
    part, asked = small_case(seed, global_batch=batch)
    problem = Problem.of(part, replace(asked, local_steps=local_steps))
    space = ShardSpace(problem, tuple(range(len(problem.fleet.domains))))
    for way, group in np.ndindex(len(space.ways), len(space.groups)):
        plan = space.build(space.sharing(way, group))
        if plan is None:
            continue
        step_s, use, usd = vector(problem.model.reports([plan])[0])
        bounds = space.bounds_of_plan(way, group, step_s)
        if bounds is not None:
            assert -use <= bounds[0] * (1 + 1e-9)
            assert usd >= bounds[1] * (1 - 1e-9)


def test_fewer_devices_than_a_sharing_would_have_rule_nothing_out():
    """Of 6 devices some shapes have 4; the plan that is built has all six, and what it costs is known before."""
    problem = Problem.of(fleet(domain("a", 6), domain("b", 6)), job(layers(4), batch=64))
    space = ShardSpace(problem, (0, 1))
    closer = 0
    for way, group in np.ndindex(len(space.ways), len(space.groups)):
        step_s = space.bounds()[way, group]
        bounds = space.bounds_of_plan(way, group, step_s)
        if bounds is not None and np.isfinite(step_s):
            limits_s = np.full((1, len(space.groups)), step_s)
            closer += bounds[1] > space.least_usd([way], limits_s)[0, group] * 1.01
    assert closer


def test_a_front_ends_after_so_many_looks_on_every_machine():
    problem = Problem.of(fleet(domain("a"), domain("b")), job(layers(4), batch=8))
    whole, complete = front(problem, clock=lambda: 0.0, deadline=1.0)
    some, is_whole = front(problem, clock=lambda: 0.0, deadline=1.0, most_looked=3)
    assert (complete, is_whole) == (True, False)
    assert some
    known, _ = front(problem, clock=lambda: 0.0, deadline=1.0, start=whole, most_looked=3)
    assert [vector(item.report) for item in known] == [vector(item.report) for item in whole]
