"""Why threads slept: in which state they left their CPU, who woke them, and in which calls they were found.

A sleep is from leaving the CPU, not runnable, to the wakeup. Events do not say in which system call: a lock, a
queue and the interpreter's lock all are a thread of the same process that wakes this one. A timer or a packet
comes while anybody runs, so that another process, as behind a pipe, is not told apart. Where the recorder looked
in which calls threads were asleep (`record.sleep_sampler`), their shares are those of the time asleep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from strata.arrays import Bools, Ints
from strata.host.analysis.run_queue_delays import Cause
from strata.host.analysis.view import TraceView
from strata.host.threads.sleep_calls import WORDS, SleepCall
from strata.host.trace.events import TaskState

Why = Literal["disk", "own_process", "outside", "unknown"]
WHY: Final[dict[Why, str]] = {
    "disk": "blocked in the kernel: a disk, a page fault, a driver",
    "own_process": "until its own process woke it: a lock, a queue",
    "outside": "for a timer, the network or another process",
    "unknown": "until a thread whose process is not known woke it",
}
SHOWN: Final = 0.05
"""Of the time asleep: what is less is not told to people."""
MOST_WAKERS: Final = 5


class Holder(NamedTuple):
    """A thread that had the interpreter: in which share of the looks, and in which function most."""

    comm: str
    tid: int
    share: float
    where: str


@dataclass(frozen=True, slots=True)
class Sleeps:
    """How long a thread slept, by why, longest first [ms]; of sleeps that were over when the trace ended.

    wakers: threads of its own process that woke it, those for which it slept longest [ms]. num_samples: how often
    it was found asleep; calls: in which call, as shares of these, largest first. holders: who had its interpreter
    how often, of all looks that found it with another thread, and where most.
    """

    name: str
    tid: int
    ms: dict[Why, float]
    wakers: tuple[tuple[str, int, float], ...] = ()
    num_samples: int = 0
    calls: Mapping[SleepCall, float] = field(default_factory=dict)
    holders: tuple[Holder, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        return {
            "comm": self.name,
            "tid": self.tid,
            "ms": {why: round(ms, 6) for why, ms in self.ms.items()},
            "wakers": [{"comm": name, "tid": tid, "ms": round(ms, 6)} for name, tid, ms in self.wakers],
            "samples": self.num_samples,
            "calls": {call: round(share, 6) for call, share in self.calls.items()},
            "holders": [holder._asdict() for holder in self.holders],
        }

    def __str__(self) -> str:
        total = sum(self.ms.values())
        text = f"{self.name} ({self.tid}) slept {total:,.0f} ms: " + ", ".join(
            f"{ms / total:.0%} {WHY[why]}" for why, ms in self.ms.items() if ms >= SHOWN * total
        )
        if self.wakers and self.ms.get("own_process", 0.0) >= SHOWN * total:
            text += f" (most for {self.wakers[0][0]}, {self.wakers[0][1]})"
        return f"{text}. {self.in_calls()}" if self.calls else text

    def in_calls(self) -> str:
        """Return in words where it was found asleep, and who had the interpreter if it was for that."""
        shown = ", ".join(f"{share:.0%} {WORDS[call]}" for call, share in self.calls.items() if share >= SHOWN)
        text = f"Found asleep {self.num_samples:,} times: {shown}"
        if not self.holders or self.calls.get("interpreter_lock", 0.0) < SHOWN:
            return text
        name, tid, share, where = self.holders[0]
        held = f"{name} ({tid}) did {share:.0%} of the time, most in {where}"
        return f"{text}; when others had the interpreter, {held}"


def shares_of(counts: Mapping[SleepCall, int]) -> dict[SleepCall, float]:
    """Return which share of the looks that found a thread asleep found it in which call, largest first."""
    total = sum(counts.values())
    return {call: count / total for call, count in sorted(counts.items(), key=lambda item: -item[1])}


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
    tid = int(view.tasks.tid[task])
    counts = view.sleeping.get(tid, {})
    return Sleeps(
        view.name(task),
        tid,
        dict(sorted(ms.items(), key=lambda item: -item[1])),
        _longest(view, waker[masks["own_process"]], length[masks["own_process"]]),
        sum(counts.values()),
        shares_of(counts),
        tuple(_holders(view, task)),
    )


def _holders(view: TraceView, task: int) -> Iterator[Holder]:
    """Yield the other threads of a thread's process that had its interpreter, those that had it most first."""
    pid = view.ownership.pid
    others = {
        int(view.tasks.tid[other]): (other, places)
        for other in np.flatnonzero((pid == pid[task]) & (pid >= 0)).tolist()
        if other != task and (places := view.holding.get(int(view.tasks.tid[other])))
    }
    total = sum(sum(places.values()) for _, places in others.values())
    by_count = sorted(others.items(), key=lambda item: -sum(item[1][1].values()))
    for tid, (other, places) in by_count[:MOST_WAKERS]:
        share = round(sum(places.values()) / total, 6)
        yield Holder(view.name(other), tid, share, max(places, key=places.__getitem__))


def _longest(view: TraceView, waker: Ints, length: Ints) -> tuple[tuple[str, int, float], ...]:
    tasks, place = np.unique(waker, return_inverse=True)
    slept = np.bincount(place, weights=length)
    most = np.argsort(-slept, kind="stable")[:MOST_WAKERS]
    return tuple(
        (view.name(int(tasks[i])), int(view.tasks.tid[tasks[i]]), float(slept[i]) / 1e6) for i in most.tolist()
    )


def _state(view: TraceView, runs: Ints) -> Ints:
    """Return the state in which each run was left: that of the switch which began the next on its CPU."""
    following = np.minimum(runs + 1, len(view.on_cpu) - 1)
    event = view.on_cpu.event[following]
    is_switch = (view.on_cpu.cpu[following] == view.on_cpu.cpu[runs]) & (event >= 0) & (following > runs)
    states: Ints = np.where(is_switch, view.trace.events.arg[event], -1).astype(np.int64)
    return states
