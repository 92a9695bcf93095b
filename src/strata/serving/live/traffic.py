"""What requests of late were like: tokens read and written, and how many there were at a time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from strata.workload.serving_job import Demand

PARTS: Final = 10
"""Parts the window is counted in."""
LEAST: Final = 32
"""Requests of the window before their means stand for those to come (assumed)."""
DRIFT: Final = 1.5
"""Times what was planned for that the tokens of a sequence, or the sequences, must be, or a part of it: to plan
anew for less would not pay (assumed)."""
MOST_BATCH: Final = 256
"""Sequences a pipeline is planned for at most, as `observe.MOST_SEQUENCES`."""


@dataclass(slots=True)
class _Part:
    number: int
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    peak: int = 0


class Traffic:
    """Means and the peak over the last `window_s`; no clock: time comes in."""

    def __init__(self, window_s: float) -> None:
        self._part_s = window_s / PARTS
        self._parts = deque[_Part]()

    def finished(self, prompt_tokens: int, output_tokens: int, now_s: float) -> None:
        """Count a request that has been served."""
        part = self._part(now_s)
        part.requests += 1
        part.prompt_tokens += prompt_tokens
        part.output_tokens += output_tokens

    def unfinished(self, count: int, now_s: float) -> None:
        """Note how many requests run or wait."""
        part = self._part(now_s)
        part.peak = max(part.peak, count)

    def demand(self, assumed: Demand, now: Demand, *, pipelines: int, now_s: float) -> Demand:
        """Return what to plan for: `now` unless requests of late were far from it; `assumed` while they are few.

        The sequences of a pipeline are never fewer than assumed: a quiet hour is no reason to have no room.
        """
        self._part(now_s)
        count = sum(part.requests for part in self._parts)
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
        number = int(now_s // self._part_s)
        if not self._parts or self._parts[-1].number < number:
            self._parts.append(_Part(number))
            while self._parts[0].number <= number - PARTS:
                self._parts.popleft()
        return self._parts[-1]
