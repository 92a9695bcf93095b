"""What accelerators did, joined from the traces of their profilers, one of each rank: gaps, and who ended them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from strata.arrays import Ints
from strata.errors import UsageError
from strata.host.analysis.intervals import union
from strata.host.trace.events import Trace

_MOST_ORIGIN_NS: Final = 5 * 10**18
"""A time and what it counts from add up to a 64-bit number of nanoseconds; both last until the year 2096."""


@dataclass(frozen=True, slots=True)
class ProfilerTrace:
    """What a profiler saw in one file [ns, the scheduler's clock].

    `busy_*`: what ran on devices, by any order, each launched by `busy_tid`; `launch_*`: when launches began, and
    whose; a thread is 0 where it is not known. `step_ns`: how long steps took, where they are marked.
    """

    path: str | Path
    busy_start_ns: Ints
    busy_end_ns: Ints
    busy_tid: Ints
    busy_device: Ints
    launch_ns: Ints
    launch_tid: Ints
    step_ns: Ints


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


def activity_of(profiles: Sequence[ProfilerTrace], trace: Trace) -> AcceleratorActivity:
    """Join the traces of all ranks. Raises UsageError for one that is not of the scheduler's time."""
    devices: list[tuple[Ints, Ints, Ints]] = []
    for profile in profiles:
        _check_time(profile, trace)
        devices += _devices(profile)
    start, length = union(*(np.concatenate([event[i] for event in devices]) for i in (0, 1)))
    launch_tid = np.concatenate([profile.launch_tid for profile in profiles])
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
        np.concatenate([profile.step_ns for profile in profiles]),
        ids,
        np.concatenate([profile.launch_ns for profile in profiles]),
        launch_tid,
    )


def origin_of(path: str | Path, base_ns: int, offset_ns: int) -> int:
    """Return what a file's times count from, on the scheduler's clock [ns]. Raises UsageError beyond all sense."""
    origin_ns = base_ns - offset_ns
    if abs(origin_ns) > _MOST_ORIGIN_NS:
        raise UsageError(f"{path}: its clock is {origin_ns / 1e9:.3g} s away from the scheduler's trace")
    return origin_ns


def _check_time(profile: ProfilerTrace, trace: Trace) -> None:
    first, last = profile.busy_start_ns.min(), profile.busy_end_ns.max()
    if first > trace.end_ns or last < trace.start_ns:
        raise UsageError(
            f"{profile.path}: its kernels ran from {first / 1e9:.3f} s, the scheduler's trace is from "
            f"{trace.start_ns / 1e9:.3f} to {trace.end_ns / 1e9:.3f} s: from another time or another clock",
            hint="--kineto-offset SECONDS (how far the profiler's clock is ahead), or --here on that machine",
        )


def _devices(profile: ProfilerTrace) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield of each device starts, ends and launching threads of what it ran, by start."""
    order = np.argsort(profile.busy_start_ns, kind="stable")
    for number in np.unique(profile.busy_device):
        of_device = order[profile.busy_device[order] == number]
        yield profile.busy_start_ns[of_device], profile.busy_end_ns[of_device], profile.busy_tid[of_device]


def _gaps(device: tuple[Ints, Ints, Ints]) -> tuple[Ints, Ints, Ints]:
    start, end, tid = device
    until = np.maximum.accumulate(end)[:-1]
    is_gap = start[1:] > until
    return until[is_gap], start[1:][is_gap], tid[1:][is_gap]
