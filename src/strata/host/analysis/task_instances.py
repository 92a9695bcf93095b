"""The threads of a trace. A thread id is given again after its thread has died, so a thread is a life of an id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.arrays import Ints
from strata.host.trace.events import IDLE, EventKind, TaskState, Trace

_INDEX_BITS: Final = 32
"""A key is an id and the index of an event, so that keys sort by id and then by time."""
_NAMED: Final = (
    EventKind.SWITCH,
    EventKind.WAKEUP,
    EventKind.WAKEUP_NEW,
    EventKind.WAKING,
    EventKind.MIGRATE,
    EventKind.FORK,
    EventKind.EXEC,
    EventKind.EXIT,
)


@dataclass(frozen=True, slots=True)
class TaskInstances:
    """Threads by index. `comm` is the last name each had: Python starts as `python3`, and renames itself later.

    `key` sorts them by id and birth; `start_ns` and `end_ns`: birth and death, or the ends of the trace.
    """

    key: Ints
    tid: NDArray[np.int32]
    comm: NDArray[np.int32]
    start_ns: Ints
    end_ns: Ints

    def __len__(self) -> int:
        return len(self.key)

    def at(self, tid: NDArray[np.int32], event: NDArray[np.intp]) -> NDArray[np.int32]:
        """Return the index of the life that had each id at an event; -1 for an id that is not known."""
        index = np.searchsorted(self.key, key(tid, event), side="right") - 1
        is_it = (index >= 0) & (self.tid[np.maximum(index, 0)] == tid)
        return np.where(is_it, index, -1).astype(np.int32)


def key(tid: NDArray[np.int32], event: NDArray[np.intp]) -> Ints:
    """Return what sorts by thread id, then by event."""
    return (tid.astype(np.int64) << _INDEX_BITS) | event


def task_instances_of(trace: Trace) -> TaskInstances:
    """Return the threads of a trace, without the idle ones.

    A life begins with its fork, or with its first wakeup where forks were not recorded; a thread that is older
    than the trace begins with it.
    """
    events = trace.events
    places = [events.of(*_NAMED), events.of(EventKind.SWITCH)]
    tid = np.concatenate([events.tid[places[0]], events.other[places[1]]])
    comm = np.concatenate([events.comm[places[0]], events.other_comm[places[1]]])
    event = np.concatenate(places)
    is_thread = tid > IDLE
    tid, comm, event = tid[is_thread], comm[is_thread], event[is_thread]
    order = np.argsort(key(tid, event), kind="stable")
    tid, comm, event = tid[order], comm[order], event[order]

    kind = events.kind[event]
    is_new_tid = np.diff(tid, prepend=-1) != 0
    after_fork = np.concatenate([[False], kind[:-1] == EventKind.FORK]) & ~is_new_tid
    is_birth = is_new_tid | (kind == EventKind.FORK) | ((kind == EventKind.WAKEUP_NEW) & ~after_fork)
    first = np.flatnonzero(is_birth)
    last = np.concatenate([first[1:], np.array([len(tid)])])[: len(first)] - 1
    begins = np.where(is_new_tid[first], 0, event[first])
    is_born = ~is_new_tid[first] | np.isin(kind[first], (EventKind.FORK, EventKind.WAKEUP_NEW))
    # A dead thread is switched out once more, in a state of its own; the next of its id comes after that.
    is_dead = (kind[last] == EventKind.EXIT) | (
        (kind[last] == EventKind.SWITCH) & (events.arg[event[last]] == TaskState.DEAD)
    )
    is_dead &= (events.tid[event[last]] == tid[first]) | (kind[last] == EventKind.EXIT)
    is_dead |= np.diff(tid[first], append=-1) == 0
    return TaskInstances(
        key(tid[first], begins),
        tid[first],
        comm[last],
        np.where(is_born, events.time_ns[event[first]], trace.start_ns),
        np.where(is_dead, events.time_ns[event[last]], trace.end_ns),
    )
