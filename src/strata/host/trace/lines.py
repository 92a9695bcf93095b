"""The grammar of one line of `perf script` or tracefs text: slow, complete, and what the fast reader is tested by.

    perf:     trainer_main  4035/4035  [001]  1371.207123456:  sched:sched_switch: prev_comm=...  (-F ... --ns)
    perf:     trainer_main  4035 [001] 1371.207123: sched:sched_switch: prev_comm=...             (its default)
    tracefs:  trainer_main-4035    [001] d..2.  1371.207123: sched_switch: prev_comm=...
    trace-cmd and old perf print fields in a form of their own:  sched_switch: a:12 [120] R ==> b:13 [120]

A name may hold spaces, `==>` or bytes that are no UTF-8, but not more than 15 of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

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
_WAKE: Final = "comm=<comm> pid=<tid> prio=<prio> target_cpu=<arg>"
USUAL: Final[Mapping[str, tuple[EventKind, str]]] = {
    "sched_switch": (
        EventKind.SWITCH,
        "prev_comm=<comm> prev_pid=<tid> prev_prio=<prio> prev_state=<state> "
        "==> next_comm=<other_comm> next_pid=<other> next_prio=<prio>",
    ),
    "sched_wakeup": (EventKind.WAKEUP, _WAKE),
    "sched_wakeup_new": (EventKind.WAKEUP_NEW, _WAKE),
    "sched_waking": (EventKind.WAKING, _WAKE),
    "sched_migrate_task": (EventKind.MIGRATE, "comm=<comm> pid=<tid> prio=<prio> orig_cpu=<other> dest_cpu=<arg>"),
    "irq_handler_entry": (EventKind.IRQ_ENTRY, "irq=<other> name=<irq_name>"),
    "irq_handler_exit": (EventKind.IRQ_EXIT, "irq=<other> ret=<rest>"),
    "softirq_entry": (EventKind.SOFTIRQ_ENTRY, "vec=<other> [action=<rest>"),
    "softirq_exit": (EventKind.SOFTIRQ_EXIT, "vec=<other> [action=<rest>"),
    "sched_process_fork": (EventKind.FORK, "comm=<other_comm> pid=<other> child_comm=<comm> child_pid=<tid>"),
    "sched_process_exit": (EventKind.EXIT, "comm=<comm> pid=<tid> prio=<prio> group_dead=<rest>"),
    "sys_enter_sched_yield": (EventKind.YIELD, ""),
}
"""Events in the form that kernels and perf write today. What is in brackets is kept in the column of that name;
<prio> and <rest> are not kept, <state> goes into `arg`, <irq_name> and <path> into a column of names."""
_OTHER_FORMS: Final[Mapping[EventKind, tuple[str, ...]]] = {
    EventKind.SWITCH: ("<comm>:<tid> [<prio>] <state> ==> <other_comm>:<other> [<prio>]",),
    **dict.fromkeys(
        (EventKind.WAKEUP, EventKind.WAKEUP_NEW, EventKind.WAKING),
        (
            "comm=<comm> pid=<tid> prio=<prio> success=<prio> target_cpu=<arg>",
            "<comm>:<tid> [<prio>] CPU:<arg>",
            "<comm>:<tid> [<prio>] success=<prio> CPU:<arg>",
        ),
    ),
    EventKind.IRQ_ENTRY: ("irq=<other> name=<irq_name> handler=<rest>", "irq=<other>"),
    EventKind.IRQ_EXIT: ("irq=<other><rest>",),
    EventKind.SOFTIRQ_ENTRY: ("vec=<other><rest>",),
    EventKind.SOFTIRQ_EXIT: ("vec=<other><rest>",),
    EventKind.EXIT: ("comm=<comm> pid=<tid> prio=<prio><rest>",),
    EventKind.EXEC: ("filename=<path> pid=<tid> old_pid=<prio>",),
    EventKind.FREQUENCY: ("state=<other> cpu_id=<cpu>",),
}
"""Forms of older kernels, of trace-cmd, and of events that are rare."""
_KINDS: Final[Mapping[str, EventKind]] = {
    **{event: kind for event, (kind, _) in USUAL.items()},
    "sys_sched_yield": EventKind.YIELD,
    "sched_process_exec": EventKind.EXEC,
    "cpu_frequency": EventKind.FREQUENCY,
}
_FIELDS: Final = {
    "comm": "(?P<comm>.{0,16}?)",
    "other_comm": "(?P<other_comm>.{0,16}?)",
    "irq_name": "(?P<other_comm>.*?)",
    "path": "(?:.*/)?(?P<comm>[^/]{0,15})[^/]*",
    "tid": r"(?P<tid>-?\d+)",
    "other": r"(?P<other>-?\d+)",
    "arg": r"(?P<arg>\d+)",
    "cpu": r"(?P<cpu>\d+)",
    "state": r"(?P<state>\S+)",
    "prio": r"-?\d+",
    "rest": ".*",
}

MAX_ID: Final = 2**31 - 1
MAX_LINE: Final = 4096
"""Bytes; a longer line is not an event (a path in sched_process_exec is the longest there is)."""


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
    """Return the event of a line, of kind OTHER where strata ignores it; None for a line without one."""
    header = HEADER.fullmatch(line.lstrip(b" ")) if len(line) <= MAX_LINE else None
    if header is None:
        return None
    fraction = header["fraction"]
    time_ns = int(header["seconds"]) * 10**9 + int(fraction) * (1000 if len(fraction) == 6 else 1)
    cpu, tid = int(header["cpu"]), int(header["tid"] or -1)
    if time_ns >= 2**63 or max(cpu, tid) > MAX_ID:
        return None
    kind = _KINDS.get(header["event"].decode(), EventKind.OTHER)
    if kind is EventKind.YIELD and header["call"] != b" ->":
        return EventRow(time_ns, cpu, kind, tid)
    if kind in (EventKind.OTHER, EventKind.YIELD) or header["call"] in (b"(", b" ->"):
        return EventRow(time_ns, cpu, EventKind.OTHER)
    row = EventRow(time_ns, cpu, kind, -1 if kind is EventKind.FREQUENCY else tid)
    for pattern in _PATTERNS[kind]:
        if match := pattern.fullmatch(header["rest"]):
            row = row._replace(**_columns(match, names))
            return None if max(row.cpu, row.tid, row.other, row.arg) > MAX_ID else row
    return None


def _columns(match: re.Match[bytes], names: Names) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for column, text in match.groupdict().items():
        if column == "state":
            columns["arg"] = int(TaskState.of(text))
        else:
            columns[column] = names.index(text) if column.endswith("comm") else int(text)
    return columns


def _pattern(form: str) -> re.Pattern[bytes]:
    parts = re.split(r"<(\w+)>", form)
    text = "".join(_FIELDS[part] if i % 2 else re.escape(part) for i, part in enumerate(parts))
    return re.compile(rf"{text}\s*".encode(), re.DOTALL)


_PATTERNS: Final[Mapping[EventKind, tuple[re.Pattern[bytes], ...]]] = {
    kind: tuple(
        map(_pattern, (*(form for usual, form in USUAL.values() if usual is kind), *_OTHER_FORMS.get(kind, ())))
    )
    for kind in _KINDS.values()
}
