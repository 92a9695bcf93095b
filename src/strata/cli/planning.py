"""What commands share that make plans or read them: the time limit, plan files, the store of answers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from strata import units
from strata.errors import BadFile, StrataError, UsageError

REMEMBERED: Final = 200
"""Answers kept in the store: some tens of megabytes at most; a serving plan of 1000 nodes is 0.4 MB."""


def time_limit_s(text: str) -> float:
    """Read `--time-limit`, a time with its unit. Raises UsageError."""
    try:
        limit_s = units.parse(text, "time")
    except UsageError as error:
        raise UsageError(f"--time-limit: {error}", hint="--time-limit 30s") from None
    if limit_s < 0:
        raise UsageError(f"--time-limit {text} is negative", hint="30s, or 2min")
    return limit_s


def remember(kind: str, data: dict[str, Any]) -> None:
    """Keep an answer in the decision store, for `strata explain` without a file; planning never fails on it."""
    from strata.history import History, default_path

    try:
        with History(default_path(os.environ), max_rows=REMEMBERED) as history:
            history.add(kind, data, at_s=time.time())
    except StrataError as error:
        click.echo(f"note: the answer was not kept in the history: {error}", err=True)


def read_plan_of(kinds: Sequence[str], path: Path, *, purpose: str, hint: str) -> Any:
    """Read a plan of one of some kinds. Raises UsageError where it is of another, BadFile where it is none."""
    from strata.files import read_document
    from strata.serving.planning.planfile import read_serving_plan
    from strata.training.plan.planfile import read_plan

    words = {"ServingPlan": "serving", "TrainingPlan": "training"}
    readers: dict[str, Callable[[Path], Any]] = {"ServingPlan": read_serving_plan, "TrainingPlan": read_plan}
    first = kinds[0]
    try:
        return readers[first](path)
    except BadFile:
        data = read_document(path).data
        other = str(data.get("kind")) if isinstance(data, dict) else first
        if other not in words or other == first:
            raise
        if other in kinds:
            return readers[other](path)
        raise UsageError(f"{path}: a {words[other]} plan, and {purpose} {words[first]} plans", hint=hint) from None
