"""The grammar of one line of `perf script` or tracefs text: slow, complete, and what the fast reader is tested by.

    perf:     trainer_main  4035/4035  [001]  1371.207123456:  sched:sched_switch: prev_comm=...  (-F ... --ns)
    perf:     trainer_main  4035 [001] 1371.207123: sched:sched_switch: prev_comm=...             (its default)
    tracefs:  trainer_main-4035    [001] d..2.  1371.207123: sched_switch: prev_comm=...
    trace-cmd and old perf print fields in a form of their own:  sched_switch: a:12 [120] R ==> b:13 [120]

A name may hold spaces, `==>` or bytes that are no UTF-8, but not more than 15 of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from strata.host.trace.events import EventKind, Names, TaskState

HEADER: Final = re.compile(
    # `comm pid/tid`, `comm tid` or `comm-tid`; perf shows the 64 bytes of a kernel worker with its work. Where it
    # was told to leave these out (-F) they are not missed: the fields say them again.
    rb"(?:(?:(?P<comm>.{0,64}?)(?:[ ]++(?:-?\d++/)?|-)|(?:\d++/)?)(?P<tid>-?\d++)[ ]++)?"
    rb"(?:\([ \d-]+\)[ ]+)?\[(?P<cpu>\d+)\]"  # the thread group, where tracefs records it
    rb"[ ]+(?:[^ \d]\S*[ ]+|\S{4,6}[ ]+)?"  # irq flags of tracefs
    rb"(?P<seconds>\d+)\.(?P<fraction>\d{6}|\d{9}):[ ]+"
    rb"(?:\d+[ ]+)?(?:\w+:)?(?P<event>\w+)(?P<call>\(|:|$| ->)[ ]*(?P<rest>.*)",
    re.DOTALL,
)
_NAME: Final = rb"(.{0,16}?)"
_ID: Final = rb"(-?\d+)"
_SWITCH: Final = (
    re.compile(
        rb"prev_comm=%b prev_pid=%b prev_prio=-?\d+ prev_state=(\S+) ==> "
        rb"next_comm=%b next_pid=%b next_prio=-?\d+\s*" % (_NAME, _ID, _NAME, _ID),
        re.DOTALL,
    ),
    re.compile(rb"%b:%b \[-?\d+\] (\S+) ==> %b:%b \[-?\d+\]\s*" % (_NAME, _ID, _NAME, _ID), re.DOTALL),
)
_WAKE: Final = (
    re.compile(rb"comm=%b pid=%b prio=-?\d+ (?:success=\d )?target_cpu=(\d+)\s*" % (_NAME, _ID), re.DOTALL),
    re.compile(rb"%b:%b \[-?\d+\](?: success=\d)? CPU:(\d+)\s*" % (_NAME, _ID), re.DOTALL),
)
_MIGRATE: Final = re.compile(
    rb"comm=%b pid=%b prio=-?\d+ orig_cpu=(\d+) dest_cpu=(\d+)\s*" % (_NAME, _ID), re.DOTALL
)
_FORK: Final = re.compile(rb"comm=%b pid=%b child_comm=%b child_pid=%b\s*" % (_NAME, _ID, _NAME, _ID), re.DOTALL)
_EXIT: Final = re.compile(rb"comm=%b pid=%b prio=-?\d+.*" % (_NAME, _ID), re.DOTALL)
_EXEC: Final = re.compile(rb"filename=(.*) pid=%b old_pid=-?\d+\s*" % _ID, re.DOTALL)
_IRQ: Final = re.compile(rb"irq=(\d+)(?: name=(.*?))?(?: handler=.*| ret=\w+)?\s*", re.DOTALL)
_SOFTIRQ: Final = re.compile(rb"vec=(\d+).*", re.DOTALL)
_FREQUENCY: Final = re.compile(rb"state=(\d+) cpu_id=(\d+)\s*", re.DOTALL)

MAX_ID: Final = 2**31 - 1
MAX_LINE: Final = 4096
"""Bytes; a longer line is no event (a path in sched_process_exec is the longest there is)."""


class EventRow(NamedTuple):
    """One event, in the order of the columns of `Events`."""

    time_ns: int
    cpu: int
    kind: EventKind
    tid: int = -1
    other: int = -1
    arg: int = 0
    comm: int = -1
    other_comm: int = -1


def read_line(line: bytes, names: Names) -> EventRow | None:
    """Return the event of a line, of kind OTHER where it is none that we use; None where it is no event."""
    header = HEADER.fullmatch(line.lstrip(b" ")) if len(line) <= MAX_LINE else None
    if header is None:
        return None
    fraction = header["fraction"]
    time_ns = int(header["seconds"]) * 10**9 + int(fraction) * (1000 if len(fraction) == 6 else 1)
    cpu, tid = int(header["cpu"]), int(header["tid"] or -1)
    if time_ns >= 2**63 or max(cpu, tid) > MAX_ID:
        return None
    event = header["event"].decode()
    if event in _YIELDS and header["call"] != b" ->":
        return EventRow(time_ns, cpu, EventKind.YIELD, tid)
    if header["call"] in (b"(", b" ->") or event not in _READERS:
        return EventRow(time_ns, cpu, EventKind.OTHER)
    row = _READERS[event](header["rest"], EventRow(time_ns, cpu, EventKind.OTHER, tid), names)
    return None if row is None or max(row.cpu, row.tid, row.other, row.arg) > MAX_ID else row


_YIELDS: Final = ("sys_enter_sched_yield", "sys_sched_yield")
Reader = Callable[[bytes, EventRow, Names], EventRow | None]


def _switch(rest: bytes, row: EventRow, names: Names) -> EventRow | None:
    for form in _SWITCH:
        if match := form.fullmatch(rest):
            comm, tid, state, next_comm, next_tid = match.groups()
            return row._replace(
                kind=EventKind.SWITCH,
                tid=int(tid),
                other=int(next_tid),
                arg=int(TaskState.of(state)),
                comm=names.index(comm),
                other_comm=names.index(next_comm),
            )
    return None


def _wake(kind: EventKind) -> Reader:
    def read(rest: bytes, row: EventRow, names: Names) -> EventRow | None:
        for form in _WAKE:
            if match := form.fullmatch(rest):
                comm, tid, cpu = match.groups()
                return row._replace(kind=kind, tid=int(tid), arg=int(cpu), comm=names.index(comm))
        return None

    return read


def _migrate(rest: bytes, row: EventRow, names: Names) -> EventRow | None:
    if not (match := _MIGRATE.fullmatch(rest)):
        return None
    comm, tid, source, dest = match.groups()
    return row._replace(
        kind=EventKind.MIGRATE, tid=int(tid), other=int(source), arg=int(dest), comm=names.index(comm)
    )


def _fork(rest: bytes, row: EventRow, names: Names) -> EventRow | None:
    if not (match := _FORK.fullmatch(rest)):
        return None
    comm, tid, child_comm, child = match.groups()
    return row._replace(
        kind=EventKind.FORK,
        tid=int(child),
        other=int(tid),
        comm=names.index(child_comm),
        other_comm=names.index(comm),
    )


def _exec(rest: bytes, row: EventRow, names: Names) -> EventRow | None:
    if not (match := _EXEC.fullmatch(rest)):
        return None
    return row._replace(
        kind=EventKind.EXEC, tid=int(match[2]), comm=names.index(match[1].rpartition(b"/")[2][:15])
    )


def _exit(rest: bytes, row: EventRow, names: Names) -> EventRow | None:
    if not (match := _EXIT.fullmatch(rest)):
        return None
    return row._replace(kind=EventKind.EXIT, tid=int(match[2]), comm=names.index(match[1]))


def _irq(kind: EventKind) -> Reader:
    def read(rest: bytes, row: EventRow, names: Names) -> EventRow | None:
        if not (match := _IRQ.fullmatch(rest)):
            return None
        name = names.index(match[2]) if match[2] is not None and kind is EventKind.IRQ_ENTRY else -1
        return row._replace(kind=kind, other=int(match[1]), other_comm=name)

    return read


def _softirq(kind: EventKind) -> Reader:
    def read(rest: bytes, row: EventRow, names: Names) -> EventRow | None:
        match = _SOFTIRQ.fullmatch(rest)
        return row._replace(kind=kind, other=int(match[1])) if match else None

    return read


def _frequency(rest: bytes, row: EventRow, names: Names) -> EventRow | None:
    if not (match := _FREQUENCY.fullmatch(rest)):
        return None
    return row._replace(kind=EventKind.FREQUENCY, tid=-1, cpu=int(match[2]), other=int(match[1]))


_READERS: Final[Mapping[str, Reader]] = {
    "sched_switch": _switch,
    "sched_wakeup": _wake(EventKind.WAKEUP),
    "sched_wakeup_new": _wake(EventKind.WAKEUP_NEW),
    "sched_waking": _wake(EventKind.WAKING),
    "sched_migrate_task": _migrate,
    "sched_process_fork": _fork,
    "sched_process_exec": _exec,
    "sched_process_exit": _exit,
    "irq_handler_entry": _irq(EventKind.IRQ_ENTRY),
    "irq_handler_exit": _irq(EventKind.IRQ_EXIT),
    "softirq_entry": _softirq(EventKind.SOFTIRQ_ENTRY),
    "softirq_exit": _softirq(EventKind.SOFTIRQ_EXIT),
    "cpu_frequency": _frequency,
}
