"""Noise told from change: the filter of links."""

from __future__ import annotations

import numpy as np
import pytest

from strata.control.links import expected, history, take_in
from strata.control.state import LinkSeen
from strata.fleet.schema import load_fleet

FLEET = load_fleet("seed")
PAIRS = list(FLEET.links)


def measured(factors, *, start_s=0.0, estimates=None):
    """Return the estimates after rows of factors [T, L], one every 300 s."""
    estimates = estimates or {}
    for row, values in enumerate(np.asarray(factors)):
        at_s = start_s + 300.0 * row
        seen = [
            LinkSeen(*pair, at_s, FLEET.links[pair].bandwidth_bytes_per_s * value)
            for pair, value in zip(PAIRS, values, strict=True)
        ]
        estimates = take_in(FLEET, estimates, seen)
    return estimates


def noise(seed, rows):
    return 1 + np.random.default_rng(seed).uniform(-0.3, 0.3, (rows, len(PAIRS)))


@pytest.mark.parametrize("seed", range(4))
def test_the_seeds_noise_is_no_change(seed):
    for estimate in measured(noise(seed, 60)).values():
        assert 0.8 < estimate.factor < 1.2
        assert 0.1 < estimate.spread < 0.3


@pytest.mark.parametrize("seed", range(4))
def test_a_halved_link_is_noticed_within_three_observations(seed):
    factors = noise(seed, 43)
    factors[40:, 0] *= 0.5
    estimates = measured(factors)
    assert estimates[PAIRS[0]].factor < 0.7
    assert all(estimates[pair].factor > 0.8 for pair in PAIRS[1:])


def test_a_link_without_noise_is_believed_at_once():
    factors = np.ones((20, len(PAIRS)))
    factors[-1, 0] = 0.5
    assert measured(factors)[PAIRS[0]].factor == pytest.approx(0.5, rel=0.1)


def test_an_outage_that_ends_is_a_level_of_its_own_and_old_reports_are_left_out():
    factors = np.ones((30, len(PAIRS)))
    factors[10:20, 0] = 0.0
    estimates = measured(factors)
    assert estimates[PAIRS[0]].since_s == 20 * 300.0
    late = take_in(FLEET, estimates, [LinkSeen(*PAIRS[0], 5.0, 0.0), LinkSeen("no", "link", 1.0, 1.0)])
    assert late == estimates


def test_links_measured_together_or_twice_at_one_time_have_one_row_for_each_time():
    factors = np.random.default_rng(0).uniform(0.1, 1.0, (5, len(PAIRS)))
    estimates = measured(factors)
    assert history(FLEET, estimates) == pytest.approx(factors)
    again = measured(factors[-1:] / 2, start_s=1200.0, estimates=estimates)
    assert history(FLEET, again) == pytest.approx(np.append(factors[:-1], factors[-1:] / 2, axis=0))


def test_history_holds_what_was_not_measured_at_a_time():
    estimates = measured(np.ones((2, len(PAIRS))))
    nominal = FLEET.links[PAIRS[0]].bandwidth_bytes_per_s
    estimates = take_in(FLEET, estimates, [LinkSeen(*PAIRS[0], 900.0, nominal / 4)])
    rows = history(FLEET, estimates)
    assert rows[:, 0] == pytest.approx([1.0, 1.0, 0.25])
    assert rows[:, 1] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("said", "believed"), [(np.nan, 1.0), (np.inf, 1.0), (-1.0, 1.0), (1e30, 2.0), (1.9, 1.9)]
)
def test_a_probe_that_lies_is_believed_as_far_as_it_can_be_true(said, believed):
    estimates = measured(np.ones((2, len(PAIRS))))
    nominal = FLEET.links[PAIRS[0]].bandwidth_bytes_per_s
    after = take_in(FLEET, estimates, [LinkSeen(*PAIRS[0], 900.0, nominal * said)])
    assert history(FLEET, after)[-1, 0] == pytest.approx(believed)


def test_a_level_that_lasted_is_expected_to_last_and_an_outage_that_comes_and_goes_to_end():
    lasting, passing = np.ones((60, len(PAIRS))), np.ones((60, len(PAIRS)))
    lasting[20:, 0] = 0.4
    passing[5::6, 0] = 0.1  # single measurements, the last one just now
    passing[-1, 0] = 0.1
    long, short = (expected(FLEET, measured(factors), 6) for factors in (lasting, passing))
    assert long[0] < 0.6
    assert short[0] > 0.7
    assert long[1:] == pytest.approx(np.ones(len(PAIRS) - 1))


def test_a_link_that_was_never_measured_is_expected_to_be_nominal():
    assert expected(FLEET, {}, 6) == pytest.approx(np.ones(len(PAIRS)))
