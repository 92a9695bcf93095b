"""Reports of Nsight Systems beside a trace of the scheduler: `nsys export --type sqlite`, tables of CUPTI.

Times are nanoseconds since the session began, which TARGET_INFO_SESSION_START_TIME says of the epoch, or of the
epoch themselves (`--ts-normalize`). A thread is 64 bits, of which the lowest 24 are its id and the next 24 its
process's; correlation numbers and those of devices are of one process. Tables are there where they have rows. A
CUDA graph is one row from its start to its end, unless its nodes were traced (`--cuda-graph-trace=node`).

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
_GRAPH: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_BUSY: Final = (_KERNEL, _GRAPH, "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
_DEVICES: Final = "TARGET_INFO_CUDA_DEVICE"
_BEGAN: Final = "TARGET_INFO_SESSION_START_TIME"
_MOST_NS: Final = 4 * 10**18
_LONGEST_NS: Final = 10**17
"""Of a session, three years: larger times are of the epoch."""
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
    needed = {_KERNEL, _RUNTIME, _BEGAN} if _GRAPH not in tables else {_RUNTIME, _BEGAN}
    if missing := sorted(needed - tables):
        raise UsageError(
            f"{path}: no table {missing[0]}: " + _why(missing[0]),
            hint=f"nsys profile --trace=cuda,nvtx ...; {_EXPORT}",
        )
    launch, thread, launched = _columns(rows, _RUNTIME, ("start", "globalTid", "correlationId"))
    parts = {}
    for table in _BUSY:
        if table in tables:
            process = "globalPid" if "globalPid" in _names(rows, table) else "0"
            parts[table] = _columns(rows, table, ("start", '"end"', "deviceId", "correlationId", process))
    if not any(len(parts[table][0]) for table in (_KERNEL, _GRAPH) if table in parts):
        raise UsageError(f"{path}: no accelerator kernel ran in this report")
    start, end, device, correlation, process_of = (
        np.concatenate(column) for column in zip(*parts.values(), strict=True)
    )
    is_whole = (end >= start) & (start >= 0) & (end < _MOST_NS)  # 0 to 0: CUPTI could not tell
    start, end, device, correlation, process_of = (
        column[is_whole & (end > 0)] for column in (start, end, device, correlation, process_of)
    )
    if not len(start):
        raise UsageError(f"{path}: no kernel in this report has a time")
    base = rows.execute(f"SELECT utcEpochNs FROM {_BEGAN} LIMIT 1").fetchone()
    base_ns = int(base[0] or 0) if base else 0
    origin_ns = origin_of(path, base_ns if start.min() < _LONGEST_NS else 0, offset_ns)
    key, launch_key = (
        _keys(correlation, process_of),
        _keys(launched, thread & ~np.int64(_ID) if process_of.any() else 0 * thread),
    )
    # Only calls that made something run: a watchdog that asks for the state of a stream launches nothing.
    launch, thread, launch_key = (column[np.isin(launch_key, key)] for column in (launch, thread, launch_key))
    launcher = _launchers(key, launch_key, thread & _ID)
    device = _devices(rows, tables, device, process_of)
    start, end, launch = start + origin_ns, end + origin_ns, launch + origin_ns
    return ProfilerTrace(path, start, end, launcher, device, launch, thread & _ID, np.zeros(0, np.int64))


def _names(rows: sqlite3.Connection, table: str) -> set[str]:
    return {str(row[1]) for row in rows.execute(f"PRAGMA table_info({table})")}


def _devices(rows: sqlite3.Connection, tables: set[str], device: Ints, process: Ints) -> Ints:
    """Return the GPU of each row: each process numbers its own from 0, and two may share one."""
    keys, place = np.unique(_keys(device, process), return_inverse=True)
    if _DEVICES not in tables or not {"gpuId", "cudaId", "pid"} <= _names(rows, _DEVICES):
        return np.asarray(place, np.int64)
    gpu, number, pid = _columns(rows, _DEVICES, ("gpuId", "cudaId", "pid"))
    gpu_of = dict(zip(_keys(number, pid << 24).tolist(), gpu.tolist(), strict=True))
    low = (1 << 56) - 1  # of a process's number: its machine is not in the table
    names = [gpu_of.get(key & low, -1 - index) for index, key in enumerate(keys.tolist())]
    return np.array(names, np.int64)[place]


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
