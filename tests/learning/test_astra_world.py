"""Placements as Hi-PPO's options in strata/AstraSim-v0, and rules judged side by side on the same networks."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from strata.errors import UsageError
from strata.learning.astra_world import BEST, MOST_PLACEMENTS, AstraWorld, Candidates, judge_rules
from strata.training.environment.astra_sim import AstraSimEnv
from strata.training.environment.placement import uniform_placement
from strata.training.plan.exact.problem import Problem
from strata.training.replan import rules
from tests.support.builders import card, domain, fleet, job, layers

WORK = job(layers(hidden_mib=64), batch=8)


def environment(domains=3, *, gib=80.0, **more):
    given = fleet(*(domain(name, 8, accelerator=card(gib=gib)) for name in "abcdefgh"[:domains]), gbps=5.0)
    return AstraSimEnv(task_profile=WORK, fleet=given, **more)


def test_candidates_fit_are_different_and_hold_the_uniform_placement_and_the_best_of_one_domain():
    env = environment(6)
    candidates = Candidates.of(env.problem, env.weights)
    assert len(set(candidates.placements)) == len(candidates.plans) == MOST_PLACEMENTS
    assert candidates.placements[candidates.uniform] == tuple(uniform_placement(10, 6))
    assert all(env.problem.model.fits(plan) for plan in candidates.plans)
    assert any(len(plan.domains) == 1 for plan in candidates.plans)


def test_a_model_that_fits_nowhere_is_refused():
    env = environment(2, gib=1.0)
    with pytest.raises(UsageError, match=r"no placement of .* fits"):
        Candidates.of(env.problem, env.weights)


def test_what_is_expected_is_what_the_closed_form_earns_and_what_is_seen_of_links_is_their_level():
    env = environment()
    env.reset(seed=3)
    candidates = Candidates.of(env.problem, env.weights)
    options = candidates.options([env.network])
    earned = [env.judge(placement)[0] for placement in candidates.placements]
    np.testing.assert_allclose(options.value[0, :, 0], np.array(earned) + 1, rtol=1e-9)
    np.testing.assert_allclose(options.value[0, :, 4], candidates.expected(env.problem.fleet))
    levels, alone = options.links[0, :, 0], np.array([len(plan.domains) == 1 for plan in candidates.plans])
    assert (levels[alone] == 1).all()
    assert ((levels[~alone] >= 0.7) & (levels[~alone] < 1)).any()


def test_rules_are_judged_on_the_same_networks_and_none_is_better_than_the_best_of_all():
    env = environment()
    candidates = Candidates.of(env.problem, env.weights)
    ways = {"first": lambda options: np.zeros(len(options), dtype=int), "myopic": rules.myopic}
    judged = list(judge_rules(env, candidates, ways, seeds=[7, 8], steps=3))
    assert [(item.episode, item.step) for item in judged if item.rule == "first"] == [
        (episode, step) for episode in (0, 1) for step in (0, 1, 2)
    ]
    reward = {name: np.array([item.reward for item in judged if item.rule == name]) for name in (*ways, BEST)}
    np.testing.assert_allclose(reward["myopic"], reward[BEST])  # the backend is the closed form itself
    assert (reward["first"] <= reward[BEST]).all()
    again = list(judge_rules(env, candidates, {"first": ways["first"]}, seeds=[7, 8], steps=3))
    assert [item.reward for item in again if item.rule == "first"] == reward["first"].tolist()


def test_episodes_at_once_earn_what_each_earns_alone_and_end_together():
    envs = [environment(episode_steps=2) for _ in range(3)]
    candidates = Candidates.of(envs[0].problem, envs[0].weights)
    world, rng = AstraWorld(envs, candidates), np.random.default_rng(0)
    assert len(world.reset(rng)) == world.num_envs == 3
    picks = np.array([0, 1, 2])
    alone = [env.judge(candidates.placements[pick])[0] for env, pick in zip(envs, picks, strict=True)]
    _, rewards, ends = world.step(picks, rng)
    assert rewards[:, 0].tolist() == alone
    assert not rewards[:, 1:].any()
    assert not ends.any()
    assert world.step(picks, rng)[2].all()
    assert not world.step(picks, rng)[2].any()  # the next episodes


def test_a_problem_whose_uniform_placement_does_not_fit_has_candidates_all_the_same():
    small = domain("a", 1, accelerator=card(gib=2.0))
    sites = fleet(domain("b", 8), domain("c", 8), small)
    candidates = Candidates.of(Problem.of(sites, WORK), (0.4, 0.3, 0.3))
    assert candidates.uniform == -1
    assert candidates.plans
