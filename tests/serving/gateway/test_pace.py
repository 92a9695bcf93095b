"""How long an engine may be silent, by what its streams did before."""

from __future__ import annotations

import pytest

from strata.serving.gateway.pace import Pace

ONE, OTHER = ("one", 1), ("other", 1)


def reading(*, tokens=100, took_s=1.0):
    """An engine that has read one prompt."""
    pace = Pace(120.0)
    pace.sent(ONE, tokens, 0.0)
    pace.read(ONE, took_s)
    return pace


def test_a_prompt_may_be_read_for_as_long_as_silence_may_last():
    pace = Pace(120.0)
    pace.sent(ONE, 100, 5.0)
    assert pace.due_s(ONE, 5.0, 0.0) == 125.0


@pytest.mark.parametrize(("gap_s", "limit_s"), [(0.01, 20.0), (1.0, 20.0), (2.0, 40.0), (30.0, 120.0)])
def test_a_stream_that_has_begun_is_given_many_of_its_own_pauses_and_never_more_than_silence_may_last(
    gap_s, limit_s
):
    assert reading().due_s(ONE, 100.0, gap_s) == 100.0 + limit_s


def test_a_stream_that_waits_while_others_move_is_put_off_and_not_lost():
    pace = reading()
    pace.heard_s = 150.0
    assert pace.due_s(ONE, 100.0, 0.1) == 170.0
    pace.heard_s = 219.0
    assert pace.due_s(ONE, 100.0, 0.1) == 220.0


@pytest.mark.parametrize(("sent_s", "more_s"), [(99.0, 50.0), (100.0, 50.0), (101.0, 0.0)])
def test_a_prompt_that_came_while_the_engine_worked_explains_a_silence_and_a_later_one_does_not(sent_s, more_s):
    pace = reading()
    pace.sent(OTHER, 1000, sent_s)
    assert pace.due_s(ONE, 100.0, 0.1) == 120.0 + more_s
    pace.gone(OTHER)
    assert pace.due_s(ONE, 100.0, 0.1) == 120.0
