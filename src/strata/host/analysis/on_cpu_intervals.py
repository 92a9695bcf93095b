"""Who ran on which CPU, from when to when; the idle thread counts as one who runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from strata.arrays import Ints
from strata.errors import UsageError
from strata.host.analysis.task_instances import TaskInstances
from strata.host.trace.events import EventKind, Trace


@dataclass(frozen=True)
class OnCpuIntervals:
    """Runs sorted by CPU and start, without gaps: one begins where the one before on its CPU ends.

    `cpu` is an index into `cpus`; `task` is -1 for the idle thread; `event` is the switch that began the run (-1
    for what ran when the trace began).
    """

    cpus: NDArray[np.int32]
    origin_ns: int
    span_ns: int
    cpu: NDArray[np.int32]
    start_ns: Ints
    end_ns: Ints
    task: NDArray[np.int32]
    comm: NDArray[np.int32]
    event: Ints

    def __len__(self) -> int:
        return len(self.cpu)

    def place(self, cpu: NDArray[np.int32], time_ns: Ints) -> Ints:
        """Return CPU (index) and time as one number, by which runs are sorted."""
        return cpu.astype(np.int64) * self.span_ns + (time_ns - self.origin_ns)

    @cached_property
    def places(self) -> tuple[Ints, Ints]:
        """Return where runs start and end, as places."""
        return self.place(self.cpu, self.start_ns), self.place(self.cpu, self.end_ns)

    def index(self, cpu: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the indices of CPUs given by number; -1 for one on which nothing was seen to run."""
        at = np.minimum(np.searchsorted(self.cpus, cpu), len(self.cpus) - 1)
        return np.where(self.cpus[at] == cpu, at, -1).astype(np.int32)

    def who(self, cpu: NDArray[np.int32], event: NDArray[np.intp]) -> NDArray[np.int32]:
        """Return which thread ran on a CPU (index; -1: none) at an event; -1 for the idle thread.

        An event's own header is not asked: in a container it has the ids of its pid namespace, a switch has not.
        """
        begins = (self.cpu.astype(np.int64) << 32) | np.maximum(self.event, 0)
        run = np.searchsorted(begins, (cpu.astype(np.int64) << 32) | event, side="right") - 1
        is_there = (cpu >= 0) & (run >= 0) & (self.cpu[np.maximum(run, 0)] == cpu)
        return np.where(is_there, self.task[np.maximum(run, 0)], -1).astype(np.int32)


def on_cpu_intervals_of(trace: Trace, tasks: TaskInstances) -> OnCpuIntervals:
    """Return who ran where. Before a CPU's first switch ran who left it then, for all the trace knows.

    Raises UsageError where the times cannot be of one trace.
    """
    events = trace.events
    switches = events.of(EventKind.SWITCH)
    cpus, cpu = np.unique(events.cpu[switches], return_inverse=True)
    order = np.argsort(cpu, kind="stable")
    switches, cpu = switches[order], cpu[order].astype(np.int32)
    first = np.flatnonzero(np.diff(cpu, prepend=-1))
    last = np.concatenate([first[1:], np.array([len(cpu)])]).astype(np.intp) - 1

    span_ns = trace.end_ns - trace.start_ns + 1
    if span_ns >= 2**62 // len(cpus):
        days = span_ns / 86_400e9
        raise UsageError(
            f"the trace goes from {trace.start_ns} ns to {trace.end_ns} ns, {days:,.0f} days: a damaged timestamp"
        )
    time = events.time_ns[switches]
    end = np.concatenate([time[1:], np.zeros(1, np.int64)])
    end[last] = trace.end_ns
    task = tasks.at(events.other[switches], switches)
    before = tasks.at(events.tid[switches[first]], switches[first])
    return OnCpuIntervals(
        cpus,
        trace.start_ns,
        span_ns,
        np.insert(cpu, first, cpu[first]),
        np.insert(time, first, trace.start_ns),
        np.insert(end, first, time[first]),
        np.insert(task, first, before),
        np.insert(events.other_comm[switches], first, events.comm[switches[first]]),
        np.insert(switches, first, -1),
    )
