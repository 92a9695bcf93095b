"""Levels of plans' rates told from noise, and what is expected of them."""

from __future__ import annotations

import numpy as np

from strata.control.forecast import Forecast

USUAL = np.array([1.0, 0.6])


def test_noise_drawn_anew_is_no_level():
    rates = USUAL + np.random.default_rng(0).uniform(-0.2, 0.2, (60, 2))
    assert np.abs(Forecast.of(rates, USUAL).level).max() < 0.1


def test_a_jump_after_quiet_is_believed_at_once():
    rates = np.tile(USUAL, (20, 1))
    rates[-1, 0] = 0.2
    forecast = Forecast.of(rates, USUAL)
    assert forecast.ahead(1)[0, 0] < 0.45
    assert forecast.ahead(1)[0, 1] == 0.6


def test_regimes_that_last_longer_have_a_larger_rho():
    def rho(rows):
        rates = np.tile(np.repeat([1.0, 0.2], rows), 96 // (2 * rows))[:, None]
        return Forecast.of(rates, np.array([0.6])).rho[0]

    assert 0.4 < rho(4) < rho(8) < rho(24)


def test_one_row_is_enough():
    forecast = Forecast.of(np.array([[0.3, 0.6]]), USUAL)
    assert np.isfinite(forecast.ahead(9)).all()
    assert forecast.ahead(1)[0, 0] < 1.0


def test_a_plan_that_was_down_at_first_is_not_thought_bad_for_ever():
    usual = np.array([1.0, 0.8])
    rates = np.tile(usual, (12, 1))
    rates[:8, 0] = 0.0
    expected = Forecast.of(rates, usual).ahead(6).sum(axis=0)
    assert expected[0] > expected[1] + 0.3  # a restart is paid
