"""A Kineto trace (PyTorch's profiler) beside a trace of the scheduler: when the accelerator ran, who launched it.

Kineto's times are microseconds after `baseTimeNanoseconds`, and the epoch's; perf's and tracefs's are the boot's.
The offset between the two is what CLOCK_REALTIME is ahead of CLOCK_MONOTONIC on that machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from strata.errors import UsageError
from strata.files import read_json
from strata.host.spans import union
from strata.host.trace.events import Ints, Trace

MAX_BYTES: Final = 2**30
_BUSY: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_MOST_US: Final = 9e15
"""In nanoseconds still a 64-bit number."""
_LAUNCH: Final = ("cuda_runtime", "cuda_driver")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """What accelerators did [ns, the trace's clock]: when any kernel ran, and when each step did.

    `busy_start_ns` and `busy_ns` are stretches of all devices together, which do not overlap; `launchers` are the
    threads that launched, most launches first; `launch_ns` is when each launch began.
    """

    busy_start_ns: Ints
    busy_ns: Ints
    step_start_ns: Ints
    step_ns: Ints
    launchers: tuple[int, ...]
    launch_ns: Ints

    def idle(self) -> tuple[Ints, Ints]:
        """Return when nothing ran between the first kernel and the last: starts and ends."""
        ends = self.busy_start_ns + self.busy_ns
        return ends[:-1], self.busy_start_ns[1:]


def read_kineto(path: str | Path, trace: Trace, *, offset_ns: int = 0) -> Accelerator:
    """Read a Kineto trace whose clock is `offset_ns` ahead of the scheduler's trace.

    Raises BadFile or UsageError, also where the two are not of one time.
    """
    data = read_json(path, max_bytes=MAX_BYTES)
    events = data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(events, list):
        raise UsageError(f"{path}: no Kineto trace: it has no list traceEvents")
    base = data.get("baseTimeNanoseconds", 0)
    spans = [one for one in events if isinstance(one, Mapping) and one.get("ph") == "X" and _is_span(one)]
    busy = [one for one in spans if one.get("cat") in _BUSY]
    if not busy:
        raise UsageError(
            f"{path}: no kernel ran in this trace",
            hint="profile with ProfilerActivity.CUDA and ProfilerActivity.CPU",
        )
    origin = (int(base) if isinstance(base, int) else 0) - offset_ns
    start, end = _times(busy, origin)
    begin, length = union(start, end)
    if begin[0] > trace.end_ns or begin[-1] + length[-1] < trace.start_ns:
        raise UsageError(
            f"{path}: its kernels ran from {begin[0] / 1e9:.3f} s, the scheduler's trace is from "
            f"{trace.start_ns / 1e9:.3f} to {trace.end_ns / 1e9:.3f} s: not of one time, or not of one clock",
            hint="--kineto-offset SECONDS (how far the profiler's clock is ahead), or --here where it was made",
        )
    steps = [one for one in spans if str(one.get("name", "")).startswith("ProfilerStep")]
    first, last = _times([one for one in steps if one.get("cat") != "gpu_user_annotation"], origin)
    launches = [one for one in spans if one.get("cat") in _LAUNCH]
    # Some versions name a launching thread by its pthread_t; then its process has to do.
    ids = [*_most_common(one.get("tid") for one in launches), *_most_common(one.get("pid") for one in launches)]
    return Accelerator(begin, length, first, last - first, tuple(dict.fromkeys(ids)), _times(launches, origin)[0])


def _most_common(ids: Iterable[Any]) -> list[int]:
    counted = Counter(one for one in ids if isinstance(one, int) and 0 < one < 2**31)
    return [one for one, _ in counted.most_common()]


def _is_span(event: Mapping[str, Any]) -> bool:
    return all(isinstance(event.get(key), (int, float)) and abs(event[key]) < _MOST_US for key in ("ts", "dur"))


def _times(events: Sequence[Mapping[str, Any]], origin_ns: int) -> tuple[Ints, Ints]:
    """Return starts and ends [ns]; in microseconds of the epoch a double keeps half of one."""
    start: NDArray[np.float64] = np.array([one["ts"] for one in events], np.float64)
    length = np.array([one["dur"] for one in events], np.float64)
    begin = np.round(start * 1e3).astype(np.int64) + origin_ns
    return begin, begin + np.round(length * 1e3).astype(np.int64)
