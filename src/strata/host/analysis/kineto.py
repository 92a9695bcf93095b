"""Kineto traces (PyTorch's profiler) beside one of the scheduler: when accelerators ran, and who launched what.

Kineto's times are microseconds after `baseTimeNanoseconds`, and the epoch's; perf's and tracefs's are the boot's.
The offset between the two is what CLOCK_REALTIME is ahead of CLOCK_MONOTONIC on that machine.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from strata.arrays import Floats, Ints
from strata.errors import UsageError
from strata.files import read_json
from strata.host.analysis.intervals import union
from strata.host.trace.events import Trace

MAX_BYTES: Final = 2**30
_BUSY: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_MOST_US: Final = 4e15
_MOST_ORIGIN_NS: Final = 5 * 10**18
"""A time and what it counts from add up to a 64-bit number of nanoseconds; both last until the year 2096."""
_LAUNCH: Final = ("cuda_runtime", "cuda_driver")
Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AcceleratorActivity:
    """What accelerators did [ns, the trace's clock].

    `busy_*`: stretches, apart, in which any of them ran something. `idle_*`: each one's gaps between its kernels,
    whose they are (a number), and the thread that launched what ended the gap. `wall_ns`: from each one's first
    kernel to its last, all added up. `launchers`: the threads that launched, most launches first; `launch_*`: when
    each launch began, and whose.
    """

    busy_start_ns: Ints
    busy_ns: Ints
    idle_start_ns: Ints
    idle_end_ns: Ints
    idle_tid: Ints
    idle_device: Ints
    wall_ns: int
    step_ns: Ints
    launchers: tuple[int, ...]
    launch_ns: Ints
    launch_tid: Ints


def read_kineto(paths: Sequence[str | Path], trace: Trace, *, offset_ns: int = 0) -> AcceleratorActivity:
    """Read Kineto traces, one of each rank, whose clock is `offset_ns` ahead of the scheduler's trace.

    Raises BadFile or UsageError, also where they are not of one time.
    """
    devices: list[tuple[Ints, Ints, Ints]] = []
    launched: list[tuple[Ints, Ints]] = []
    steps: list[Ints] = []
    for path in paths:
        events, origin = _spans(path, offset_ns)
        launches = [event for event in events if event.get("cat") in _LAUNCH]
        devices += _devices(events, origin, launches, path, trace)
        launched.append((_times(launches, origin)[0], np.array([_thread(event) for event in launches], np.int64)))
        # The same step is there again as `gpu_user_annotation`, from its first kernel to its last.
        marks = [event for event in events if str(event.get("name", "")).startswith("ProfilerStep")]
        begin, end = _times([event for event in marks if event.get("cat") != "gpu_user_annotation"], origin)
        steps.append(end - begin)
    start, length = union(*(np.concatenate([event[i] for event in devices]) for i in (0, 1)))
    launch_ns, launch_tid = (np.concatenate(column) for column in zip(*launched, strict=True))
    gaps = [_gaps(device) for device in devices]
    gap_start, gap_end, gap_tid = (np.concatenate(column) for column in zip(*gaps, strict=True))
    # Only what both traces saw.
    ends = [(max(int(a.min()), trace.start_ns), min(int(b.max()), trace.end_ns)) for a, b, _ in devices]
    ids = tuple(tid for tid, _ in Counter(launch_tid.tolist()).most_common() if tid)
    return AcceleratorActivity(
        start,
        length,
        gap_start,
        gap_end,
        gap_tid,
        np.repeat(np.arange(len(gaps)), [len(start) for start, _, _ in gaps]),
        sum(max(last - first, 0) for first, last in ends),
        np.concatenate(steps),
        ids,
        launch_ns,
        launch_tid,
    )


def _spans(path: str | Path, offset_ns: int) -> tuple[list[Event], int]:
    """Return the events of a file that have a length, and what their microseconds count from [ns, our clock]."""
    data = _json(path)
    events = data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(events, list):
        raise UsageError(f"{path}: not a Kineto trace: it has no list traceEvents")
    base = data.get("baseTimeNanoseconds", 0)
    origin_ns = (base if isinstance(base, int) else 0) - offset_ns
    if abs(origin_ns) > _MOST_ORIGIN_NS:
        raise UsageError(f"{path}: its clock is {origin_ns / 1e9:.3g} s away from the scheduler's trace")
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


def _devices(
    events: Sequence[Event], origin_ns: int, launches: Sequence[Event], path: str | Path, trace: Trace
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield of each device starts, ends and launching threads of what it ran, by start."""
    busy = [record for record in events if record.get("cat") in _BUSY]
    if not busy:
        raise UsageError(
            f"{path}: no accelerator kernel ran in this trace",
            hint="profile with ProfilerActivity.CUDA and ProfilerActivity.CPU",
        )
    start, end = _times(busy, origin_ns)
    if start.min() > trace.end_ns or end.max() < trace.start_ns:
        raise UsageError(
            f"{path}: its kernels ran from {start.min() / 1e9:.3f} s, the scheduler's trace is from "
            f"{trace.start_ns / 1e9:.3f} to {trace.end_ns / 1e9:.3f} s: from another time or another clock",
            hint="--kineto-offset SECONDS (how far the profiler's clock is ahead), or --here on that machine",
        )
    threads = [_thread(record) for record in launches]
    busiest = Counter(threads).most_common(1)[0][0] if threads else 0
    by_correlation = {
        _argument(record, "correlation"): thread for record, thread in zip(launches, threads, strict=True)
    }
    by_correlation[None] = busiest
    tid = np.array([by_correlation.get(_argument(record, "correlation"), busiest) for record in busy], np.int64)
    device = np.array([_id(_argument(record, "device")) or _id(record.get("pid")) for record in busy], np.int64)
    order = np.argsort(start, kind="stable")
    for number in np.unique(device):
        of_device = order[device[order] == number]
        yield start[of_device], end[of_device], tid[of_device]


def _gaps(device: tuple[Ints, Ints, Ints]) -> tuple[Ints, Ints, Ints]:
    start, end, tid = device
    until = np.maximum.accumulate(end)[:-1]
    is_gap = start[1:] > until
    return until[is_gap], start[1:][is_gap], tid[1:][is_gap]


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
