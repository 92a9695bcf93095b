"""What the past tells of plans in the long run."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strata.control.analogs import Analogs

HOME, AWAY = 0, 1


def analogs(rows, *, pause=0.3, leaves_down=True):
    """Two plans: one at home, one over a link that may be down, when weights cannot be moved from it."""
    rates = np.array(rows, dtype=float)
    pauses = []
    for row in rates:
        between = np.array([[0.0, pause], [pause, 0.0]])
        if row[AWAY] == 0 and not leaves_down:
            between[AWAY, HOME] = np.inf
        pauses.append(between)
    return Analogs(rates, pauses)


def test_who_cannot_leave_a_link_that_is_often_down_stays_at_home():
    up, down = (0.8, 1.0), (0.8, 0.0)
    rows = [up] + ([up] * 8 + [down] * 8) * 4 + [up] * 2
    held = analogs(rows, leaves_down=False).worth(HOME)
    free = analogs(rows).worth(HOME)
    assert held[HOME] > held[AWAY]
    assert free[AWAY] > free[HOME]


def test_what_is_over_soon_is_not_worth_going_for():
    def gain(rows):
        low, high = [(0.5, 0.0)] * rows, [(0.5, 0.9)] * rows
        worth = analogs([(0.5, 0.45), *(low + high) * (48 // rows), *low, (0.5, 0.9)], pause=1.5).worth(HOME)
        return worth[AWAY] - worth[HOME]

    assert gain(1) < 0 < gain(12)


def test_jumps_and_slopes_are_no_noise_but_what_is_drawn_anew_is():
    steps = np.repeat([1.0, 0.3, 1.0, 0.6], 12)
    slope = np.linspace(0, 1, 48)
    drawn = 0.7 + 0.1 * np.random.default_rng(0).standard_normal(400)
    noise = [analogs(np.stack([series, series], axis=1)).noise for series in (steps, slope, drawn)]
    assert noise[0] == 0.0
    assert noise[1] < 1e-9
    assert 0.08 < noise[2] < 0.12


@given(st.lists(st.tuples(*[st.sampled_from([0.0, 0.3, 0.7, 1.0])] * 2), min_size=2, max_size=12))
def test_a_plan_is_worth_at_most_what_is_best_of_all_for_ever(rows):
    worth = analogs(rows).worth(HOME)
    assert (worth <= np.max(rows) / (1 - 0.97) + 1e-9).all()
    assert worth[HOME] >= -1e-9


@given(st.lists(st.tuples(*[st.sampled_from([0.0, 0.5, 1.0])] * 2), min_size=2, max_size=12))
def test_staying_never_costs_and_a_dearer_switch_is_worth_no_more(rows):
    cheap, dear = analogs(rows, pause=0.1).worth(HOME), analogs(rows, pause=0.6).worth(HOME)
    assert (dear <= cheap + 1e-9).all()
