"""Virtual time without processes: a heap of what happens when. What SimPy is not used for runs on this.

SimPy (`simulate/events`) is for what reads best as a process that waits: a pipeline that computes and sends. Here
an event is a function call. A decoding pipeline of `serving/replay` is re-timed whenever a sequence comes or
goes, and leaving a stale entry in a heap costs a tenth of interrupting a process; ASTRA-sim's own order of events
(`compat/slots`) is by time and then by insertion, which a process would blur.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count
from typing import Any, Generic, TypeVar

Time = TypeVar("Time", int, float)
"""Seconds, or whole nanoseconds where rounding would reorder events; `now` has the unit of the times given."""

Action = Callable[..., None]


class EventClock(Generic[Time]):
    """Runs actions in the order of their times; those of one time in the order they were asked for."""

    def __init__(self, now: Time) -> None:
        self.now: Time = now
        self._heap: list[tuple[Time, int, Action, tuple[Any, ...]]] = []
        self._numbers = count()

    def at(self, time: Time, action: Action, *arguments: Any) -> None:
        """Do something at a time; one that has passed is now, one that is infinite never comes."""
        if time < math.inf:
            heapq.heappush(self._heap, (max(time, self.now), next(self._numbers), action, arguments))

    def step(self, end: float = math.inf) -> bool:
        """Do what is next; False where nothing is until `end`."""
        if not self._heap or self._heap[0][0] > end:
            return False
        self.now, _, action, arguments = heapq.heappop(self._heap)
        action(*arguments)
        return True
