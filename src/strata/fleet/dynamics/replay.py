"""Replay: factors that were measured, played back from a CSV."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from strata.arrays import Floats
from strata.errors import BadFile, Fault
from strata.files import read_text
from strata.fleet.dynamics.process import Shape

_SLACK_S = 1e-6
"""A clock summed from steps of 0.1 s stands a hair before the row it means; a microsecond forgives that."""


@dataclass(frozen=True, eq=False, slots=True)
class Replay:
    """Factors at given times: a row holds until the next, the last one for ever. The state is the time [s].

    times_s: [T], strictly increasing; every environment starts at the first. factors: [T, L].
    """

    times_s: Floats
    factors: Floats

    def reset(self, rng: np.random.Generator, shape: Shape) -> Floats:
        """Start at the first row."""
        assert shape[-1] == self.factors.shape[1], "one column a link"
        return np.full(shape, float(self.times_s[0]))

    def step(self, state: Floats, dt_s: float | Floats, rng: np.random.Generator) -> Floats:
        """Move the clocks on."""
        return np.asarray(state + dt_s)

    def factor(self, state: Floats) -> Floats:
        """Look the factors up, [..., L]."""
        row = np.searchsorted(self.times_s, state + _SLACK_S, side="right") - 1
        return np.asarray(self.factors[row, np.arange(self.factors.shape[1])])


def read_replay(path: str | Path, *, links: Sequence[str]) -> Replay:
    """Read a trace: a column `time_s` and a column of factors for each link that is not always at its base value.

    links: the names of the columns ("A>B"), in the order of the factors. Raises BadFile with every fault and its
    line: an unknown, missing or repeated column, a row of another length, a negative or unreadable factor, a
    time that does not increase, a link that stays at 0 for ever.
    """
    name, faults = str(path), list[Fault]()
    lines = csv.reader(read_text(path).splitlines())
    header = [column.strip() for column in next(lines, [])]
    if "time_s" not in header:
        faults.append(Fault(name, "no column 'time_s'", 1))
    unknown = (column for column in header if column not in ("time_s", *links))
    faults.extend(Fault(name, f"no link is named {column!r} (a link is A>B)", 1) for column in unknown)
    twice = (column for column in sorted(set(header)) if header.count(column) > 1)
    faults.extend(Fault(name, f"column {column!r} is given twice", 1) for column in twice)
    if faults:
        raise BadFile(faults)
    rows: list[dict[str, float]] = []
    for cells in lines:
        if not cells:
            continue
        try:
            rows.append(_row(header, cells, after_s=rows[-1]["time_s"] if rows else -math.inf))
        except ValueError as error:
            faults.append(Fault(name, str(error), lines.line_num))
    if not rows and not faults:
        faults.append(Fault(name, "has no rows", 1))
    # The last row holds for ever: a step that sends over such a link would never end.
    dead = [link for link in links if rows and rows[-1].get(link) == 0]
    faults.extend(
        Fault(name, f"the last factor of {link} is 0: it would stay down for ever", lines.line_num)
        for link in dead
    )
    if faults:
        raise BadFile(faults)
    factors = np.array([[row.get(link, 1.0) for link in links] for row in rows])
    return Replay(np.array([row["time_s"] for row in rows]), factors)


def _row(header: Sequence[str], cells: Sequence[str], *, after_s: float) -> dict[str, float]:
    if len(cells) != len(header):
        raise ValueError(f"has {len(cells)} values where the header has {len(header)} columns")
    row = {}
    for column, cell in zip(header, cells, strict=True):
        try:
            row[column] = float(cell)
        except ValueError:
            raise ValueError(f"{cell!r} is not a number") from None
        if not math.isfinite(row[column]):
            raise ValueError(f"{cell!r} is not a finite number")
        if row[column] < 0 and column != "time_s":
            raise ValueError("a factor is negative")
    if row["time_s"] <= after_s:
        raise ValueError(f"time_s {row['time_s']:g} does not come after {after_s:g}")
    return row
