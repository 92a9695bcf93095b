"""Requests that wait for room: by priority, which grows with waiting, and first come first served within it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from strata.serving.request import RequestSignal

PATIENCE: Final = 32
"""How many may overtake one that did not fit; then room is kept free for it, so that large ones do not starve."""


@dataclass(slots=True)
class _Entry:
    """A waiting request, since when, and how many have overtaken it."""

    request: RequestSignal
    since_s: float
    passed: int = 0
    is_gone: bool = False


class WaitingQueue:
    """At most `limit` requests; one gains one priority every `aging_s` seconds, so nobody waits for ever.

    All age alike, so their order never changes: it is by (time of coming - priority * aging_s). Nothing here
    polls: the caller asks `pop` when something came or was released.
    """

    def __init__(self, limit: int, aging_s: float = 10.0) -> None:
        self.limit, self.aging_s = limit, aging_s
        self._heap: list[tuple[float, int, _Entry]] = []
        self._entries: dict[str, _Entry] = {}
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, request: RequestSignal, now_s: float, *, is_forced: bool = False) -> bool:
        """Add a request that came at `now_s`; False where the queue is full, which `is_forced` does not mind.

        An interrupted request is forced, with the time it first came, so that it keeps its place.
        """
        assert request.request_id not in self._entries, f"{request.request_id} waits already"
        if len(self._entries) >= self.limit and not is_forced:
            return False
        entry = _Entry(request, now_s)
        self._entries[request.request_id] = entry
        heapq.heappush(self._heap, (now_s - request.priority * self.aging_s, self._pushed, entry))
        self._pushed += 1
        return True

    def pop(self, now_s: float, can: Callable[[RequestSignal], bool], *, tries: int = 8) -> RequestSignal | None:
        """Remove and return the best of the first `tries` requests that `can` go; None where none of them can.

        Each is shown with what is left of its goals, and returned as it came.
        """
        heap, missed, best = self._heap, list[tuple[float, int, _Entry]](), None
        while heap and len(missed) < tries:
            item = heapq.heappop(heap)
            entry = item[2]
            if entry.is_gone:
                continue
            if can(left(entry.request, entry.since_s, now_s)):
                del self._entries[entry.request.request_id]
                best = entry.request
                for _, _, other in missed:
                    other.passed += 1
                break
            missed.append(item)
            if entry.passed >= PATIENCE:
                break
        for item in missed:
            heapq.heappush(heap, item)
        return best

    def remove(self, request_id: str) -> bool:
        """Forget a request; False where it does not wait. O(1), amortised."""
        entry = self._entries.pop(request_id, None)
        if entry is None:
            return False
        entry.is_gone = True
        if len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = [item for item in self._heap if not item[2].is_gone]
            heapq.heapify(self._heap)
        return True


def left(request: RequestSignal, since_s: float, now_s: float) -> RequestSignal:
    """Return a request that waits since then as if it came now."""
    if request.ttft_goal_s == math.inf or now_s <= since_s:
        return request
    waited_s = now_s - since_s
    return replace(request, ttft_goal_s=request.ttft_goal_s - waited_s, waited_s=waited_s)
