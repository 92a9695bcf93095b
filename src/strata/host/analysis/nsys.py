"""Reports of Nsight Systems beside a trace of the scheduler: `nsys export --type sqlite`, tables of CUPTI.

Times are nanoseconds since the session began, which TARGET_INFO_SESSION_START_TIME says of the epoch. A thread is
64 bits, of which the lowest 24 are its id and the next 24 its process's; correlation numbers are of one process.

References
----------
NVIDIA, Nsight Systems: Post-Collection Analysis Guide, "SQLite Schema Reference" and "Common SQLite Examples".
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np

from strata.arrays import Ints
from strata.errors import UsageError
from strata.host.analysis.accelerator import ProfilerTrace, origin_of

MOST_ROWS: Final = 20_000_000
"""Of a table: an hour of training launches as many kernels; 1 GB of arrays."""
_MAGIC: Final = b"SQLite format 3\0"
_RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_KERNEL: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_BUSY: Final = (_KERNEL, "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
_BEGAN: Final = "TARGET_INFO_SESSION_START_TIME"
_MOST_NS: Final = 4 * 10**18
_ID: Final = (1 << 24) - 1
_EXPORT: Final = "nsys export --type sqlite REPORT.nsys-rep"


def nsys_trace(path: str | Path, *, offset_ns: int = 0) -> ProfilerTrace:
    """Read what `nsys export` wrote. Raises UsageError for any other file, and for one without kernels."""
    try:
        with open(path, "rb") as stream:
            if stream.read(len(_MAGIC)) != _MAGIC:
                raise UsageError(f"{path}: not an SQLite file", hint=_EXPORT)
        # A finished file: nothing is locked, nothing is written beside it.
        with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as rows:
            return _read(path, rows, offset_ns)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        raise UsageError(f"{path}: damaged, or of another form: {error}", hint=_EXPORT) from None


def _read(path: str | Path, rows: sqlite3.Connection, offset_ns: int) -> ProfilerTrace:
    tables = {str(name) for (name,) in rows.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if missing := sorted({_KERNEL, _RUNTIME, _BEGAN} - tables):
        raise UsageError(
            f"{path}: no table {missing[0]}: " + _why(missing[0]),
            hint=f"nsys profile --trace=cuda,nvtx ...; {_EXPORT}",
        )
    base = rows.execute(f"SELECT utcEpochNs FROM {_BEGAN} LIMIT 1").fetchone()
    origin_ns = origin_of(path, int(base[0]) if base else 0, offset_ns)
    launch, thread, launched = _columns(rows, _RUNTIME, ("start", "globalTid", "correlationId"))
    parts = []
    for table in _BUSY:
        if table in tables:
            has_process = any(row[1] == "globalPid" for row in rows.execute(f"PRAGMA table_info({table})"))
            process = "globalPid" if has_process else "0"
            parts.append(_columns(rows, table, ("start", '"end"', "deviceId", "correlationId", process)))
    start, end, device, correlation, process_of = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not len(parts[0][0]):
        raise UsageError(f"{path}: no accelerator kernel ran in this report")
    is_whole = (end >= start) & (start >= 0) & (end < _MOST_NS)  # 0 to 0: CUPTI could not tell
    start, end, device, correlation, process_of = (
        column[is_whole & (end > 0)] for column in (start, end, device, correlation, process_of)
    )
    if not len(start):
        raise UsageError(f"{path}: no kernel in this report has a time")
    key, launch_key = (
        _keys(correlation, process_of),
        _keys(launched, thread & ~np.int64(_ID) if process_of.any() else 0 * thread),
    )
    # Only calls that made something run: a watchdog that asks for the state of a stream launches nothing.
    launch, thread, launch_key = (column[np.isin(launch_key, key)] for column in (launch, thread, launch_key))
    launcher = _launchers(key, launch_key, thread & _ID)
    # Devices are numbered by each process, from 0.
    _, device = np.unique(_keys(device, process_of), return_inverse=True)
    start, end, launch = start + origin_ns, end + origin_ns, launch + origin_ns
    return ProfilerTrace(path, start, end, launcher, device, launch, thread & _ID, np.zeros(0, np.int64))


def _why(table: str) -> str:
    return (
        "CUDA was not traced"
        if table.startswith("CUPTI")
        else "not an export of Nsight Systems, or of an older one"
    )


def _columns(rows: sqlite3.Connection, table: str, names: Sequence[str]) -> list[Ints]:
    (count,) = rows.execute(f"SELECT count(*) FROM {table}").fetchone()
    if count > MOST_ROWS:
        raise ValueError(f"{count:,} rows in {table}, {MOST_ROWS:,} at most")
    data = np.zeros((count, len(names)), np.int64)
    # Absent numbers are null in newer exports, 0 in older ones.
    values = ", ".join(f"ifnull({name}, 0)" for name in names)
    for number, row in enumerate(rows.execute(f"SELECT {values} FROM {table}")):
        data[number] = row
    return list(data.T)


def _keys(number: Ints, process: Ints) -> Ints:
    """Return numbers that are of one process each as numbers of all; both are 32 bits where they say something."""
    return (process >> 24 << 32) ^ (number & 0xFFFFFFFF)


def _launchers(keys: Ints, launch_keys: Ints, threads: Ints) -> Ints:
    """Return the thread that launched each; where none is known that which launched most, 0 without any."""
    if not len(threads):
        return np.zeros(len(keys), np.int64)
    order = np.argsort(launch_keys, kind="stable")
    place = np.searchsorted(launch_keys[order], keys).clip(max=len(order) - 1)
    ids, counts = np.unique(threads, return_counts=True)
    launch = order[place]
    threads_of: Ints = np.where(launch_keys[launch] == keys, threads[launch], ids[counts.argmax()])
    return threads_of
