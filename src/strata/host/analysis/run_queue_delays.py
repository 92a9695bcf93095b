"""Waits for a CPU: from the moment a thread could run to the moment it did.

A wait begins with a wakeup, or when a thread leaves its CPU although it could go on (preempted, or a yield); it
ends when the thread runs. `perf sched latency` counts the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.arrays import Bools, Ints
from strata.host.analysis.on_cpu_intervals import OnCpuIntervals
from strata.host.analysis.task_instances import TaskInstances, key
from strata.host.trace.events import IDLE, EventKind, TaskState, Trace

YIELD_NS: Final = 200_000
"""A thread that leaves within this time of its sched_yield left because of it (assumed)."""


WAKING_NS: Final = 10_000_000
"""The longest from a sched_waking to its wakeup on another CPU (assumed; it is microseconds)."""


class Cause(IntEnum):
    """Why a thread had to wait."""

    WOKEN = 0
    PREEMPTED = 1
    YIELDED = 2


@dataclass(frozen=True)
class RunQueueDelays:
    """Waits by index, sorted by thread and time; `task` is who waits.

    `is_over`: the thread ran again before the trace ended; the others are cut off there. `waker` is the life that
    woke it, -1 for none and for interrupts on an idle CPU. A wait is on one CPU after the other where the kernel
    moved the thread: `part_wait`, `part_cpu` (an index as in `OnCpuIntervals`), `part_start_ns` and `part_end_ns`
    have one value for each of these.
    """

    task: NDArray[np.int32]
    start_ns: Ints
    end_ns: Ints
    cause: NDArray[np.uint8]
    is_over: Bools
    waker: NDArray[np.int32]
    part_wait: Ints
    part_cpu: NDArray[np.int32]
    part_start_ns: Ints
    part_end_ns: Ints

    def __len__(self) -> int:
        return len(self.task)

    @cached_property
    def length_ns(self) -> Ints:
        """How long each wait lasted."""
        length: Ints = self.end_ns - self.start_ns
        return length


def yields_of(
    trace: Trace, tasks: TaskInstances, on_cpu: OnCpuIntervals, outs: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """Return which of some switches are of a thread that just called sched_yield."""
    events = trace.events
    calls = events.of(EventKind.YIELD)
    if not len(calls):
        return np.zeros(len(outs), bool)
    caller = on_cpu.who(on_cpu.index(events.cpu[calls]), calls)
    keys = np.sort(key(caller, calls)[caller >= 0])
    if not len(keys):
        return np.zeros(len(outs), bool)
    task = tasks.at(events.tid[outs], outs)
    latest = keys[np.maximum(np.searchsorted(keys, key(task, outs)) - 1, 0)]
    call = (latest & 0xFFFFFFFF).astype(np.intp)
    is_same = (latest >> 32) == task
    is_yield: NDArray[np.bool_] = is_same & (call < outs)
    return is_yield & (events.time_ns[outs] - events.time_ns[call] <= YIELD_NS)


def switch_outs(trace: Trace, tasks: TaskInstances, on_cpu: OnCpuIntervals) -> dict[str, int]:
    """Return how often a thread left its CPU although it could go on: as `R`, as `R+`, and because of a yield."""
    events = trace.events
    switches = events.of(EventKind.SWITCH)
    switches = switches[events.tid[switches] != IDLE]
    is_runnable = events.arg[switches] == TaskState.RUNNABLE
    return {
        "R": int(np.sum(is_runnable)),
        "R+": int(np.sum(events.arg[switches] == TaskState.PREEMPTED)),
        "yields": int(np.sum(yields_of(trace, tasks, on_cpu, switches[is_runnable]))),
    }


def run_queue_delays_of(trace: Trace, tasks: TaskInstances, on_cpu: OnCpuIntervals) -> RunQueueDelays:
    """Return all waits of a trace. What a thread waited before the trace began is not known and not counted."""
    events = trace.events
    moves = _Moves.of(trace, tasks)
    begin, end, is_over = _begins_and_ends(trace, moves)
    task, start = moves.task[begin], moves.event[begin]
    is_woken = moves.sort[begin] == _WAKE
    cause = np.where(is_woken, Cause.WOKEN, Cause.PREEMPTED).astype(np.uint8)
    cause[~is_woken & yields_of(trace, tasks, on_cpu, start)] = Cause.YIELDED
    start_ns = events.time_ns[start]
    end_ns = np.where(is_over, events.time_ns[moves.event[end]], trace.end_ns)
    queued = on_cpu.index(np.where(is_woken, events.arg[start], events.cpu[start]).astype(np.int32))
    ran = np.where(is_over, on_cpu.index(events.cpu[moves.event[end]]), -1).astype(np.int32)
    part_wait, part_cpu, part_start_ns = _parts(trace, tasks, on_cpu, task, start, moves.event[end], queued, ran)
    is_last = np.diff(part_wait, append=-1) != 0
    return RunQueueDelays(
        task,
        start_ns,
        end_ns,
        cause,
        is_over,
        np.where(is_woken, _wakers(trace, on_cpu, start), -1).astype(np.int32),
        part_wait,
        part_cpu,
        part_start_ns,
        np.where(is_last, end_ns[part_wait], np.roll(part_start_ns, -1)),
    )


_OUT, _IN, _WAKE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class _Moves:
    """What happens to threads, by thread and then by event: they leave a CPU, come to one, or are woken."""

    task: NDArray[np.int32]
    event: NDArray[np.intp]
    sort: NDArray[np.uint8]

    @classmethod
    def of(cls, trace: Trace, tasks: TaskInstances) -> _Moves:
        events = trace.events
        switches, wakeups = events.of(EventKind.SWITCH), events.of(EventKind.WAKEUP, EventKind.WAKEUP_NEW)
        tid = np.concatenate([events.tid[switches], events.other[switches], events.tid[wakeups]])
        event = np.concatenate([switches, switches, wakeups])
        sort = np.repeat(np.array([_OUT, _IN, _WAKE], np.uint8), [len(switches), len(switches), len(wakeups)])
        is_thread = tid > IDLE
        tid, event, sort = tid[is_thread], event[is_thread], sort[is_thread]
        order = np.argsort(key(tid, event), kind="stable")
        return cls(tasks.at(tid[order], event[order]), event[order], sort[order])


def _begins_and_ends(trace: Trace, moves: _Moves) -> tuple[Ints, Ints, Bools]:
    """Return for each wait the move that began it, the last move of it, and whether that ended it."""
    is_in, is_wake = moves.sort == _IN, moves.sort == _WAKE
    is_first = np.diff(moves.task, prepend=-1) != 0
    is_last = np.diff(moves.task, append=-1) != 0
    left = trace.events.arg[moves.event]
    is_runnable = (moves.sort == _OUT) & ((left == TaskState.RUNNABLE) | (left == TaskState.PREEMPTED))
    sleeps = (moves.sort == _OUT) & ~is_runnable
    after_sleep = np.roll(sleeps, 1) & ~is_first
    # A wakeup of a thread that runs, or already waits, changes nothing.
    last_start = _latest(is_runnable | (is_wake & (is_first | after_sleep)))
    # Nothing but wakeups may lie between the start of a wait and its end.
    last_switch = _latest(~is_wake)
    before = np.roll(last_switch, 1)
    before[:1] = -1
    is_of_life = (last_start >= 0) & (last_start >= _latest(is_first))
    is_over = is_in & is_of_life & (last_start >= before)
    is_open = is_last & ~is_in & is_of_life & (last_start >= last_switch)
    ends = np.flatnonzero(is_over | is_open)
    return last_start[ends], ends, is_over[ends]


def _latest(mask: Bools) -> Ints:
    """Return for each place the last one, itself included, where `mask` holds; -1 for none."""
    return np.maximum.accumulate(np.where(mask, np.arange(len(mask)), -1))


def _wakers(trace: Trace, on_cpu: OnCpuIntervals, wakeup: NDArray[np.intp]) -> NDArray[np.int32]:
    """Return who woke: who ran where the wakeup, or better its sched_waking just before, was recorded.

    A wakeup across CPUs is recorded on the woken thread's CPU, where anyone may run; sched_waking on the waker's.
    """
    events = trace.events
    tid, source = events.tid[wakeup], wakeup
    waking = events.of(EventKind.WAKING)
    if len(waking):
        keys = key(events.tid[waking], waking)
        order = np.argsort(keys, kind="stable")
        latest = np.maximum(np.searchsorted(keys[order], key(tid, wakeup)) - 1, 0)
        event = waking[order[latest]]
        is_it = (events.tid[event] == tid) & (event < wakeup)
        is_it &= events.time_ns[wakeup] - events.time_ns[event] < WAKING_NS
        source = np.where(is_it, event, source)
    return on_cpu.who(on_cpu.index(events.cpu[source]), source)


def _parts(
    trace: Trace,
    tasks: TaskInstances,
    on_cpu: OnCpuIntervals,
    task: NDArray[np.int32],
    begin: NDArray[np.intp],
    end: NDArray[np.intp],
    queued: NDArray[np.int32],
    ran: NDArray[np.int32],
) -> tuple[Ints, NDArray[np.int32], Ints]:
    """Return the CPUs each wait was on: which wait, the CPU it was queued on or moved to, and since when.

    Without a recorded move a thread waited where it then ran (`ran`, -1: not yet), whatever its wakeup said.
    """
    events = trace.events
    migrations = events.of(EventKind.MIGRATE)
    moved = tasks.at(events.tid[migrations], migrations)
    # Waits are sorted by life and begin, so the wait that a move can be within is the last that began before it.
    wait = np.searchsorted(key(task, begin), key(moved, migrations)) - 1
    is_within = (wait >= 0) & (moved >= 0)
    is_within[is_within] = task[wait[is_within]] == moved[is_within]
    is_within[is_within] = migrations[is_within] < end[wait[is_within]]
    migrations, wait = migrations[is_within], wait[is_within]
    has_moved = np.zeros(len(task), bool)
    has_moved[wait] = True
    queued = np.where(~has_moved & (ran >= 0), ran, queued)

    part_wait = np.concatenate([np.arange(len(task)), wait])
    part_cpu = np.concatenate([queued, on_cpu.index(events.arg[migrations])]).astype(np.int32)
    part_start = np.concatenate([events.time_ns[begin], events.time_ns[migrations]])
    order = np.lexsort((part_start, part_wait))
    return part_wait[order], part_cpu[order], part_start[order]
