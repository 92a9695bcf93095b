"""How many requests, and how many tokens, the next horizon will bring."""

from __future__ import annotations

import math
from collections import deque

BUCKETS = 20
"""Parts the horizon is counted in."""
LEVEL, TREND = 0.3, 0.1
"""Weights of the newest part in Holt's double exponential smoothing (Holt 1957): assumed."""


class Forecast:
    """Arrivals counted over a horizon, continued along their trend."""

    def __init__(self, horizon_s: float) -> None:
        self.horizon_s = horizon_s
        self._width_s = horizon_s / BUCKETS
        self._counts: deque[tuple[int, int, int]] = deque()  # (bucket, requests, output tokens), oldest first
        self._since_s: float | None = None

    def add(self, tokens: int, now_s: float) -> None:
        """Count a request that may generate so many tokens."""
        if self._since_s is None:
            self._since_s = now_s
        bucket = int(now_s // self._width_s)
        if self._counts and self._counts[-1][0] >= bucket:
            last, requests, so_far = self._counts.pop()
            self._counts.append((last, requests + 1, so_far + tokens))
        else:
            self._counts.append((bucket, 1, tokens))
        self._forget(bucket)

    def requests_per_s(self, now_s: float) -> float:
        """Return the mean rate foreseen for the next horizon; 0 where nothing has come [1/s]."""
        return self._foreseen(1, now_s)

    def tokens_per_s(self, now_s: float) -> float:
        """Return the tokens foreseen to be asked for, at most; infinite where nothing is known [tokens/s]."""
        if self._since_s is None or now_s - self._since_s < self._width_s:
            return math.inf
        return self._foreseen(2, now_s)

    def _forget(self, bucket: int) -> None:
        while self._counts and self._counts[0][0] <= bucket - BUCKETS:
            self._counts.popleft()

    def _foreseen(self, part: int, now_s: float) -> float:
        if self._since_s is None:
            return 0.0
        newest = int(now_s // self._width_s)
        self._forget(newest)
        by_bucket = {entry[0]: entry[part] for entry in self._counts}
        first = max(int(self._since_s // self._width_s), newest - BUCKETS + 1)
        begun_s = min(now_s, (newest + 1) * self._width_s) - max(newest * self._width_s, self._since_s)
        level, trend = None, 0.0
        for bucket in range(first, newest):
            # The first part may have begun late; what it lacks is not an absence of requests.
            width_s = min(self._width_s, (bucket + 1) * self._width_s - self._since_s)
            rate = by_bucket.get(bucket, 0) / max(width_s, 1e-9)
            if level is None:
                level = rate
                continue
            before = level
            level = LEVEL * rate + (1 - LEVEL) * (level + trend)
            trend = TREND * (level - before) + (1 - TREND) * trend
        if level is None:
            return by_bucket.get(newest, 0) / max(begun_s, self._width_s / 10)
        return max(0.0, level + trend * BUCKETS / 2)
