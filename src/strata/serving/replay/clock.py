"""Virtual time: a heap of what happens when.

Not SimPy, the house's event kernel: a decoding pipeline is re-timed whenever a sequence comes or goes, and
dropping a stale entry of a heap costs a tenth of interrupting a process.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count
from typing import Any

Action = Callable[..., None]


class EventClock:
    """Runs actions in the order of their times; those of one time in the order they were asked for."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self._heap: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._numbers = count()

    def at(self, time_s: float, action: Action, *arguments: Any) -> None:
        """Do something at a time; one that has passed is now, one that is infinite never comes."""
        if time_s < math.inf:
            heapq.heappush(self._heap, (max(time_s, self.now_s), next(self._numbers), action, arguments))

    def step(self) -> bool:
        """Do what is next; False where nothing is."""
        if not self._heap:
            return False
        self.now_s, _, action, arguments = heapq.heappop(self._heap)
        action(*arguments)
        return True
