"""Scheduler events as NumPy columns (33 bytes an event), and the table of thread names they refer to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.arrays import Bools, Ints

NAME_BYTES: Final = 16
"""TASK_COMM_LEN of the kernel; longer names (of interrupts) are cut to it."""
OUTSIDE: Final = 1 << 22
"""What the numbers of threads outside of a container are told with: no kernel has numbers that large."""
IDLE: Final = 0
"""The thread id of every CPU's idle thread."""


class EventKind(IntEnum):
    """What happened. For each: whom `tid` names, and what `other` and `arg` hold."""

    OTHER = 0
    """Counted, not kept."""
    SWITCH = 1
    """tid: who leaves; other: who comes; arg: a State."""
    WAKEUP = 2
    """tid: who was woken; arg: the CPU it was queued on. So for the next two."""
    WAKEUP_NEW = 3
    WAKING = 4
    MIGRATE = 5
    """tid: who was moved; other: from which CPU; arg: to which."""
    IRQ_ENTRY = 6
    """other: the interrupt's number. So for the exit and the softirqs (vector)."""
    IRQ_EXIT = 7
    SOFTIRQ_ENTRY = 8
    SOFTIRQ_EXIT = 9
    YIELD = 10
    """By whom, says its CPU."""
    FORK = 11
    """tid: the child; other: the parent."""
    EXEC = 12
    EXIT = 13
    FREQUENCY = 14
    """cpu: the CPU whose clock was set; other: kHz."""


class TaskState(IntEnum):
    """In which state a thread left its CPU; the first two mean it still wanted to run."""

    SLEEPING = 0
    RUNNABLE = 1
    """`R`: preempted on the way back to user space, or a yield."""
    PREEMPTED = 2
    """`R+`: preempted inside the kernel."""
    BLOCKED = 3
    """`D`: waits for a disk or a driver."""
    DEAD = 4

    @classmethod
    def of(cls, text: bytes) -> TaskState:
        """Return the state of the kernel's letters."""
        if text[:1] == b"R":
            return cls.PREEMPTED if text[1:] == b"+" else cls.RUNNABLE
        return cls.BLOCKED if text[:1] == b"D" else cls.DEAD if text[:1] in (b"X", b"Z") else cls.SLEEPING


@dataclass(frozen=True, slots=True)
class Events:
    """Events in the order of time; every column has one value an event.

    `comm` and `other_comm` are indices into the trace's names, -1 where the event gives none.
    """

    time_ns: Ints
    cpu: NDArray[np.int32]
    kind: NDArray[np.uint8]
    tid: NDArray[np.int32]
    other: NDArray[np.int32]
    arg: NDArray[np.int32]
    comm: NDArray[np.int32]
    other_comm: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.time_ns)

    def take(self, which: NDArray[np.intp] | Bools | slice) -> Events:
        """Return the events an index or a mask selects."""
        return Events(*(getattr(self, item.name)[which] for item in fields(self)))

    def of(self, *kinds: EventKind) -> NDArray[np.intp]:
        """Return where the events of some kinds are."""
        wanted = np.zeros(len(EventKind), bool)
        wanted[list(kinds)] = True
        return np.flatnonzero(wanted[self.kind])

    @classmethod
    def empty(cls, count: int = 0) -> Events:
        """Return `count` events of kind OTHER, without names."""
        return cls(
            np.zeros(count, np.int64),
            np.zeros(count, np.int32),
            np.zeros(count, np.uint8),
            np.full(count, -1, np.int32),
            np.full(count, -1, np.int32),
            np.zeros(count, np.int32),
            np.full(count, -1, np.int32),
            np.full(count, -1, np.int32),
        )

    @classmethod
    def join(cls, parts: Iterable[Events]) -> Events:
        """Return the events of all parts, one after the other.

        Column by column: where nobody else holds the parts, memory is needed once, and for one column twice.
        """
        all_of_them = list(parts) or [cls.empty()]
        columns = [[getattr(part, item.name) for part in all_of_them] for item in fields(cls)]
        del all_of_them
        return cls(*(np.concatenate(columns.pop(0)) for _ in fields(cls)))


class Names:
    """Names met in a trace, by index; bytes, since a thread's name need not be UTF-8."""

    def __init__(self) -> None:
        self.raw: list[bytes] = []
        self._shown: list[str] = []
        self._index: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self.raw)

    def index(self, name: bytes) -> int:
        """Return the index of a name, which is new or known."""
        name = name[:NAME_BYTES].rstrip(b"\0")
        index = self._index.get(name)
        if index is None:
            index = self._index[name] = len(self.raw)
            self.raw.append(name)
            text = name.decode("utf-8", "backslashreplace")
            self._shown.append(text if text.isprintable() else text.encode("unicode_escape").decode("ascii"))
        return index

    def __getitem__(self, index: int) -> str:
        """Return a name to show, with what is not printable escaped; "?" for -1."""
        return self._shown[index] if index >= 0 else "?"


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace that was read.

    `num_events` counts every event line, kept or not; `unparsed` the lines that are none; `lost` the events that
    the kernel says it dropped; `backwards` those whose time was before that of an earlier one on their CPU;
    `is_cut` says that reading stopped at the most events that are kept, `is_broken` that the file ended too early.
    """

    events: Events
    names: Names
    num_events: int
    unparsed: int = 0
    lost: int = 0
    backwards: int = 0
    is_cut: bool = False
    is_broken: bool = False

    def renumbered(self, numbers: Mapping[int, int]) -> Trace:
        """Return the trace with other numbers of threads; those without one get OUTSIDE and their own."""
        events = self.events
        keys = np.array(sorted(numbers), np.int32)
        values = np.array([numbers[key] for key in keys.tolist()], np.int32)

        def named(tid: NDArray[np.int32]) -> NDArray[np.int32]:
            place = np.searchsorted(keys, tid).clip(max=len(keys) - 1)
            outside = np.where(tid > IDLE, tid + OUTSIDE, tid)
            return np.where(keys[place] == tid, values[place], outside).astype(np.int32)

        has_two = np.isin(events.kind, (EventKind.SWITCH, EventKind.FORK))
        other = np.where(has_two, named(events.other), events.other)
        return replace(self, events=replace(events, tid=named(events.tid), other=other))

    @property
    def start_ns(self) -> int:
        """When the first event happened."""
        return int(self.events.time_ns[0]) if len(self.events) else 0

    @property
    def end_ns(self) -> int:
        """When the last event happened."""
        return int(self.events.time_ns[-1]) if len(self.events) else 0
