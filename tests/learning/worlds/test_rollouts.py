"""Rollouts under what is believed of links: a pick is left only for what surely earns more."""

from __future__ import annotations

import numpy as np
import pytest

from strata.evaluation import headroom
from strata.evaluation.headroom import EndlessJobs, Place
from strata.learning.worlds import others, rollouts
from strata.training.replan import rules
from tests.learning.worlds.worlds import pool

SAFE = rules.hysteresis()


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(headroom, "DECISIONS", 12)
    monkeypatch.setattr(headroom, "EPISODES", {1: 8, 4: 4})


def world_of(name, jobs=1, steps=5, seed=0):
    world, rng = EndlessJobs(pool(), Place(name, jobs, 3)), np.random.default_rng(seed)
    world.reset(rng)
    for _ in range(steps):
        world.step(SAFE(others.options(world)), rng)
    return world, rng


def as_seen(pick, name, seed):
    world, rng = world_of(name, steps=0, seed=seed)
    return sum(world.step(pick(world), rng).reward[:, 0].mean() for _ in range(12)) / 12


def looked_ahead(world):
    options = others.options(world)
    return rollouts.surest(world, options, SAFE(options))


@pytest.mark.long("plays every decision with futures of its own")
@pytest.mark.parametrize("name", ["stale probes", "regimes"])
def test_who_looks_ahead_earns_more_than_the_rule_that_it_looks_ahead_with(name):
    rule, ahead = (
        np.mean([as_seen(pick, name, seed) for seed in range(3)])
        for pick in (lambda world: SAFE(others.options(world)), looked_ahead)
    )
    assert ahead > rule


@pytest.mark.parametrize("jobs", [1, 4])
def test_the_same_question_has_the_same_answer_and_moves_nothing(jobs):
    world, _ = world_of("stale probes", jobs)
    before = world.links.factor.copy(), world.jobs.plan.copy(), world.links.belief.chances.copy()
    first, again = looked_ahead(world), looked_ahead(world)
    assert (first == again).all()
    assert others.options(world).legal[world.envs, first].all()
    for old, new in zip(before, (world.links.factor, world.jobs.plan, world.links.belief.chances), strict=True):
        assert (old == new).all()


@pytest.mark.parametrize("name", ["noisy probes", "stale probes", "missing probes", "diurnal", "regimes"])
def test_links_are_drawn_as_they_are_expected_to_be(name):
    world, rng = world_of(name, steps=8)
    expected = world.links_ahead()[0]
    time_s = world.time_s[:, None]
    draws = [1 / world.link_world.drawn(world.links, time_s, rng).factor.T for _ in range(600)]
    error = np.std(draws, axis=0) / np.sqrt(len(draws))
    assert (np.abs(np.mean(draws, axis=0) - expected) <= 5 * error + 2e-3 * expected).all()


def test_a_world_of_several_jobs_has_the_same_links_decision_by_decision():
    many, one = (Place("stale probes", jobs, 4).settings for jobs in (4, 1))
    whole = many.by_decision()
    assert whole.stay == pytest.approx(one.stay)
    assert (whole.interval_s, whole.stale_steps, whole.steps_per_decision) == (300.0, one.stale_steps, 1)
