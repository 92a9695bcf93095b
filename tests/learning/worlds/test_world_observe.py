"""What is seen of the world: expected values against brute force, stale and lost measurements, the raw state."""

from dataclasses import replace

import numpy as np
import pytest

from strata.learning.worlds.links import GRADES, Chains
from strata.learning.worlds.observe import options, state
from strata.learning.worlds.settings import PRESETS
from strata.training.replan.options import HORIZONS
from strata.training.replan.response import pair_numbers
from tests.learning.worlds.worlds import world

REGIMES = replace(PRESETS["regimes"], noise_sigma=0.0)


def test_values_ahead_are_the_response_to_the_expected_slowness():
    made = world(4, settings=REGIMES)
    choices, env = options(made), np.arange(4)
    row = made.row[env, made.turn]
    chains, links = made.link_world.chains, made.links
    for e in env:
        response = made.pool.instances[int(made.instance[e])].kinds[int(row[e]) % 2].response
        count = len(made.pool.instances[int(made.instance[e])].fleet.domains)
        mine = pair_numbers(made.pool.num_domains)[np.triu_indices(count, 1)]
        for h in range(len(HORIZONS)):
            inverse = chains.ahead[links.chain[e], links.seen_regime[e], h][mine]
            expected = made.pool.reference_s[row[e]] / response.step_s(1 / inverse)
            np.testing.assert_allclose(choices.value[e, 1 : 1 + len(response), h], expected, rtol=1e-5)


def test_expected_slowness_is_that_of_simulated_links():
    made = world(4000, settings=replace(REGIMES, stay=(0.8, 0.8)))
    start = made.links.seen_regime[:, 0].copy()
    ahead = made.links_ahead()[:, 0]
    rng, picks = np.random.default_rng(9), np.zeros(4000, dtype=np.int64)
    for _ in range(4):
        made.step(picks, rng)
    for regime in range(3):
        some = start == regime
        assert (1 / made.links.factor[some, 0]).mean() == pytest.approx(float(ahead[3, some].mean()), rel=0.1)


def test_a_chain_is_as_sticky_as_it_is_set_and_a_warning_leads_to_an_episode():
    chains = Chains.of(replace(REGIMES, stay=(0.6, 0.9)))
    np.testing.assert_allclose(chains.stay[0], 0.6, rtol=1e-9)
    np.testing.assert_allclose(chains.stay[GRADES - 1], 0.9, rtol=1e-9)
    quiet, warned, episode = chains.ahead[GRADES + 4]
    assert quiet[0] == warned[0] == 1.0
    assert warned[1] > quiet[1]
    assert episode[0] > episode[4]


def test_a_warning_is_seen_though_the_bandwidth_does_not_show_it():
    made = world(64, settings=replace(REGIMES, precursor_share=1.0))
    warned = made.links.regime == 1
    assert warned.any()
    np.testing.assert_array_equal(made.links.seen_regime, made.links.regime)
    np.testing.assert_array_equal(made.links.factor[warned], 1.0)


def test_stale_measurements_are_those_of_the_step_before():
    made, rng = world(16, settings=replace(REGIMES, stale_steps=1)), np.random.default_rng(0)
    for _ in range(5):
        before = made.links.factor.copy()
        made.step(np.zeros(16, dtype=np.int64), rng)
        np.testing.assert_array_equal(made.links.seen, before)


def test_a_lost_measurement_leaves_the_last_valid_one_and_is_flagged():
    made, rng = world(64, settings=replace(REGIMES, missing_share=0.5)), np.random.default_rng(0)
    before = made.links.seen.copy()
    made.step(np.zeros(64, dtype=np.int64), rng)
    lost = made.links.lost
    assert 0.3 < lost.mean() < 0.7
    np.testing.assert_array_equal(made.links.seen[lost], before[lost])
    np.testing.assert_array_equal(made.links.seen[~lost], made.links.factor[~lost])
    assert np.isfinite(options(made).value).all()
    numbers = pair_numbers(made.pool.num_domains)
    np.testing.assert_array_equal(state(made).lost, lost[:, numbers])


def test_waiting_has_no_plan_in_use_and_a_running_job_cannot_wait():
    made = world()
    choices = options(made)
    assert choices.current[0] == -1
    assert choices.legal[0, 0]
    np.testing.assert_array_equal(choices.cost[0], 0.0)
    np.testing.assert_array_equal(choices.value[0, 0], 0.0)
    made.step(np.array([2]), np.random.default_rng(0))
    choices = options(made)
    assert choices.current[0] == 2
    assert choices.legal[0, 2]
    assert not choices.legal[0, 0]


def test_the_cost_of_a_switch_is_what_its_pause_would_have_earned():
    made = world(restart_s=90.0)
    row = int(made.row[0, -1])
    old, new = np.argwhere(made.pool.moves[row])[0]
    made.step(np.array([old]), np.random.default_rng(0))
    choices = options(made)
    pause_s = made.pool.moved_s[row, old, new] + 90.0
    assert choices.cost[0, new] == pytest.approx(pause_s / 300.0 * choices.value[0, new, 0])
    assert choices.cost[0, old] == 0.0


def test_options_without_links_have_features_of_one_and_others_those_of_their_worst_link():
    made = world(8, settings=REGIMES)
    choices, env = options(made), np.arange(8)
    row = made.row[env, made.turn]
    factor = np.pad(made.links.seen, ((0, 0), (0, 1)), constant_values=1.0)
    for e in env:
        pair = made.pool.pair[row[e]]
        lowest = np.minimum(factor[e][pair].min(axis=1), np.inf)
        unused = (pair == made.pool.num_pairs).all(axis=1)
        np.testing.assert_array_equal(choices.links[e][unused], 1.0)
        used = np.flatnonzero(~unused)
        only = np.where(pair[used] == made.pool.num_pairs, np.inf, factor[e][pair[used]]).min(axis=1)
        np.testing.assert_allclose(choices.links[e, used, 0], only, rtol=1e-6)
        assert (lowest[used] <= only).all()


def test_preferences_weigh_the_three_objectives():
    settings = replace(REGIMES, regimes=False, preference=(0.2, 0.3, 0.5))
    made, rng = world(4, settings=settings), np.random.default_rng(0)
    value = options(made).value[:, :, 0]
    outcome = made.step(np.full(4, 2), rng)
    np.testing.assert_allclose(outcome.reward @ [0.2, 0.3, 0.5], outcome.scalar)
    np.testing.assert_allclose(outcome.scalar, value[:, 2], rtol=1e-5)


def test_the_raw_state_is_in_si_units_and_says_what_is_in_use():
    made, rng = world(4, settings=replace(PRESETS["multijob"], background_share=0.2)), np.random.default_rng(0)
    for _ in range(8):
        choices = options(made)
        made.step((choices.legal * np.arange(1, 13)).argmax(axis=1), rng)
    seen = state(made)
    nominal = made.pool.bandwidth[made.instance]
    np.testing.assert_allclose(seen.bandwidth, nominal * made.links.seen[:, pair_numbers(made.pool.num_domains)])
    assert seen.latency.max() == pytest.approx(0.02)
    total = made.pool.devices[made.instance]
    used = 1 - made.free() / np.maximum(total, 1)
    np.testing.assert_allclose(seen.utilisation[total > 0], used[total > 0])
    assert (seen.memory <= 1 + 1e-9).all()
    assert (seen.utilisation <= 1 + 1e-9).all()
    np.testing.assert_array_equal(seen.jobs[..., 0], made.jobs.left_s > 0)


def test_load_raises_the_step_time_of_the_domains_it_hits():
    made = world(16, settings=PRESETS["load20"], episode_steps=100)
    rng = np.random.default_rng(0)
    made.step(np.ones(16, dtype=np.int64), rng)
    choices = options(made)
    value = choices.value[np.arange(16), choices.current, 0]
    np.testing.assert_allclose(made.step(choices.current, rng).reward[:, 0], value, rtol=1e-5)
    calm = made.pool.reference_s[made.row[:, 0]] / world(16)._step_s(made.row[:, :1], made.jobs.plan[:, :1])[:, 0]
    assert (value <= calm * (1 + 1e-5)).all()
    assert (value < calm * 0.99).any()
