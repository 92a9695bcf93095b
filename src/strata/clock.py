"""Time is an argument: what waits, times out or stamps is given a clock, and a test gives it another."""

from __future__ import annotations

from collections.abc import Callable

Clock = Callable[[], float]
"""Returns seconds, later ones larger; from which moment they count is for the caller to say."""

Check = Callable[[], None]
"""Called now and then by work that may take long, which ends with what it raises."""


def unlimited() -> None:
    """Let the work go on, however long it takes."""
