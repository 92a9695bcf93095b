"""Kineto traces (PyTorch's profiler) beside one of the scheduler: when accelerators ran, and who launched what.

Kineto's times are microseconds after `baseTimeNanoseconds`, and the epoch's; perf's and tracefs's are the boot's.
The offset between the two is what CLOCK_REALTIME is ahead of CLOCK_MONOTONIC on that machine.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from strata.arrays import Floats, Ints
from strata.errors import UsageError
from strata.files import read_json
from strata.host.analysis.accelerator import ProfilerTrace, origin_of

MAX_BYTES: Final = 2**30
_BUSY: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_MOST_US: Final = 4e15
_LAUNCH: Final = ("cuda_runtime", "cuda_driver")
Event = Mapping[str, Any]


def kineto_trace(path: str | Path, *, offset_ns: int = 0) -> ProfilerTrace:
    """Read a rank's trace, whose clock is `offset_ns` ahead of the scheduler's. Raises BadFile or UsageError."""
    events, origin = _spans(path, offset_ns)
    launches = [event for event in events if event.get("cat") in _LAUNCH]
    busy = [record for record in events if record.get("cat") in _BUSY]
    if not busy:
        raise UsageError(
            f"{path}: no accelerator kernel ran in this trace",
            hint="profile with ProfilerActivity.CUDA and ProfilerActivity.CPU",
        )
    threads = [_thread(record) for record in launches]
    busiest = Counter(threads).most_common(1)[0][0] if threads else 0
    by_correlation = {
        _argument(record, "correlation"): thread for record, thread in zip(launches, threads, strict=True)
    }
    by_correlation[None] = busiest
    # The same step is there again as `gpu_user_annotation`, from its first kernel to its last.
    marks = [event for event in events if str(event.get("name", "")).startswith("ProfilerStep")]
    begin, end = _times([event for event in marks if event.get("cat") != "gpu_user_annotation"], origin)
    return ProfilerTrace(
        path,
        *_times(busy, origin),
        np.array([by_correlation.get(_argument(record, "correlation"), busiest) for record in busy], np.int64),
        np.array([_id(_argument(record, "device")) or _id(record.get("pid")) for record in busy], np.int64),
        _times(launches, origin)[0],
        np.array(threads, np.int64),
        end - begin,
    )


def _spans(path: str | Path, offset_ns: int) -> tuple[list[Event], int]:
    """Return the events of a file that have a length, and what their microseconds count from [ns, our clock]."""
    data = _json(path)
    events = data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(events, list):
        raise UsageError(f"{path}: not a Kineto trace: it has no list traceEvents")
    base = data.get("baseTimeNanoseconds", 0)
    origin_ns = origin_of(path, base if isinstance(base, int) else 0, offset_ns)
    spans = [
        record for record in events if isinstance(record, Mapping) and record.get("ph") == "X" and _is_span(record)
    ]
    return spans, origin_ns


def _json(path: str | Path) -> Any:
    if Path(path).suffix != ".gz":
        return read_json(path, max_bytes=MAX_BYTES)
    try:
        with gzip.open(path) as stream:
            raw = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise UsageError(f"{path}: larger than {MAX_BYTES / 1e9:.1f} GB uncompressed")
        return json.loads(raw)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON, or damaged: {error}") from None


def _thread(launch: Event) -> int:
    """Return who launched; its process where a version names it by its pthread_t, 0 where neither is known."""
    return _id(launch.get("tid")) or _id(launch.get("pid"))


def _id(value: Any) -> int:
    return value if isinstance(value, int) and 0 < value < 2**31 else 0


def _argument(event: Event, name: str) -> Any:
    arguments = event.get("args")
    value = arguments.get(name) if isinstance(arguments, Mapping) else None
    return value if isinstance(value, int) else None


def _is_span(event: Event) -> bool:
    return all(isinstance(event.get(key), (int, float)) and abs(event[key]) < _MOST_US for key in ("ts", "dur"))


def _times(events: Sequence[Event], origin_ns: int) -> tuple[Ints, Ints]:
    """Return starts and ends [ns]; in microseconds of the epoch a double keeps half of one."""
    start: Floats = np.array([record["ts"] for record in events], np.float64)
    length = np.array([record["dur"] for record in events], np.float64)
    begin = np.round(start * 1e3).astype(np.int64) + origin_ns
    return begin, begin + np.round(length * 1e3).astype(np.int64)
