"""Isolation: who leaves, who returns, and how many at most."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.fleet.health import Slow
from strata.fleet.isolation import FORGIVEN_S, HOLD_S, MemberState, Observation, budget, step

SLOW = Observation(1.0, Slow("x", "card", "rate", 0.5))
WELL, POOR, BROKEN = Observation(1.0), Observation(0.5), Observation(0.0)


def cluster(num: int, **special: Observation) -> dict[str, Observation]:
    return {**{f"d{i}": WELL for i in range(num)}, **special}


def test_a_broken_device_leaves_at_once() -> None:
    verdict = step(cluster(10, x=BROKEN), {}, 0.0)
    assert (verdict.isolate, verdict.release, verdict.waiting) == (("x",), (), ())
    assert verdict.states["x"].is_isolated


def test_a_slow_device_leaves() -> None:
    assert step(cluster(10, x=SLOW), {}, 0.0).isolate == ("x",)


def test_a_score_that_is_no_number_counts_as_broken() -> None:
    assert step(cluster(10, x=Observation(math.nan)), {}, 0.0).isolate == ("x",)


@pytest.mark.parametrize("is_isolated", [True, False])
def test_between_the_two_bounds_a_device_stays_where_it_is(is_isolated: bool) -> None:
    before = {"x": MemberState(is_isolated, since_s=0.0, times=1)}
    verdict = step(cluster(10, x=POOR), before, 1e6)
    assert verdict.isolate == verdict.release == ()
    assert verdict.states["x"].is_isolated is is_isolated


def test_a_device_returns_once_it_has_been_well_for_long() -> None:
    standings = step(cluster(10, x=BROKEN), {}, 0.0).states
    standings = step(cluster(10), standings, 10.0).states
    assert standings["x"].is_isolated  # not seen, still out
    standings = step(cluster(10, x=WELL), standings, 20.0).states
    assert step(cluster(10, x=WELL), standings, 20.0 + HOLD_S - 1).release == ()
    assert step(cluster(10, x=WELL), standings, 20.0 + HOLD_S).release == ("x",)


def test_one_bad_moment_starts_the_wait_anew() -> None:
    standings = step(cluster(10, x=BROKEN), {}, 0.0).states
    for seen, at_s in ((WELL, 1.0), (POOR, HOLD_S - 1), (WELL, HOLD_S)):
        standings = step(cluster(10, x=seen), standings, at_s).states
    assert step(cluster(10, x=WELL), standings, HOLD_S + 10).release == ()
    assert step(cluster(10, x=WELL), standings, 2 * HOLD_S).release == ("x",)


def test_a_device_that_relapses_waits_twice_as_long() -> None:
    standings = {"x": MemberState(is_isolated=False, since_s=0.0, times=1)}
    standings = dict(step(cluster(10, x=BROKEN), standings, 100.0).states)
    standings = dict(step(cluster(10, x=WELL), standings, 200.0).states)
    assert step(cluster(10, x=WELL), standings, 200.0 + HOLD_S).release == ()
    assert step(cluster(10, x=WELL), standings, 200.0 + 2 * HOLD_S).release == ("x",)


def test_old_relapses_are_forgiven() -> None:
    old = {"x": MemberState(is_isolated=False, since_s=0.0, times=9)}
    assert step(cluster(10, x=BROKEN), old, FORGIVEN_S + 1).states["x"].times == 1


def test_the_worst_leave_first_and_the_others_wait() -> None:
    seen = cluster(20, a=SLOW, b=Observation(0.2), c=BROKEN)
    verdict = step(seen, {}, 0.0)
    assert verdict.isolate == ("c", "b")
    assert verdict.waiting == ("a",)


def test_a_small_cluster_may_lose_one() -> None:
    assert [budget(n) for n in (0, 1, 9, 10, 25)] == [0, 1, 1, 1, 2]


SCORES = st.dictionaries(
    st.sampled_from([f"d{i}" for i in range(30)]), st.sampled_from([WELL, POOR, BROKEN, SLOW]), min_size=1
)


@given(st.lists(SCORES, min_size=1, max_size=12), st.floats(0.0, 0.5))
def test_the_budget_is_never_exceeded_by_an_isolation(history: list[dict[str, Observation]], share: float) -> None:
    standings: dict[str, MemberState] = {}
    for i, seen in enumerate(history):
        verdict = step(seen, standings, i * HOLD_S, share=share)
        num_out = sum(one.is_isolated for one in verdict.states.values())
        num_before = sum(one.is_isolated for one in standings.values())
        assert num_out <= max(budget(len(seen), share=share), num_before)
        assert not set(verdict.isolate) & set(verdict.release)
        assert all(seen[uuid].is_bad for uuid in (*verdict.isolate, *verdict.waiting))
        standings = dict(verdict.states)


@given(st.integers(1, 40), st.lists(st.booleans(), min_size=1, max_size=40))
def test_a_flapping_device_changes_at_most_as_often_as_the_hold_allows(num: int, flaps: list[bool]) -> None:
    standings: dict[str, MemberState] = {}
    changes = 0
    for i, is_bad in enumerate(flaps):
        verdict = step(cluster(num, x=BROKEN if is_bad else WELL), standings, i * HOLD_S / 4)
        changes += len(verdict.isolate) + len(verdict.release)
        standings = dict(verdict.states)
    assert changes <= 1 + 2 * (len(flaps) - 1) / 4
