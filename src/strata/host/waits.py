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

from strata.host.lives import Lives, key
from strata.host.runs import Runs
from strata.host.trace.events import IDLE, Ints, Kind, State, Trace

YIELD_NS: Final = 200_000
"""A thread that leaves within this time of its sched_yield left because of it (assumed)."""


class Cause(IntEnum):
    """Why a thread had to wait."""

    WOKEN = 0
    PREEMPTED = 1
    YIELDED = 2


@dataclass(frozen=True)
class Waits:
    """Waits by index, sorted by thread and time; `life` is who waits, `cpu` an index as in `Runs`.

    `is_over`: the thread ran again before the trace ended; the others are cut off there. `waker` is the life that
    woke it, -1 for none and for interrupts on an idle CPU. A wait is on one CPU after the other where the kernel
    moved the thread: `part_wait`, `part_cpu`, `part_start_ns` and `part_end_ns` have one value for each of these.
    """

    life: NDArray[np.int32]
    start_ns: Ints
    end_ns: Ints
    cause: NDArray[np.uint8]
    is_over: NDArray[np.bool_]
    waker: NDArray[np.int32]
    cpu: NDArray[np.int32]
    part_wait: NDArray[np.int64]
    part_cpu: NDArray[np.int32]
    part_start_ns: Ints
    part_end_ns: Ints

    def __len__(self) -> int:
        return len(self.life)

    @cached_property
    def length_ns(self) -> Ints:
        """How long each wait lasted."""
        length: Ints = self.end_ns - self.start_ns
        return length


def yields_of(trace: Trace, lives: Lives, runs: Runs, outs: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return which of some switches are of a thread that just called sched_yield."""
    events = trace.events
    calls = events.of(Kind.YIELD)
    if not len(calls):
        return np.zeros(len(outs), bool)
    caller = runs.who(runs.index(events.cpu[calls]), calls)
    keys = np.sort(key(caller, calls)[caller >= 0])
    if not len(keys):
        return np.zeros(len(outs), bool)
    life = lives.at(events.tid[outs], outs)
    found = keys[np.maximum(np.searchsorted(keys, key(life, outs)) - 1, 0)]
    call = (found & 0xFFFFFFFF).astype(np.intp)
    is_same = (found >> 32) == life
    is_yield: NDArray[np.bool_] = is_same & (call < outs)
    return is_yield & (events.time_ns[outs] - events.time_ns[call] <= YIELD_NS)


def switch_outs(trace: Trace, lives: Lives, runs: Runs) -> dict[str, int]:
    """Return how often a thread left its CPU although it could go on: as `R`, as `R+`, and because of a yield."""
    events = trace.events
    switches = events.of(Kind.SWITCH)
    switches = switches[events.tid[switches] != IDLE]
    is_runnable = events.arg[switches] == State.RUNNABLE
    return {
        "R": int(np.sum(is_runnable)),
        "R+": int(np.sum(events.arg[switches] == State.PREEMPTED)),
        "yields": int(np.sum(yields_of(trace, lives, runs, switches[is_runnable]))),
    }


def waits_of(trace: Trace, lives: Lives, runs: Runs) -> Waits:
    """Return all waits of a trace. What a thread waited before the trace began is not known and not counted."""
    events = trace.events
    switches, wakeups = events.of(Kind.SWITCH), events.of(Kind.WAKEUP, Kind.WAKEUP_NEW)
    tid = np.concatenate([events.tid[switches], events.other[switches], events.tid[wakeups]])
    event = np.concatenate([switches, switches, wakeups])
    sort = np.repeat(np.array([_OUT, _IN, _WAKE], np.uint8), [len(switches), len(switches), len(wakeups)])
    is_thread = tid > IDLE
    tid, event, sort = tid[is_thread], event[is_thread], sort[is_thread]
    order = np.argsort(key(tid, event), kind="stable")
    tid, event, sort = tid[order], event[order], sort[order]
    life = lives.at(tid, event)

    is_first = np.diff(life, prepend=-1) != 0
    is_out, is_in, is_wake = sort == _OUT, sort == _IN, sort == _WAKE
    is_runnable = is_out & np.isin(events.arg[event], (State.RUNNABLE, State.PREEMPTED))
    after_sleep = np.concatenate([[False], (is_out & ~is_runnable)[:-1]])
    # A wakeup of a thread that runs, or already waits, changes nothing.
    starts = is_runnable | (is_wake & (is_first | after_sleep))
    place = np.arange(len(life))
    is_last = np.concatenate([is_first[1:], np.ones(min(len(life), 1), bool)])
    last_start = _latest(starts)
    last_move = np.concatenate([[-1], _latest(is_in | is_out)[:-1]]) if len(life) else place
    first_of_life = _latest(is_first)
    began = np.where(is_in, last_start, -1)
    is_wait = is_in & (began >= last_move) & (began >= first_of_life) & (began >= 0)
    # Still waiting when the trace ends: a start after which nothing of that thread is known but more wakeups.
    open_start = np.where(is_last, last_start, -1)
    is_open = is_last & ~is_in & (open_start >= first_of_life) & (open_start >= _latest(is_in | is_out))
    is_open &= (open_start >= 0) & (open_start >= last_move)
    ends = np.flatnonzero(is_wait | is_open)
    begin = last_start[ends]

    over = is_wait[ends]
    from_event = event[begin]
    is_woken = is_wake[begin]
    cause = np.where(is_woken, Cause.WOKEN, Cause.PREEMPTED).astype(np.uint8)
    cause[~is_woken & yields_of(trace, lives, runs, from_event)] = Cause.YIELDED
    waits = Waits(
        life[begin],
        events.time_ns[from_event],
        np.where(over, events.time_ns[event[ends]], trace.end_ns),
        cause,
        over,
        np.where(is_woken, _wakers(trace, runs, from_event), -1).astype(np.int32),
        *(np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int32)),
        *(np.zeros(0, np.int64), np.zeros(0, np.int64)),
    )
    queued = runs.index(np.where(is_woken, events.arg[from_event], events.cpu[from_event]).astype(np.int32))
    ran = np.where(over, runs.index(events.cpu[event[ends]]), -1).astype(np.int32)
    return _with_parts(trace, lives, runs, waits, from_event, event[ends], queued, ran)


_OUT, _IN, _WAKE = 0, 1, 2


def _latest(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return for each place the last one, itself included, where `mask` holds; -1 for none."""
    return np.maximum.accumulate(np.where(mask, np.arange(len(mask)), -1))


def _wakers(trace: Trace, runs: Runs, wakeup: NDArray[np.intp]) -> NDArray[np.int32]:
    """Return who woke: who ran where the wakeup, or better its sched_waking just before, was recorded.

    A wakeup across CPUs is recorded on the woken thread's CPU, where anyone may run; sched_waking on the waker's.
    """
    events = trace.events
    tid, source = events.tid[wakeup], wakeup
    waking = events.of(Kind.WAKING)
    if len(waking):
        keys = key(events.tid[waking], waking)
        order = np.argsort(keys, kind="stable")
        found = np.maximum(np.searchsorted(keys[order], key(tid, wakeup)) - 1, 0)
        event = waking[order[found]]
        is_it = (events.tid[event] == tid) & (event < wakeup)
        is_it &= events.time_ns[wakeup] - events.time_ns[event] < 10_000_000
        source = np.where(is_it, event, source)
    return runs.who(runs.index(events.cpu[source]), source)


def _with_parts(
    trace: Trace,
    lives: Lives,
    runs: Runs,
    waits: Waits,
    begin: NDArray[np.intp],
    end: NDArray[np.intp],
    queued: NDArray[np.int32],
    ran: NDArray[np.int32],
) -> Waits:
    """Return the waits with the CPUs they were on: where they were queued, then where the kernel moved them."""
    events = trace.events
    moves = events.of(Kind.MIGRATE)
    moved_life = lives.at(events.tid[moves], moves)
    # Waits are sorted by life and begin, so the wait that a move can be within is the last that began before it.
    starts = (waits.life.astype(np.int64) << 32) | begin
    wait = np.searchsorted(starts, (moved_life.astype(np.int64) << 32) | moves) - 1
    is_within = (wait >= 0) & (moved_life >= 0)
    wait = np.maximum(wait, 0)
    if len(waits):
        is_within &= (waits.life[wait] == moved_life) & (moves < end[wait])
    else:
        is_within[:] = False
    moves, wait = moves[is_within], wait[is_within]
    has_moved = np.zeros(len(waits), bool)
    has_moved[wait] = True
    # Without a recorded move the thread waited where it then ran, whatever its wakeup said.
    queued = np.where(~has_moved & (ran >= 0), ran, queued)

    part_wait = np.concatenate([np.arange(len(waits)), wait])
    part_cpu = np.concatenate([queued, runs.index(events.arg[moves])])
    part_start = np.concatenate([waits.start_ns, events.time_ns[moves]])
    order = np.lexsort((part_start, part_wait))
    part_wait, part_cpu, part_start = part_wait[order], part_cpu[order], part_start[order]
    is_last = np.diff(part_wait, append=-1) != 0
    part_end = np.where(
        is_last, waits.end_ns[part_wait], np.concatenate([part_start[1:], part_start[:1]])[: len(order)]
    )
    return Waits(
        waits.life,
        waits.start_ns,
        waits.end_ns,
        waits.cause,
        waits.is_over,
        waits.waker,
        part_cpu[is_last].astype(np.int32),
        part_wait,
        part_cpu.astype(np.int32),
        part_start,
        part_end,
    )
