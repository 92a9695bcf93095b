"""What ranks report: lines of JSON among whatever else a trainer writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Report:
    """A line of rank 0: steps done, how long the last took, and when it was written: None where it says none."""

    step: int
    step_time_s: float | None
    at_s: float | None
    is_checkpoint: bool = False


def lines_of(text: str) -> Iterator[dict[str, Any]]:
    """Yield the lines that are JSON objects; a trainer may write anything."""
    for line in text.splitlines():
        with suppress(ValueError, RecursionError):
            data = json.loads(line)
            if isinstance(data, dict):
                yield data


def step_reports(text: str, *, most_steps: int) -> Iterator[Report]:
    """Yield the reports of steps that make sense."""
    for line in lines_of(text):
        step, seconds, at_s = line.get("step"), line.get("step_time_s"), line.get("at_s")
        if type(step) is int and 0 <= step <= most_steps:
            own_s = seconds if is_positive(seconds) else None
            yield Report(step, own_s, at_s if is_positive(at_s) else None, isinstance(line.get("checkpoint"), str))


def is_positive(number: object) -> bool:
    """Whether something of a report is a number that may be counted with."""
    return type(number) in (int, float) and 0 < number < 1e18  # type: ignore[operator]
