from __future__ import annotations

import numpy as np
import pytest

from strata.evaluation.kpi.domain_states import advance, random_state
from strata.training.hi_ppo.domain_state import DEVICE_HEALTH, nominal_state
from tests.support.builders import domain


def test_a_nominal_site_is_fast_whole_and_empty():
    domain_state = nominal_state(domain("a", 16, per_node=8))
    assert (domain_state.speed == 1).all()
    assert domain_state.node.tolist() == [0] * 8 + [1] * 8


def test_a_taken_device_has_neither_speed_nor_memory_and_no_node_is_taken_whole():
    domain_state = random_state(domain("a", 512, per_node=8), np.random.default_rng(1))
    taken = domain_state.load == 1
    assert taken.any()
    assert (domain_state.free_memory_bytes[taken] == 0).all()
    assert (domain_state.speed[taken] == 0).all()
    per_node = np.bincount(domain_state.node, taken)
    assert per_node.max() <= 4


def test_a_node_that_is_not_full_is_no_trouble():
    domain_state = random_state(domain("a", 13, per_node=8), np.random.default_rng(1))
    assert len(advance(domain_state, np.random.default_rng(2)).speed) == 13


def test_the_same_seed_draws_the_same_site():
    one, other = (random_state(domain("a", 64), np.random.default_rng(5)) for _ in range(2))
    assert np.array_equal(one.speed, other.speed)


def test_states_persist_as_the_chain_says():
    rng = np.random.default_rng(3)
    before = random_state(domain("a", 20_000), rng, interval_s=120.0)
    after = advance(before, rng)
    slow = before.health == 3
    stay = DEVICE_HEALTH.transition(120.0)[3, 3]
    assert (after.health[slow] == 3).mean() == pytest.approx(stay, abs=4 * np.sqrt(0.25 / slow.sum()))


def test_taken_devices_stay_taken():
    rng = np.random.default_rng(4)
    domain_state = random_state(domain("a", 256), rng)
    taken = domain_state.load == 1
    for _ in range(20):
        domain_state = advance(domain_state, rng)
    assert np.array_equal(domain_state.load == 1, taken)
