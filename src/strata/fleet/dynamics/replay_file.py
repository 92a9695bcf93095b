"""The CSV of a replay: a column `time_s` and one column of factors a link.

Apart from `Replay`, so that a process needs numpy alone.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from strata.errors import BadFile, Fault
from strata.files import read_text
from strata.fleet.dynamics.replay import Replay


def read_replay(path: str | Path, *, links: Sequence[str], linear: bool = False, wrap: bool = False) -> Replay:
    """Read a replay whose columns, put in the order of `links`, are factors over the base value.

    Raises BadFile with every fault and its line: an unknown, missing or repeated column, a row of another
    length, a negative or unreadable factor, a time that does not increase.
    """
    name, faults = str(path), list[Fault]()
    lines = csv.reader(read_text(path).splitlines())
    header = [column.strip() for column in next(lines, [])]
    wanted = ["time_s", *links]
    faults.extend(Fault(name, f"no column {column!r}", 1) for column in wanted if column not in header)
    faults.extend(Fault(name, f"no link is named {column!r}", 1) for column in header if column not in wanted)
    faults.extend(
        Fault(name, f"column {column!r} is given twice", 1)
        for column in sorted(set(header))
        if header.count(column) > 1
    )
    if faults:
        raise BadFile(faults)
    order = [header.index(column) for column in wanted]
    rows: list[list[float]] = []
    for cells in lines:
        if not cells:
            continue
        try:
            rows.append(_row(cells, order, after_s=rows[-1][0] if rows else -math.inf))
        except ValueError as error:
            faults.append(Fault(name, str(error), lines.line_num))
    if not rows and not faults:
        faults.append(Fault(name, "has no rows", 1))
    if faults:
        raise BadFile(faults)
    table = np.array(rows)
    return Replay(table[:, 0], table[:, 1:], linear=linear, wrap=wrap)


def _row(cells: Sequence[str], order: Sequence[int], *, after_s: float) -> list[float]:
    if len(cells) != len(order):
        raise ValueError(f"has {len(cells)} values where the header has {len(order)} columns")
    values = []
    for cell in (cells[index] for index in order):
        try:
            value = float(cell)
        except ValueError:
            raise ValueError(f"{cell!r} is not a number") from None
        if not math.isfinite(value):
            raise ValueError(f"{cell!r} is not a finite number")
        values.append(value)
    if values[0] <= after_s:
        raise ValueError(f"time_s {values[0]:g} does not come after {after_s:g}")
    if min(values[1:], default=0.0) < 0:
        raise ValueError("a factor is negative")
    return values
