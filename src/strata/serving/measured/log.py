"""Logs of requests to one pipeline: when each came, its tokens, and how long it took.

Two forms: what `vllm bench serve --save-result --save-detailed` writes (benchmarks/serve.py: `DETAILS`), and a CSV
with the columns of `COLUMNS`, times in seconds.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from strata.arrays import Floats
from strata.errors import BadFile, Fault, UsageError
from strata.files import read_text, write_text
from strata.workload.requests import Request

COLUMNS: Final = ("at_s", "prompt_tokens", "output_tokens", "ttft_s", "latency_s")
DETAILS: Final = ("errors", "start_times", "input_lens", "output_lens", "ttfts", "itls")
LEAST: Final = 20
"""Requests of a log: half of them are fitted to, four figures."""
MAX_FAULTS: Final = 20


@dataclass(frozen=True, slots=True)
class Log:
    """Requests in the order of their coming, the first at 0, and what they took [N]."""

    requests: tuple[Request, ...]
    ttft_s: Floats
    latency_s: Floats

    @property
    def output_tokens(self) -> Floats:
        """Tokens that each generated."""
        return np.array([request.output_tokens for request in self.requests], dtype=float)

    @classmethod
    def of(cls, rows: Iterable[tuple[float, ...]]) -> Log:
        """Return the log of rows in the order of `COLUMNS`."""
        table = sorted(rows)
        first_s = table[0][0] if table else 0.0
        requests = tuple(Request(row[0] - first_s, int(row[1]), int(row[2])) for row in table)
        return cls(requests, *np.array([row[3:5] for row in table], dtype=float).reshape(-1, 2).T)


def read_log(path: str) -> Log:
    """Read a log. Raises BadFile with its first faults, UsageError where there is no such file."""
    text = read_text(Path(path))
    rows, faults = list[tuple[float, ...]](), list[Fault]()
    is_vllm = text.lstrip().startswith("{")
    for line, row in _of_vllm(path, text) if is_vllm else _of_csv(path, text):
        if len(faults) >= MAX_FAULTS:
            break
        if wrong := _fault(row):
            where = f"request {line}: " if is_vllm else ""
            faults.append(Fault(path, f"{where}{wrong}", *(() if is_vllm else (line, 1))))
        else:
            rows.append(row)
    if faults:
        raise BadFile(faults)
    return check(path, Log.of(rows))


def check(source: str, log: Log) -> Log:
    """Return a log that is long enough to fit to. Raises UsageError for a shorter one."""
    if len(log.requests) < LEAST:
        text = f"{source}: {len(log.requests)} requests are too few to fit to"
        raise UsageError(text, hint=f"{LEAST} or more")
    return log


def write_log(path: Path, log: Log) -> None:
    """Write a log as `read_log` reads it."""
    lines = [",".join(COLUMNS)]
    for request, ttft_s, latency_s in zip(log.requests, log.ttft_s, log.latency_s, strict=True):
        lines.append(
            f"{request.at_s:.6f},{request.prompt_tokens},{request.output_tokens},{ttft_s:.6f},{latency_s:.6f}"
        )
    write_text(path, "\n".join(lines) + "\n")


def _of_csv(path: str, text: str) -> Iterable[tuple[int, tuple[float, ...]]]:
    reader = csv.reader(io.StringIO(text))
    names = next(reader, [])
    if missing := [name for name in COLUMNS if name not in names]:
        known = f"a CSV with {','.join(COLUMNS)}, or what `vllm bench serve --save-result --save-detailed` writes"
        raise BadFile([Fault(path, f"no column {missing[0]!r} in the first line; a log is {known}", 1, 1)])
    places = [names.index(name) for name in COLUMNS]
    for row in reader:
        if row:
            yield reader.line_num, tuple(_number(row[i]) if i < len(row) else math.nan for i in places)


def _of_vllm(path: str, text: str) -> Iterable[tuple[int, tuple[float, ...]]]:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadFile([Fault(path, f"not JSON: {error.msg}", error.lineno, error.colno)]) from None
    columns = [data.get(name) for name in DETAILS]
    for name, column in zip(DETAILS, columns, strict=True):
        if not isinstance(column, list) or len(column) != len(columns[0] or []):
            raise BadFile([Fault(path, f"no list {name!r} with a value a request; --save-detailed writes it")])
    for number, (fault, at_s, prompt, output, ttft_s, itl_s) in enumerate(zip(*columns, strict=True)):
        if not fault:
            gaps = [_number(gap) for gap in itl_s] if isinstance(itl_s, list) else [math.nan]
            numbers = [_number(value) for value in (at_s, prompt, output, ttft_s)]
            yield number, (*numbers, numbers[3] + sum(gaps))


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _fault(row: Sequence[float]) -> str:
    """Return what is wrong with a row, nothing where it is a request."""
    for name, value in zip(COLUMNS, row, strict=True):
        least = 1 if name.endswith("tokens") else 0
        if not least <= value < math.inf:
            return f"{name} is {value:g}, not a number from {least} on"
        if least and value != int(value):
            return f"{name} is {value:g}, not a whole number"
    return "" if row[3] <= row[4] else f"the first token comes after {row[3]:g} s, and the last after {row[4]:g} s"
