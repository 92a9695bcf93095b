"""Until when waiting requests have to be sent to be in time, the earliest first."""

from __future__ import annotations

import heapq
from typing import Final

TOGETHER_S: Final = 0.05
"""What passes within so long of each other is told of at once: a crowd that waits is not an event each."""


class Deadlines:
    """Times by request. Nothing here polls: the caller asks again at `wake_s`."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._due_s: dict[str, float] = {}

    def add(self, request_id: str, due_s: float) -> None:
        """Set a request's time, in place of what it had."""
        self._due_s[request_id] = due_s
        heapq.heappush(self._heap, (due_s, request_id))

    def remove(self, request_id: str) -> None:
        """Forget a request; nothing where it has no time. O(1), amortised."""
        self._due_s.pop(request_id, None)
        if len(self._heap) > 2 * len(self._due_s) + 64:
            self._heap = [(due_s, name) for name, due_s in self._due_s.items()]
            heapq.heapify(self._heap)

    def passed(self, now_s: float) -> list[str]:
        """Remove and return the requests whose time lies before now."""
        out = list[str]()
        while self._heap and self._heap[0][0] < now_s:
            due_s, request_id = heapq.heappop(self._heap)
            if self._due_s.get(request_id) == due_s:
                del self._due_s[request_id]
                out.append(request_id)
        return out

    def wake_s(self) -> float | None:
        """Return when to ask again; None where no request has a time."""
        while self._heap and self._due_s.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] + TOGETHER_S if self._heap else None
