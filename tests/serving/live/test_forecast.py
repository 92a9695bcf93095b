"""Arrivals counted over a horizon, and what they foretell."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serving.live.traffic import Traffic


def counted(rate: float, seconds: float, *, tokens: int = 10, horizon_s: float = 600.0) -> Traffic:
    forecast = Traffic(horizon_s)
    for i in range(int(rate * seconds)):
        forecast.arrived(tokens, i / rate)
    return forecast


@given(st.sampled_from([0.5, 2.0, 20.0]), st.floats(60.0, 1500.0))
def test_a_steady_stream_is_foreseen_as_steady(rate: float, seconds: float):
    forecast = counted(rate, seconds)
    # One request more or less in a part of 30 s is all that may be missed.
    assert forecast.tokens_per_s(seconds) / 10 == pytest.approx(rate, abs=0.25 * rate + 0.05)


def test_a_growing_stream_is_foreseen_to_grow():
    forecast = Traffic(600.0)
    for second in range(600):
        for _ in range(1 + second // 60):
            forecast.arrived(1, float(second))
    assert forecast.tokens_per_s(600.0) > 10


def test_silence_is_foreseen_to_last_and_nothing_is_negative():
    forecast = counted(5.0, 300.0)
    assert forecast.tokens_per_s(5000.0) == 0.0
    assert all(forecast.tokens_per_s(300.0 + t) >= 0 for t in range(0, 1200, 50))


def test_before_anything_is_known_any_number_of_tokens_may_come():
    assert Traffic(600.0).tokens_per_s(0.0) == math.inf
    assert counted(5.0, 10.0).tokens_per_s(10.0) == math.inf
