"""What commands share that make plans: the store of answers."""

from __future__ import annotations

import os
import time
from typing import Any, Final

import click

from strata.errors import StrataError

REMEMBERED: Final = 200
"""Answers kept in the store: some tens of megabytes at most; a serving plan of 1000 nodes is 0.4 MB."""


def remember(kind: str, data: dict[str, Any]) -> None:
    """Keep an answer in the decision store, for `strata explain` without a file; planning never fails on it."""
    from strata.history import History, default_path

    try:
        with History(default_path(os.environ), max_rows=REMEMBERED) as history:
            history.add(kind, data, at_s=time.time())
    except StrataError as error:
        click.echo(f"note: the answer was not kept in the history: {error}", err=True)
