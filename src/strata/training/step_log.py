"""Step times of a training log, and the steady ones among them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from strata.errors import BadFile, Fault
from strata.stats import mad

WARM_UP_STEPS: Final = 3
"""Left out always: they compile, allocate and open connections."""
STEADY_STEPS: Final = 5
DEVIATIONS: Final = 5.0
"""A leading step this many standard deviations above the later median is one of warming up."""
LEVEL: Final = 1.05
"""Steps of which the first half takes this many times the second still become faster."""

_MEGATRON: Final = re.compile(r"\biteration\s+\d+\s*/\s*\d+.*?elapsed time per iteration \(ms\):\s*([^\s|]+)")
_HEADER: Final = ["step", "seconds"]
_READ: Final = (
    "Megatron-LM's lines (`iteration 10/ 100 | ... elapsed time per iteration (ms): 812.5 |`), "
    "or a CSV whose first line is `step,seconds`"
)


@dataclass(frozen=True)
class StepLog:
    """A log's steady steps. step_s: their median. warm_up, steady: how many there are of either."""

    step_s: float
    warm_up: int
    steady: int


def steady_steps(path: str, text: str) -> StepLog:
    """Return the steady steps of a log. Raises BadFile where a line is wrong, or where there are too few."""
    timed = _timed(path, text)
    times = [seconds for _, seconds in timed]
    first = warm_up_steps(times)
    steady = times[first:]
    if len(steady) < STEADY_STEPS:
        message = (
            f"the steps are warm-up only: {len(steady)} of {len(times)} are steady, {STEADY_STEPS} are needed"
        )
        raise BadFile([Fault(path, message, timed[-1][0], 1)], hint="a longer log")
    return StepLog(float(np.median(steady)), first, len(steady))


def warm_up_steps(times_s: Sequence[float]) -> int:
    """Return how many leading steps are not steady: the first, slow ones, and those that still become faster."""
    later = np.array(times_s[len(times_s) // 2 :])
    typical_s = float(np.median(later)) if len(later) else 0.0
    slow_s = max(LEVEL * typical_s, typical_s + DEVIATIONS * mad(later)) if len(later) else 0.0
    for first in range(min(WARM_UP_STEPS, len(times_s)), len(times_s) - STEADY_STEPS + 1):
        rest = times_s[first:]
        half = len(rest) // 2
        if rest[0] <= slow_s and np.median(rest[:half]) <= LEVEL * np.median(rest[half:]):
            return first
    return len(times_s)


def _timed(path: str, text: str) -> list[tuple[int, float]]:
    """Return line numbers and step times [s] of a log."""
    lines = text.splitlines()
    if lines and [word.strip() for word in lines[0].split(",")] == _HEADER:
        rows = [(n, line.partition(",")[2], 1.0) for n, line in enumerate(lines[1:], 2) if line.strip()]
    else:
        matches = ((n, _MEGATRON.search(line)) for n, line in enumerate(lines, 1))
        rows = [(n, match[1], 1e-3) for n, match in matches if match]
    if not rows:
        raise BadFile([Fault(path, "no step times")], hint=_READ)
    timed, faults = [], []
    for number, word, unit_s in rows:
        seconds = _positive(word) * unit_s
        timed.append((number, seconds))
        if not seconds:
            faults.append(Fault(path, f"{word.strip()[:40]!r} is no step time", number, 1))
    if faults:
        raise BadFile(faults, hint=_READ)
    return timed


def _positive(word: str) -> float:
    """Return a number above 0 and finite; 0 for anything else."""
    try:
        number = float(word)
    except ValueError:
        return 0.0
    return number if 0 < number < 1e12 else 0.0
