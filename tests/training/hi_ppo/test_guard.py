from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strata.training.hi_ppo.guard import guard
from strata.training.replan.options import HORIZONS, SPANS
from strata.training.replan.rules import hysteresis, keep, mpc, myopic
from tests.support.laws import examples
from tests.training.hi_ppo.domain_states import options

SEEDS = st.integers(0, 2**32 - 1)


def tokens(reasons):
    return [reason and reason.token for reason in reasons]


def drawn(seed, *, rows=20, count=6):
    rng = np.random.default_rng(seed)
    legal = rng.random((rows, count)) < 0.8
    current = rng.integers(-1, count, rows)
    legal[np.arange(rows), rng.integers(0, count, rows)] = True
    cost = rng.uniform(0, 4, (rows, count)) * (np.arange(count) != current[:, None])
    return rng, options(rng.uniform(0, 1, (rows, count, 5)), cost, current=current, legal=legal)


def test_gains_are_summed_step_by_step_between_and_beyond_the_horizons():
    value = np.zeros((1, 2, 5))
    value[0, 1] = HORIZONS  # the gain k steps ahead is k, 8 from the eighth on
    found = options(value, np.zeros((1, 2)), current=[0]).summed_gain()[0, 1]
    assert found.tolist() == [sum(min(k, 8) for k in range(span)) for span in SPANS]


def test_a_switch_that_pays_within_sixteen_steps_passes():
    picks, reasons = guard(options([[1.0, 1.1]], [[0, 1.5]], current=[0]), np.array([1]))
    assert picks.tolist() == [1]
    assert reasons == (None,)


def test_a_switch_that_never_pays_is_refused_and_says_what_it_would_have_cost():
    picks, [reason] = guard(options([[1.0, 1.1]], [[0, 1.7]], current=[0]), np.array([1]))
    assert picks.tolist() == [0]
    assert str(reason) == "gains at most 1.6 over 16 steps where the switch costs 1.7"


def test_a_gain_that_is_gone_later_is_still_worth_its_first_steps():
    value = [[[1, 1, 1, 1, 1], [2, 0, 0, 0, 0]]]
    assert guard(options(value, [[0, 0.9]], current=[0]), np.array([1]))[0].tolist() == [1]
    assert guard(options(value, [[0, 1.1]], current=[0]), np.array([1]))[0].tolist() == [0]


def test_the_safe_rule_may_still_switch_where_a_pick_is_refused():
    case = options([[1.0, 1.05, 2.0]], [[0, 5.0, 0.5]], current=[0])
    picks, reasons = guard(case, np.array([1]))
    assert picks.tolist() == [2]
    assert tokens(reasons) == ["switch-never-pays"]


def test_the_safe_rule_is_held_to_the_same():
    case = options([[[1, 1, 1, 1, 1], [1.6, 0, 0, 0, 0]]], [[0, 1.0]], current=[0])
    assert hysteresis()(case).tolist() == [1]
    assert guard(case, np.array([1]))[0].tolist() == [0]


def test_a_pick_that_cannot_be_taken_gives_way():
    case = options(np.tile([1.0, 0.5], (3, 1)), np.zeros((3, 2)), current=[0, 0, 0], legal=[[True, False]] * 3)
    picks, reasons = guard(case, np.array([1, 7, -1]))
    assert picks.tolist() == [0, 0, 0]
    assert tokens(reasons) == ["pick-not-legal"] * 3


def test_options_without_figures_are_never_taken():
    case = options([[1.0, np.nan, 3.0]], [[0, 0, 0.1]], current=[0])
    picks, reasons = guard(case, np.array([1]))
    assert picks.tolist() == [2]
    assert tokens(reasons) == ["figures-not-finite"]


def test_a_plan_in_use_without_figures_is_kept():
    picks, reasons = guard(options([[np.nan, 2.0]], [[0, 0]], current=[0]), np.array([1]))
    assert picks.tolist() == [0]
    assert tokens(reasons) == ["figures-not-finite"]


def test_missing_figures_of_one_decision_leave_the_others_alone():
    case = options([[1.0, np.inf], [1.0, 2.0]], [[0, 0], [0, 0.1]], current=[0, 0])
    picks, reasons = guard(case, np.array([1, 1]))
    assert picks.tolist() == [0, 1]
    assert tokens(reasons) == ["figures-not-finite", None]


def test_where_what_was_in_use_is_gone_nothing_is_refused():
    gone = options([[0.0, 0.1]], [[0, 9.0]], current=[0], legal=[[False, True]])
    picks, reasons = guard(gone, np.array([1]))
    assert picks.tolist() == [1]
    assert reasons == (None,)


def test_a_first_choice_may_differ_from_the_safe_rules_but_not_be_behind_it_over_every_span():
    value = [[[1.0, 1.0, 1.0, 1.0, 1.0], [0.9, 1.2, 1.2, 1.2, 1.2], [0.9, 0.9, 0.9, 0.9, 0.9]]]
    first = options(value, np.zeros((1, 3)), current=[-1])
    assert guard(first, np.array([1]))[0].tolist() == [1]
    picks, reasons = guard(first, np.array([2]))
    assert picks.tolist() == [0]
    assert tokens(reasons) == ["switch-never-pays"]


@given(seed=SEEDS)
@examples(60)
def test_what_passes_is_legal_and_no_switch_loses_at_every_span(seed):
    rng, case = drawn(seed)
    picks, _ = guard(case, rng.integers(-2, 8, len(case)))
    rows = np.arange(len(case))
    assert case.legal[rows, picks].all()
    can_keep = (case.current >= 0) & case.legal[rows, case.current]
    pays = (case.summed_gain()[rows, picks] > case.cost[rows, picks, None]).any(axis=1)
    assert (pays | (picks == case.current) | ~can_keep).all()


@given(seed=SEEDS)
@examples(40)
def test_guarding_twice_changes_nothing_and_rules_without_a_loss_pass(seed):
    rng, case = drawn(seed)
    once, _ = guard(case, rng.integers(0, 6, len(case)))
    again, reasons = guard(case, once)
    assert np.array_equal(once, again)
    assert not any(reasons)
    had_one = case.current >= 0
    for rule in (keep, mpc(8)):
        assert np.array_equal(guard(case, rule(case))[0][had_one], rule(case)[had_one])


def test_a_myopic_switch_back_and_forth_is_stopped():
    value = [[[1.0, 1.0, 1.0, 1.0, 1.0], [1.2, 1.0, 0.8, 0.8, 0.8]]]
    case = options(value, [[0, 0.5]], current=[0])
    assert myopic(case).tolist() == [1]
    assert guard(case, myopic(case))[0].tolist() == [0]
