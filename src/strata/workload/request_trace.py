"""Request traces as published: Azure's LLM inference traces and BurstGPT, read line by line.

Azure: TIMESTAMP,ContextTokens,GeneratedTokens, times as dates. BurstGPT: Timestamp,Model,Request tokens,
Response tokens,Total tokens,Log Type (later releases add Session ID and Elapsed time), times in seconds. Columns
are found by name, others are left alone. Neither format quotes anything, so a line is split at its commas, which
reads millions of lines in seconds and knows where each value stands.
"""

from __future__ import annotations

import gzip
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final, NamedTuple

from strata.errors import BadFile, Fault, UsageError
from strata.workload.requests import Request

MAX_FAULTS: Final = 20


def _date_s(text: str) -> float:
    when = datetime.fromisoformat(text)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


class Format(NamedTuple):
    """The columns of a trace and how its times are written."""

    name: str
    time: str
    prompt: str
    output: str
    seconds: Callable[[str], float]
    example: str


FORMATS: Final = (
    Format("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", _date_s, "2023-11-16 18:17:03.9799600"),
    Format("burstgpt", "Timestamp", "Request tokens", "Response tokens", float, "seconds, such as 45.0"),
)


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """A trace that was read once and found good. `num_failed`: its requests that generated nothing; left out."""

    path: str
    format: Format
    num_requests: int
    num_failed: int
    start_s: float
    end_s: float
    prompt_tokens: int
    output_tokens: int

    @property
    def seconds(self) -> float:
        """Time from its first request to its last [s]."""
        return self.end_s - self.start_s

    def requests(self, *, speed: float = 1.0) -> Iterator[Request]:
        """Yield its requests, the first at 0; `speed` 2 lets them come twice as fast."""
        for at_s, prompt_tokens, output_tokens in _rows(self.path, self.format, []):
            if output_tokens:
                yield Request((at_s - self.start_s) / speed, prompt_tokens, output_tokens)


def read_trace(path: str | Path) -> RequestTrace:
    """Read a trace to its end without keeping it; `.gz` too. Raises BadFile with its first faults, UsageError."""
    kind, faults = _format(str(path)), list[Fault]()
    count = failed = prompts = outputs = 0
    start_s = end_s = math.nan
    for at_s, prompt_tokens, output_tokens in _rows(str(path), kind, faults):
        if not output_tokens:
            failed += 1
            continue
        if not count:
            start_s = at_s
        count, end_s = count + 1, at_s
        prompts, outputs = prompts + prompt_tokens, outputs + output_tokens
    if faults:
        raise BadFile(faults)
    if not count:
        raise BadFile([Fault(str(path), "none of its requests generated a token")])
    return RequestTrace(str(path), kind, count, failed, start_s, end_s, prompts, outputs)


@contextmanager
def _opened(path: str) -> Iterator[IO[str]]:
    try:
        opener = gzip.open if path.endswith(".gz") else open
        with opener(path, "rt", encoding="utf-8-sig", newline="") as stream:
            yield stream
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise BadFile([Fault(path, "not UTF-8 text")]) from None
    except (OSError, EOFError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _format(path: str) -> Format:
    with _opened(path) as stream:
        names = stream.readline(10_000).strip().split(",")
    for kind in FORMATS:
        if kind.time in names:
            missing = [name for name in (kind.prompt, kind.output) if name not in names]
            if missing:
                message = f"a trace of {kind.name} needs a column {missing[0]!r}; there are {', '.join(names)}"
                raise BadFile([Fault(path, message, 1, 1)])
            return kind
    known = "; ".join(f"{kind.time},{kind.prompt},{kind.output}" for kind in FORMATS)
    raise BadFile([Fault(path, f"the first line does not name the columns of a known trace ({known})", 1, 1)])


def _rows(path: str, kind: Format, faults: list[Fault]) -> Iterator[tuple[float, int, int]]:
    """Yield time, prompt and output tokens of each line; lines with faults are noted instead, up to a few."""
    with _opened(path) as stream:
        names = stream.readline().strip().split(",")
        time, prompt, output = (names.index(name) for name in (kind.time, kind.prompt, kind.output))
        before_s = -math.inf
        for line in itertools.count(2):
            text = stream.readline()
            if not text or len(faults) >= MAX_FAULTS:
                return
            fields = text.rstrip("\r\n").split(",")
            if len(fields) != len(names):
                message = f"{len(fields)} values where the first line names {len(names)} columns"
                faults.append(Fault(path, message, line, 1))
                continue
            try:
                row = _read(kind, fields[time], fields[prompt], fields[output], after_s=before_s)
            except _WrongValue as error:
                place = 1 + sum(len(field) + 1 for field in fields[: names.index(error.column)])
                faults.append(Fault(path, str(error), line, place, where=error.column))
            else:
                before_s = row[0]
                yield row


class _WrongValue(ValueError):
    """A value that cannot be, and the column it stands in."""

    def __init__(self, column: str, message: str) -> None:
        super().__init__(message)
        self.column = column


def _read(kind: Format, time: str, prompt: str, output: str, *, after_s: float) -> tuple[float, int, int]:
    try:
        at_s = kind.seconds(time)
    except ValueError:
        raise _WrongValue(kind.time, f"{time!r} is not a time ({kind.example})") from None
    if not math.isfinite(at_s):
        raise _WrongValue(kind.time, f"{time!r} is not a time")
    if at_s < after_s:
        raise _WrongValue(kind.time, f"{time} is before the line above; sort the trace by time")
    num_output = _count(kind.output, output, least=0)
    # A request that failed may have nothing of either; one that generated has read at least a token.
    return at_s, _count(kind.prompt, prompt, least=1 if num_output else 0), num_output


def _count(column: str, text: str, *, least: int) -> int:
    with suppress(ValueError):
        if int(text) >= least:
            return int(text)
    raise _WrongValue(column, f"{text!r} is not a number of tokens ({least} or more)")
