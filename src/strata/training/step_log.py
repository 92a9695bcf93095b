"""Step times of a training log, and the steady ones among them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_HEADER: Final = ["step", "seconds"]
_MAGNITUDES: Final = {"": 1.0, "K": 1e3, "M": 1e6}


@dataclass(frozen=True)
class LogForm:
    """How a trainer writes a step's time: `line` finds it (groups `number` and, where it has one, `unit`).

    seconds: of the number, the unit, and the tokens that a device works through a step. Where lines count to a
    `total`, that of the first one is the training's.
    """

    name: str
    line: re.Pattern[str]
    seconds: Callable[[float, str, float], float]


FORMS: Final = (
    LogForm(
        "Megatron-LM",  # training.py, training_log
        re.compile(r"\biteration\s+\d+\s*/\s*\d+.*?elapsed time per iteration \(ms\):\s*(?P<number>[^\s|]+)"),
        lambda number, _unit, _tokens: number / 1e3,
    ),
    LogForm(
        "nanotron",  # logging/base.py, LoggerWriter and human_format: three digits and a magnitude
        re.compile(
            r"\biteration:\s*\d+\s*/\s*\d+\b.*?\belapsed_time_per_iteration_ms:\s*(?P<number>[^\s|KM]+)(?P<unit>[KM]?)"
        ),
        lambda number, unit, _tokens: number * _MAGNITUDES[unit] / 1e3,
    ),
    LogForm(
        "torchtitan",  # components/metrics.py, MetricsProcessor.log: tokens a second of a device
        re.compile(r"(?<!validate )\bstep:\s*\d+\s+loss:.*?\btps:\s*(?P<number>\S+)"),
        lambda number, _unit, tokens: tokens / number,
    ),
    LogForm(
        "Hugging Face Trainer",  # its bar is tqdm's (std.py, format_meter), without a title; others have one
        re.compile(
            r"(?:^|\r)\s*\d+%\|[^|\r]*\|\s*[1-9]\d*/(?P<total>\d+) \[[^]\r]*,"
            r"\s*(?P<number>[\d.]+)(?P<unit>it/s|s/it)"
        ),
        lambda number, unit, _tokens: 1 / number if unit == "it/s" else number,
    ),
    LogForm(
        "strata's own train.py",
        re.compile(r"^step \d+ loss \S+ time (?P<number>\S+)s$"),
        lambda number, _unit, _tokens: number,
    ),
    LogForm(
        "what a program reports in STRATA_PROGRESS",
        re.compile(r"^\{\"step\": \d+,.*\"step_time_s\": (?!null)(?P<number>[^,}]+)"),
        lambda number, _unit, _tokens: number,
    ),
)
_READ: Final = f"logs of {', '.join(form.name for form in FORMS)}, or a CSV whose first line is `step,seconds`"
_MEAN_ONLY: Final = "train_runtime"
"""What the Trainer prints once, at the end: its mean has the warm-up in it."""


@dataclass(frozen=True)
class StepLog:
    """A log's steady steps. step_s: their median. warm_up, steady: how many there are of either."""

    step_s: float
    warm_up: int
    steady: int


def steady_steps(path: str, text: str, *, tokens_per_device: float) -> StepLog:
    """Return the steady steps of a log. Raises BadFile where a line is wrong, or where there are too few.

    tokens_per_device: those of a step over all devices; what a rate of tokens stands for.
    """
    timed = _timed(path, text, tokens_per_device)
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


def _timed(path: str, text: str, tokens_per_device: float) -> list[tuple[int, float]]:
    """Return line numbers and step times [s] of a log."""
    lines = [_COLOUR.sub("", line) for line in text.removesuffix("\r").split("\n")]
    rows: list[tuple[int, str, float]] = []
    if [word.strip() for word in lines[0].split(",")] == _HEADER:
        words = ((n, line.partition(",")[2]) for n, line in enumerate(lines[1:], 2) if line.strip())
        rows = [(n, word, _positive(word)) for n, word in words]
    for form in () if rows else FORMS:
        matches = [(n, match) for n, line in enumerate(lines, 1) for match in form.line.finditer(line)]
        groups = [(n, match.groupdict("")) for n, match in matches]
        total = groups[0][1].get("total") if groups else None
        for n, match in groups:
            if match.get("total") == total:
                number = _positive(match["number"].replace(",", ""))
                seconds = form.seconds(number, match.get("unit", ""), tokens_per_device) if number else 0.0
                rows.append((n, match["number"], seconds))
        if rows:
            break
    if not rows:
        mean = f"; {_MEAN_ONLY} is a mean with the warm-up in it" if _MEAN_ONLY in text else ""
        raise BadFile([Fault(path, f"no step times{mean}")], hint=_READ)
    faults = [
        Fault(path, f"{word.strip()[:40]!r} is no step time", n, 1) for n, word, seconds in rows if not seconds
    ]
    if faults:
        raise BadFile(faults, hint=_READ)
    return [(n, seconds) for n, _, seconds in rows]


def _positive(word: str) -> float:
    """Return a number above 0 and finite; 0 for anything else."""
    try:
        number = float(word)
    except ValueError:
        return 0.0
    return number if 0 < number < 1e12 else 0.0
