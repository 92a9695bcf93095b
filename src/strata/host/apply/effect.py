"""Whether a policy helped: what critical threads waited, before and after, against how far equal windows differ.

Pure: counters in, a verdict out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final, Literal

from strata.host.threads.classify import Classified

Verdict = Literal["helped", "no-effect", "worse", "not-needed"]

LEAST: Final = 0.01
"""Of what critical threads want: a smaller change is none, however quiet the machine is."""
NEEDED: Final = 0.02
"""Waiting from which there is anything to win."""
MARGIN: Final = 2.0
"""Standard errors of the difference that a change has to be beyond."""

Counters = Mapping[tuple[int, int], tuple[float, float]]
"""Seconds that each thread (tid, start) ran and waited."""


@dataclass(frozen=True, slots=True)
class Effect:
    """before, after: the share waited of what critical threads wanted. floor: what equal windows differ by."""

    verdict: Verdict
    before: float
    after: float | None
    floor: float

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        return {name: getattr(self, name) for name in self.__slots__}


def counters_of(threads: Sequence[Classified]) -> Counters:
    """Return what the critical threads of the job ran and waited until now; none where it is not counted."""
    return {
        thread.thread.key: (thread.thread.run_s or 0.0, thread.thread.wait_s)
        for thread in threads
        if thread.layer == "critical" and not thread.is_other_job and thread.thread.wait_s is not None
    }


def waited_share(before: Counters, after: Counters) -> float | None:
    """Return the share waited of what threads wanted in a window; None where none wanted anything."""
    both = before.keys() & after.keys()
    ran = sum(after[key][0] - before[key][0] for key in both)
    waited = sum(after[key][1] - before[key][1] for key in both)
    return waited / (ran + waited) if ran + waited > 0 else None


def noise_floor(windows: Sequence[float]) -> float:
    """Return by how much the means of two lots of equal windows may differ (A/A): MARGIN standard errors."""
    if len(windows) < 2:
        return 1.0
    mean = fmean(windows)
    variance = sum((window - mean) ** 2 for window in windows) / (len(windows) - 1)
    return max(LEAST, MARGIN * math.sqrt(2.0 * variance / len(windows)))


def is_needed(windows: Sequence[float]) -> bool:
    """Return whether critical threads wait at all."""
    return bool(windows) and fmean(windows) >= NEEDED


def judge(before: Sequence[float], after: Sequence[float]) -> Effect:
    """Return whether a policy helped: less waiting than before, by more than equal windows differ."""
    was = fmean(before) if before else 0.0
    floor = noise_floor(before)
    if not is_needed(before):
        return Effect("not-needed", was, None, floor)
    now = fmean(after) if after else 0.0
    floor = max(floor, noise_floor(after)) if len(after) > 1 else floor
    verdict: Verdict = "helped" if was - now > floor else "worse" if now - was > floor else "no-effect"
    return Effect(verdict, was, now, floor)
