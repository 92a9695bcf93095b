"""Time is an argument: what waits, times out or stamps is given a clock, and a test gives it another."""

from __future__ import annotations

from collections.abc import Callable

Clock = Callable[[], float]
"""Returns seconds, later ones larger; from which moment they count is for the caller to say."""
