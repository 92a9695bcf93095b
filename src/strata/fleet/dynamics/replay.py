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
from strata.names import closest

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


def read_replay(path: str | Path, *, links: Sequence[str], may_end_down: bool = False) -> Replay:
    """Read a trace: a column `time_s` and a column of factors for each link that is not always at its base value.

    links: the names of the columns ("A>B"), in the order of the factors. Raises BadFile with every fault and its
    place: an unknown, missing or repeated column, a row of another length, a negative or unreadable factor, a
    time that does not increase, a link that stays at 0 for ever (unless `may_end_down`: the trace ends there).
    """
    name, faults = str(path), list[Fault]()
    lines = csv.reader(read_text(path).splitlines())
    cells = next(lines, [])
    header = [column.strip() for column in cells]
    if "time_s" not in header:
        faults.append(Fault(name, "no column 'time_s'", 1, 1))
    for number, column in enumerate(header):
        place = _column(cells, number)
        if column not in ("time_s", *links):
            near = closest(column, links)
            hint = f"; did you mean {near!r}?" if near else f" (such as {links[0]!r})" if links else ""
            faults.append(Fault(name, f"no link is named {column!r}{hint}", 1, place))
        if column in header[:number]:
            faults.append(Fault(name, f"column {column!r} is given twice", 1, place))
    times, rows = list[float](), list[dict[str, float]]()
    for cells in lines:
        if cells:
            row = _row(header, cells, name, lines.line_num, faults)
            time_s = row.get("time_s", math.inf)
            if times and time_s <= times[-1]:
                place = _column(cells, header.index("time_s"))
                message = f"time_s {time_s:g} does not come after {times[-1]:g}"
                faults.append(Fault(name, message, lines.line_num, place))
            elif math.isfinite(time_s):
                times.append(time_s)
            rows.append(row)
    if not rows:
        faults.append(Fault(name, "has no rows", 1, 1))
    # The last row holds for ever: a step that sends over such a link would never end.
    for link in links if rows and not may_end_down else ():
        if rows[-1].get(link) == 0:
            message = f"the last factor of {link} is 0: it would stay down for ever"
            faults.append(Fault(name, message, lines.line_num, _column(cells, header.index(link))))
    if faults:
        raise BadFile(faults)
    return Replay(np.array(times), np.array([[row.get(link, 1.0) for link in links] for row in rows]))


def _row(
    header: Sequence[str], cells: Sequence[str], name: str, line: int, faults: list[Fault]
) -> dict[str, float]:
    """Return the figures of a row that can be used; what is wrong with the others is added to `faults`."""
    if len(cells) != len(header):
        message = f"has {len(cells)} values where the header has {len(header)} columns"
        faults.append(Fault(name, message, line, 1))
        return {}
    row = {}
    for number, (column, cell) in enumerate(zip(header, cells, strict=True)):
        message = ""
        try:
            value = float(cell)
        except ValueError:
            message = f"{cell!r} is not a number"
        else:
            if not math.isfinite(value):
                message = f"{cell!r} is not a finite number"
            elif value < 0 and column != "time_s":
                message = f"factor {value:g} is negative"
            else:
                row[column] = value
        if message:
            faults.append(Fault(name, message, line, _column(cells, number)))
    return row


def _column(cells: Sequence[str], number: int) -> int:
    """Return where a cell begins in its line, from 1; quotes aside."""
    return 1 + sum(len(cell) + 1 for cell in cells[:number])
