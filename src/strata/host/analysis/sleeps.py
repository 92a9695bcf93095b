"""Why threads slept, as far as the scheduler's events say: in which state they left their CPU, and who woke them.

A sleep is from leaving the CPU, not runnable, to the wakeup. Which system call it was is not recorded: a lock, a
queue and the interpreter's lock all are a thread of the same process that wakes this one. A timer or a packet
comes while anybody runs, so that another process, as behind a pipe, is not told apart from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from strata.arrays import Bools, Ints
from strata.host.analysis.run_queue_delays import Cause
from strata.host.analysis.view import TraceView
from strata.host.trace.events import TaskState

Why = Literal["disk", "own_process", "outside", "unknown"]
WHY: Final[dict[Why, str]] = {
    "disk": "blocked in the kernel: a disk, a page fault, a driver",
    "own_process": "until its own process woke it: a lock, a queue",
    "outside": "for a timer, the network or another process",
    "unknown": "until a thread whose process is not known woke it",
}


@dataclass(frozen=True, slots=True)
class Sleeps:
    """How long a thread slept, by why, longest first [ms]; of sleeps that were over when the trace ended."""

    name: str
    tid: int
    ms: dict[Why, float]

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        return {"comm": self.name, "tid": self.tid, "ms": {why: round(ms, 6) for why, ms in self.ms.items()}}

    def __str__(self) -> str:
        total = sum(self.ms.values())
        return f"{self.name} ({self.tid}) slept {total:,.0f} ms: " + ", ".join(
            f"{ms / total:.0%} {WHY[why]}" for why, ms in self.ms.items() if ms >= 0.05 * total
        )


def sleeps_of(view: TraceView, task: int) -> Sleeps:
    """Return why a thread slept."""
    waits = view.waits_by(task)
    woken = waits[view.delays.cause[waits] == Cause.WOKEN]
    runs = np.flatnonzero(view.on_cpu.task == task)
    runs = runs[np.argsort(view.on_cpu.end_ns[runs], kind="stable")]
    ends, until = view.on_cpu.end_ns[runs], view.delays.start_ns[woken]
    before = np.searchsorted(ends, until, side="right") - 1
    woken, until, left = woken[before >= 0], until[before >= 0], runs[before[before >= 0]]
    length: Ints = until - view.on_cpu.end_ns[left]
    waker = view.delays.waker[woken]
    pid = np.append(view.ownership.pid, -1)
    is_known = (waker >= 0) & (pid[waker] >= 0) & (pid[task] >= 0)
    is_disk = _state(view, left) == TaskState.BLOCKED
    is_own = is_known & (pid[waker] == pid[task])
    is_outside = (waker < 0) | (is_known & ~is_own)
    masks: dict[Why, Bools] = {
        "disk": is_disk,
        "own_process": ~is_disk & is_own,
        "outside": ~is_disk & is_outside,
        "unknown": ~is_disk & ~is_own & ~is_outside,
    }
    ms = {why: float(length[mask].sum()) / 1e6 for why, mask in masks.items() if length[mask].any()}
    return Sleeps(view.name(task), int(view.tasks.tid[task]), dict(sorted(ms.items(), key=lambda item: -item[1])))


def _state(view: TraceView, runs: Ints) -> Ints:
    """Return the state in which each run was left: that of the switch which began the next on its CPU."""
    following = np.minimum(runs + 1, len(view.on_cpu) - 1)
    event = view.on_cpu.event[following]
    is_switch = (view.on_cpu.cpu[following] == view.on_cpu.cpu[runs]) & (event >= 0) & (following > runs)
    states: Ints = np.where(is_switch, view.trace.events.arg[event], -1).astype(np.int64)
    return states
