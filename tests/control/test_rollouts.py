"""What going to a plan is worth over futures drawn from the past."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.control.forecast import Forecast
from strata.control.rollouts import DECISIONS, LEAST, SURE, Moving, Rollouts

HOME, AWAY = 0, 1
ALL = np.ones(2, dtype=bool)
RATES = st.lists(st.tuples(*[st.sampled_from([0.0, 0.3, 0.7, 1.0])] * 2), min_size=2, max_size=12)


def rollouts(rows, *, pause=0.3, leaves_down=True):
    """Two plans: one at home, one over a link that may be down, when weights cannot be moved from it."""
    rates, usual = np.array(rows, dtype=float), np.array([rows[0]], dtype=float)
    between = np.array([[0.0, pause], [pause, 0.0]])
    pauses = np.tile(between, (len(rates), 1, 1))
    if not leaves_down:
        pauses[rates[:, AWAY] == 0, AWAY, HOME] = np.inf
    forecast = Forecast.of(rates, usual[0])
    return Rollouts(rates, usual, forecast.ahead(1)[0], forecast.rho, pauses, between)


def test_who_cannot_leave_a_link_that_is_often_down_stays_at_home():
    up, down = (0.8, 1.0), (0.8, 0.0)
    rows = [up] + ([up] * 3 + [down] * 3) * 8 + [up]
    held = rollouts(rows, leaves_down=False).earned(HOME, ALL).mean(axis=1)
    free = rollouts(rows).earned(HOME, ALL).mean(axis=1)
    assert held[AWAY] < held[HOME]
    assert free[AWAY] > held[AWAY]


def test_what_is_over_soon_is_not_worth_going_for():
    def gain(rows):
        low, high = [(0.5, 0.0)] * rows, [(0.5, 0.9)] * rows
        past = [(0.5, 0.45), *(low + high) * (48 // rows), *low, (0.5, 0.9)]
        worth = rollouts(past, pause=1.5).earned(HOME, ALL).mean(axis=1)
        return worth[AWAY] - worth[HOME]

    assert gain(1) < 0 < gain(12)


def test_a_gain_that_futures_disagree_on_is_not_sure():
    past = [(0.5, 0.6), (0.5, 0.0), (0.5, 0.9)] * 8 + [(0.5, 0.6)]
    made = rollouts(past)
    earned, sure = made.earned(HOME, ALL), made.surely(HOME, ALL, base=HOME)
    more = earned[AWAY] - earned[HOME]
    assert more.std() > 0
    assert sure[HOME] == 0
    assert sure[AWAY] < more.mean() - SURE * more.std() / np.sqrt(more.size)


def test_nobody_goes_to_where_weights_cannot_be_moved():
    made = rollouts([(0.5, 0.5), (0.5, 0.0)], leaves_down=False)
    assert made.surely(AWAY, ALL, base=AWAY)[HOME] == -np.inf


def test_staying_is_worth_more_than_going_after_noise_however_little_that_loses():
    noise = np.random.default_rng(0).uniform(0.7, 1.0, (40, 2))
    made = rollouts([*noise, (0.78, 0.9)], pause=0.23)
    assert 0 < made.surely(HOME, ALL, base=AWAY)[HOME] < LEAST


@given(RATES)
def test_a_plan_earns_at_most_what_is_best_of_all_at_every_decision(rows):
    earned = rollouts(rows).earned(HOME, ALL)
    assert (earned <= np.max(rows) * (DECISIONS + 1) + 1e-9).all()
    assert (earned >= -1e-9).all()


@given(RATES)
def test_without_a_plan_to_go_to_the_job_earns_what_its_own_does(rows):
    here = np.array([True, False])
    made = rollouts([(rate, 0.0) for rate, _ in rows])
    assert made.earned(HOME, here)[HOME].max() <= max(rate for rate, _ in rows) * (DECISIONS + 1) + 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_the_same_past_is_worth_the_same_again(seed):
    rows = np.random.default_rng(seed).random((20, 2)).tolist()
    first, second = (rollouts(rows).earned(HOME, ALL) for _ in range(2))
    assert (first == second).all()


def steady(rates, pauses, moving=None):
    """Plans whose rates stay as they are."""
    rows, pauses = np.tile(np.array(rates), (4, 1)), np.array(pauses)
    return Rollouts(
        rows, rows[:1], rows[0], np.ones(len(rates)), np.tile(pauses, (4, 1, 1)), pauses, moving=moving
    )


def test_a_way_by_another_plan_saves_nothing_before_weights_are_there():
    made = steady([0.0, 0.1, 1.0], [[0.2, 1.2, 1.5], [1.2, 0.2, 0.1], [1.5, 0.1, 0.2]])
    earned = made.earned(0, np.ones(3, dtype=bool)).mean(axis=1)
    assert earned[2] == pytest.approx(DECISIONS + 1 - 1.5)
    assert earned[1] < earned[2]


def test_who_still_moves_waits_for_what_is_left_and_turns_from_where_weights_lie():
    pauses = [[0.2, 1.2, 1.5], [1.2, 0.2, 0.1], [1.5, 0.1, 0.2]]
    made = steady([1.0, 1.0, 1.0], pauses, moving=Moving(0, 0.5))
    lost = DECISIONS + 1 - made.earned(1, np.ones(3, dtype=bool)).mean(axis=1)
    assert lost == pytest.approx([0.2, 0.5, 1.5])


def test_who_moves_without_a_path_may_still_turn_back():
    made = steady([1.0, 1.0], [[0.2, np.inf], [np.inf, 0.2]], moving=Moving(0, np.inf))
    assert made.surely(1, ALL, base=1)[0] > 0
