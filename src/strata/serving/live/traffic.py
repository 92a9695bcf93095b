"""What requests of late were like, and how many tokens the next ones will ask for; no clock: time comes in."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from strata.workload.serving_job import Demand

PARTS: Final = 20
"""Parts the window is counted in."""
LEVEL, TREND = 0.3, 0.1
"""Weights of the newest part in Holt's double exponential smoothing (Holt 1957): assumed."""
LEAST: Final = 32
"""Requests of the window before their means stand for those to come (assumed)."""
DRIFT: Final = 1.5
"""Times what was planned for that the tokens of a sequence, or the sequences, must be, or a part of it: to plan
anew for less would not pay (assumed)."""
MOST_BATCH: Final = 256
"""Sequences a pipeline is planned for at most, as `workload.serving_job.MOST_SEQUENCES`."""


@dataclass(slots=True)
class _Part:
    """Tokens that arrivals may generate; requests served and their tokens; the most requests at a time."""

    number: int
    offered_tokens: int = 0
    served: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    peak: int = 0


class Traffic:
    """Arrivals and ends over the last `window_s`: their means, their peak, and their trend continued."""

    def __init__(self, window_s: float) -> None:
        self._part_s = window_s / PARTS
        self._parts = deque[_Part]()
        self._since_s: float | None = None

    def arrived(self, max_tokens: int, now_s: float) -> None:
        """Count a request that may generate so many tokens."""
        if self._since_s is None:
            self._since_s = now_s
        self._part(now_s).offered_tokens += max_tokens

    def finished(self, prompt_tokens: int, output_tokens: int, now_s: float) -> None:
        """Count a request that has been served."""
        part = self._part(now_s)
        part.served += 1
        part.prompt_tokens += prompt_tokens
        part.output_tokens += output_tokens

    def unfinished(self, count: int, now_s: float) -> None:
        """Note how many requests run or wait."""
        part = self._part(now_s)
        part.peak = max(part.peak, count)

    def tokens_per_s(self, now_s: float) -> float:
        """Return the tokens foreseen to be asked for in the next window; infinite where nothing is known."""
        if self._since_s is None or now_s - self._since_s < self._part_s:
            return math.inf
        newest = self._part(now_s).number
        offered = {part.number: part.offered_tokens for part in self._parts}
        first = max(int(self._since_s // self._part_s), newest - PARTS + 1)
        level, trend = None, 0.0
        for number in range(first, newest):
            # The first part may have begun late; what it lacks is not an absence of requests.
            width_s = min(self._part_s, (number + 1) * self._part_s - self._since_s)
            rate = offered.get(number, 0) / max(width_s, 1e-9)
            if level is None:
                level = rate
                continue
            before = level
            level = LEVEL * rate + (1 - LEVEL) * (level + trend)
            trend = TREND * (level - before) + (1 - TREND) * trend
        return max(0.0, (level or 0.0) + trend * PARTS / 2)

    def demand(self, assumed: Demand, now: Demand, *, pipelines: int, now_s: float) -> Demand:
        """Return what to plan for: `now` unless requests of late were far from it; `assumed` while they are few.

        Sequences per pipeline are never fewer than assumed: a quiet hour must not shrink the planned KV memory.
        """
        self._part(now_s)
        count = sum(part.served for part in self._parts)
        if count < LEAST:
            return now
        prompt = round(sum(part.prompt_tokens for part in self._parts) / count)
        output = round(sum(part.output_tokens for part in self._parts) / count)
        peak = max(part.peak for part in self._parts)
        seen = replace(
            now,
            batch=min(max(assumed.batch, -(-peak // max(pipelines, 1))), max(MOST_BATCH, assumed.batch)),
            prompt_tokens=max(prompt, 1),
            output_tokens=max(output, 1),
        )
        pairs = (
            (seen.batch, now.batch),
            (seen.prompt_tokens, now.prompt_tokens),
            (seen.output_tokens, now.output_tokens),
        )
        return seen if any(max(a, b) > DRIFT * min(a, b) for a, b in pairs) else now

    def _part(self, now_s: float) -> _Part:
        """Return what the present is counted in, after forgetting what is older than the window."""
        number = int(now_s // self._part_s)
        if not self._parts or self._parts[-1].number < number:
            self._parts.append(_Part(number))
            while self._parts[0].number <= number - PARTS:
                self._parts.popleft()
        return self._parts[-1]
