"""Re-planning tables: the product chain, the exact solution, the bound above it and the rules below it."""

import itertools
import json
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import BadFile, UsageError
from strata.evaluation.published_benchmarks.replan_scenario import read_scenarios
from strata.evaluation.replan_ladder import clairvoyant, climb, gaps
from strata.learning.tables.environment import TableEnv
from strata.learning.tables.random_tables import random_table
from strata.learning.tables.table import LinkChains, ReplanTable
from strata.learning.tables.value_iteration import solve
from strata.training.replan import rules
from tests import SHARED
from tests.support.laws import examples

SCENARIOS = SHARED / "data" / "replan_scenarios.json"


def chains(*stays: float) -> LinkChains:
    transitions = tuple(np.array([[stay, 1 - stay], [1 - stay, stay]]) for stay in stays)
    return LinkChains(tuple(np.array([1.0, 0.2]) for _ in stays), transitions)


def table(reward: list[list[float]], *, stay: float = 0.9, switch: float = 0.3) -> ReplanTable:
    return ReplanTable("tiny", np.array(reward), chains(stay), switch, 0, ((), (0,)))


def test_expectations_of_the_product_chain_are_those_of_the_written_out_one():
    links = chains(0.9, 0.6, 0.75)
    full = reduce(np.kron, links.transitions)
    values = np.random.default_rng(0).random((8, 5))
    np.testing.assert_allclose(links.expect(values), full @ values)


def test_levels_ahead_forget_where_a_link_was():
    np.testing.assert_allclose(chains(0.9).level(0)[:, 0], [1.0, 0.2])
    np.testing.assert_allclose(chains(0.9).level(500)[:, 0], [0.6, 0.6])


def test_a_policy_that_waits_out_short_trouble_beats_the_myopic_one():
    # Trouble lasts two steps on average and a switch burns most of a step: going and coming back never pays.
    waits = table([[1.0, 1.2], [1.0, 0.9]], stay=0.5, switch=0.6)
    solution = solve(waits)
    states = waits.chains.paths(64, 400, np.random.default_rng(1))
    assert solution.average == pytest.approx(1.05, abs=1e-6)
    assert waits.follow(rules.myopic, states)[1] < 1.0


@given(st.integers(0, 2**32 - 1))
@examples(30)
def test_the_exact_solution_is_the_best_of_all_stationary_policies(seed):
    rng = np.random.default_rng(seed)
    tiny = table(rng.uniform(0.5, 2.0, (2, 2)).tolist(), stay=rng.uniform(0.05, 0.95), switch=rng.uniform(0, 0.9))
    assert solve(tiny).average == pytest.approx(max(_averages(tiny)), abs=1e-5)


def _averages(tiny: ReplanTable):
    """The long-run rewards of every map from (state, plan in use) to a plan, from every start."""
    pairs = list(itertools.product(range(2), range(2)))
    move = tiny.chains.transitions[0]
    for picks in itertools.product(range(2), repeat=4):
        chain, earned = np.zeros((4, 4)), np.zeros(4)
        for row, (state, current) in enumerate(pairs):
            plan = picks[row]
            earned[row] = tiny.reward[state, plan] * (1 if plan == current else 1 - tiny.switch_share)
            for column, (after, used) in enumerate(pairs):
                chain[row, column] = move[state, after] * (used == plan)
        # Half steps leave the averages alone and make every class aperiodic.
        lazy = np.linalg.matrix_power((chain + np.eye(4)) / 2, 2**14)
        yield from lazy @ earned


@pytest.mark.long("a law over tables and their paths")
@given(st.integers(0, 2**32 - 1))
@examples(15)
def test_nothing_beats_the_clairvoyant_on_its_own_path(seed):
    rng = np.random.default_rng(seed)
    drawn = random_table(rng)
    climbed = climb(drawn, drawn.chains.paths(4, 30, rng), rules.keep, rng=rng)
    assert all(reward <= climbed.reward["clairvoyant"] + 1e-9 for reward in climbed.reward.values())


def test_the_clairvoyant_bound_is_the_best_of_all_sequences():
    tiny = table([[1.0, 1.2], [1.0, 0.7]], switch=0.25)
    states = np.array([[0], [1], [0], [0], [1]])
    best = max(
        sum(
            tiny.reward[state[0], plan] * (1 if plan == before else 0.75)
            for state, plan, before in zip(states, plans, (0, *plans), strict=False)
        )
        for plans in itertools.product(range(2), repeat=5)
    )
    assert clairvoyant(tiny, states) == pytest.approx(best / 5)


def test_hysteresis_without_margin_is_myopic_and_mpc_over_one_step_sees_the_whole_switch():
    drawn = random_table(np.random.default_rng(5))
    states = drawn.chains.paths(1, 200, np.random.default_rng(6))[:, 0]
    current = np.random.default_rng(7).integers(drawn.reward.shape[1], size=200)
    options = drawn.options(states, current)
    rows = np.arange(200)
    assert (options.value[rows, rules.hysteresis(0.0)(options), 0] == options.value[..., 0].max(axis=1)).all()
    np.testing.assert_array_equal(rules.mpc(1)(options), rules.hysteresis(1.0)(options))


def test_expected_values_three_steps_ahead_are_exact_for_mpc():
    tiny = table([[1.0, 1.3], [1.1, 0.6]], stay=0.8, switch=0.1)
    full, now = tiny.chains.transitions[0], tiny.reward
    summed = now + full @ now + full @ full @ now
    options = tiny.options(np.array([0, 1]), np.array([0, 0]))
    wanted = (summed[[0, 1]] - options.cost).argmax(axis=1)
    np.testing.assert_array_equal(rules.mpc(3)(options), wanted)


def test_a_chain_that_never_settles_is_refused():
    flip = LinkChains((np.array([1.0, 0.2]),), (np.array([[0.0, 1.0], [1.0, 0.0]]),))
    with pytest.raises(UsageError, match="does not settle"):
        solve(ReplanTable("flip", np.array([[1.0, 2.0], [1.0, 0.5]]), flip, 0.1, 0, ((), (0,))))


def test_one_seed_gives_one_table():
    first, second = (random_table(np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(first.reward, second.reward)
    assert first.plan_links == second.plan_links


def test_the_environment_earns_what_the_table_says():
    tiny = table([[1.0, 1.2], [1.0, 0.7]])
    rng = np.random.default_rng(0)
    env = TableEnv([tiny, tiny], 6, steps=3)
    options = env.reset(rng)
    for step in range(3):
        options, rewards, done = env.step(options.current, rng)
        assert set(np.round(rewards[:, 0] * 1.0, 9)) <= {1.0, 1.2, 0.7}
        assert done.all() == (step == 2)
    assert options.value.shape == (6, 2, 5)


def test_centred_rewards_are_less_what_the_safe_rule_earns_on_the_same_links():
    earned = {}
    for name, rule in (("safe", rules.hysteresis()), ("never", rules.keep)):
        rng = np.random.default_rng(0)
        env = TableEnv([random_table(rng) for _ in range(4)], 12, steps=20, centred=True)
        options, earned[name] = env.reset(rng), 0.0
        for _ in range(40):
            options, rewards, _ = env.step(rule(options), rng)
            earned[name] += rewards[:, 0]
    assert not earned["safe"].any()
    assert np.abs(earned["never"]).max() > 0.1


@pytest.mark.long("solves every published scenario")
@pytest.mark.skipif(not SCENARIOS.exists(), reason="the shared scenario file is not here")
def test_all_fixed_rungs_equal_the_reference_averages():
    reference = [entry["reference"] for entry in json.loads(SCENARIOS.read_text())["scenarios"]]
    climbs = [
        climb(item.table, item.states, rules.keep, rng=np.random.default_rng(0))
        for item in read_scenarios(SCENARIOS)
    ]
    for climbed, wanted in zip(climbs, reference, strict=True):
        for rung in ("static", "myopic", "hysteresis", "mpc", "vi", "clairvoyant"):
            assert climbed.reward[rung] == pytest.approx(wanted[rung], abs=1.1e-5), (climbed.name, rung)
    assert gaps(climbs, "hysteresis") == pytest.approx((0.010, 0.033), abs=5e-4)


def scenario(**changes):
    entry = {
        "name": "one", "domains": [{"name": "a"}, {"name": "b"}], "decision_interval_s": 300.0, "switch_s": 60.0,
        "links": [{"between": [0, 1], "levels": [1, 0.5], "transition": [[0.9, 0.1], [0.2, 0.8]]}],
        "plans": [{"domains": [0], "kind": "single"}, {"domains": [0, 1], "kind": "DP"}],
        "reward": [[1.0, 1.5], [1.0, 0.8]], "start_plan": 0, "paths": {"episodes": 4, "steps": 10, "seed": 7},
    }  # fmt: skip
    return {"scenarios": [{**entry, **changes}]}


def test_a_scenario_file_becomes_a_table(tmp_path):
    path = tmp_path / "s.json"
    path.write_text(json.dumps(scenario()))
    (found,) = read_scenarios(path)
    assert found.table.switch_share == pytest.approx(0.2)
    assert found.table.plan_links == ((), (0,))
    assert found.states.shape == (10, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": [[1.0, 1.5]]}, "should be 2 rows"),
        ({"reward": [[1.0], [1.0]]}, "should have 2 rewards"),
        ({"start_plan": 2}, "there are 2 plans"),
        ({"switch_s": 400.0}, "longer than the decision interval"),
        ({"plans": [{"domains": [0, 5]}, {"domains": [1]}]}, "there are 2 domains"),
        ({"links": [{"between": [0, 1], "levels": [1, 0.5], "transition": [[0.9, 0.2], [0.2, 0.8]]}]}, "sum to 1"),
        ({"links": [{"between": [0, 1], "levels": [1, 0.5], "transition": [[1.0]]}]}, "2 rows of 2"),
    ],
)
def test_what_is_wrong_with_a_scenario_is_said_with_its_place(tmp_path, changes, message):
    path = tmp_path / "s.json"
    path.write_text(json.dumps(scenario(**changes)))
    with pytest.raises(BadFile, match=message) as caught:
        read_scenarios(path)
    assert str(caught.value).startswith(f"{path}:")
