"""When interrupts held a CPU, each moment counted once: a hard interrupt inside a soft one is the hard one's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.arrays import Ints
from strata.host.analysis.on_cpu_intervals import OnCpuIntervals
from strata.host.trace.events import EventKind, Trace

SOFTIRQS: Final = ("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU")
"""By vector (include/linux/interrupt.h)."""
_SOFT: Final = 1 << 20
"""Added to a softirq's vector, to tell it from an interrupt's number."""


@dataclass(frozen=True, slots=True)
class Interrupts:
    """Times in interrupts, sorted by CPU (index as in `OnCpuIntervals`) and start, not overlapping.

    `task` is the thread that was interrupted, -1 for the idle one; `cause` an index into `causes`.
    """

    causes: tuple[str, ...]
    cpu: NDArray[np.int32]
    start_ns: Ints
    end_ns: Ints
    task: NDArray[np.int32]
    cause: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.cpu)


def interrupts_of(trace: Trace, on_cpu: OnCpuIntervals) -> Interrupts:
    """Return when interrupts held CPUs. One whose end was lost counts nothing."""
    events = trace.events
    which = events.of(EventKind.IRQ_ENTRY, EventKind.IRQ_EXIT, EventKind.SOFTIRQ_ENTRY, EventKind.SOFTIRQ_EXIT)
    cpu = on_cpu.index(events.cpu[which])
    which, cpu = which[cpu >= 0], cpu[cpu >= 0]
    order = np.argsort(cpu, kind="stable")
    which, cpu = which[order], cpu[order]
    kind, number, time = events.kind[which], events.other[which], events.time_ns[which]
    place = np.arange(len(which))

    soft = _until_exit(kind, number, cpu, EventKind.SOFTIRQ_ENTRY, EventKind.SOFTIRQ_EXIT)
    hard = _until_exit(kind, number, cpu, EventKind.IRQ_ENTRY, EventKind.IRQ_EXIT)
    in_soft = np.maximum.accumulate(np.where(soft > place, place, -1)) if len(place) else place
    # Between two events a soft interrupt runs if its exit is still to come, unless a hard one runs.
    is_soft = (in_soft >= 0) & (soft[in_soft] > place)
    is_hard = hard > place
    held = np.flatnonzero(is_soft | is_hard)
    held = held[held + 1 < len(which)]
    code = np.where(is_hard[held], number[held], number[in_soft[held]] + _SOFT)
    codes, cause = np.unique(code, return_inverse=True)
    return Interrupts(
        tuple(_causes(codes.tolist(), trace)),
        cpu[held],
        time[held],
        time[held + 1],
        on_cpu.who(cpu[held], which[held]),
        cause.astype(np.int32),
    )


def _until_exit(
    kind: NDArray[np.uint8], number: NDArray[np.int32], cpu: NDArray[np.int32], entry: EventKind, exit_: EventKind
) -> Ints:
    """Return for each entry where its exit is (the next event of its sort on its CPU); -1 for all else."""
    exits = np.full(len(kind), -1, np.int64)
    these = np.flatnonzero((kind == entry) | (kind == exit_))
    if len(these) < 2:
        return exits
    now, after = these[:-1], these[1:]
    is_pair = (kind[now] == entry) & (kind[after] == exit_) & (number[now] == number[after])
    is_pair &= cpu[now] == cpu[after]
    exits[now[is_pair]] = after[is_pair]
    return exits


def _causes(codes: Iterable[int], trace: Trace) -> Iterator[str]:
    """Yield what interrupts are called; of one number by its last handler."""
    events = trace.events
    entries = events.of(EventKind.IRQ_ENTRY)
    names = dict(zip(events.other[entries].tolist(), events.other_comm[entries].tolist(), strict=True))
    for code in codes:
        vector = code - _SOFT
        if vector >= 0:
            yield f"softirq {SOFTIRQS[vector] if vector < len(SOFTIRQS) else vector}"
        else:
            yield f"irq {code} {trace.names[names[code]]}" if names.get(code, -1) >= 0 else f"irq {code}"
