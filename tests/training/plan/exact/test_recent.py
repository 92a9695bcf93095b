from __future__ import annotations

from strata.training.plan.exact.recent import BYTES, Recent


def test_what_was_not_asked_for_the_longest_is_forgotten():
    recent = Recent[str, int](2)
    recent["a"], recent["b"] = 1, 2
    assert recent["a"] == 1
    recent["c"] = 3
    assert sorted(recent) == ["a", "c"]
    recent["a"] = 4
    recent["d"] = 5
    assert sorted(recent) == ["a", "d"]


def test_tables_of_a_deep_model_are_no_more_than_there_is_room_for():
    recent = Recent[int, int].of_tables(126)
    assert BYTES - 8 * 127**2 < recent.most * 8 * 127**2 <= BYTES
