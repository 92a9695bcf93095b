"""Which numbers the kernel's traces give threads that have others here, as in a container with its own.

Nothing in a container's /proc says them. But to tell where a thread sleeps (`/proc/PID/task/TID/syscall`), the
kernel waits for it, and records that with the number that traces have: behind a mark of ours with its number here,
in a buffer of our own. A thread that runs is not waited for: one asks again. A command tells its own as it starts.

References
----------
Linux kernel/sched/core.c: wait_task_inactive(). Linux Documentation/trace/ftrace.rst: trace_marker.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from strata.host.machine.kernel import read_attribute
from strata.host.record.tracefs import has, instance, write

EVENT: Final = "sched:sched_wait_task"
MOST_AT_ONCE: Final = 256
"""Threads a look: some 100 bytes each in the buffer. Of more, the next look has the next."""
_LINE: Final = re.compile(
    r"^ *.{1,16}-(?P<who>\d+) +\[\d+\] .*?: (?:tracing_mark_write: (?P<mark>\d+|I am \d+)"
    r"|sched_wait_task: comm=.{0,16} pid=(?P<tid>\d+) prio=-?\d+)$"
)

_SWITCH: Final = re.compile(
    rb" \d+/(\d+) +\[\d+\] +[\d.]+: +sched:sched_switch: prev_comm=.{0,16}? prev_pid=([1-9]\d*) prev_prio="
)


class TraceNumbers:
    """`look` finds out numbers; `known` has them: by number here, the one in traces."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder, self._root = folder, root
        self._marker = os.open(folder / "trace_marker", os.O_WRONLY | os.O_CLOEXEC)
        self.known: dict[int, int] = {}

    def close(self) -> None:
        """Let go of the buffer."""
        os.close(self._marker)

    def tell(self) -> None:
        """Tell the caller's own number: in a process that was just forked, before it becomes another program."""
        os.write(self._marker, f"I am {os.getpid()}".encode())

    def read(self, lines: bytes) -> None:
        """Take what perf's text says: a line has the thread's process and number here before the trace's."""
        for here, number in _SWITCH.findall(lines):
            if here != b"0":  # of a thread outside, and of no thread
                self.known.setdefault(int(here), int(number))

    def look(self, threads: Iterable[tuple[int, int]]) -> None:
        """Ask for the numbers of threads, (process, thread), that are not known yet; MOST_AT_ONCE, the newest."""
        unknown = [(pid, tid) for pid, tid in threads if tid not in self.known][-MOST_AT_ONCE:]
        for pid, tid in unknown:
            os.write(self._marker, str(tid).encode())
            read_attribute(self._root / f"proc/{pid}/task/{tid}/syscall")
        if unknown:
            text = (self._folder / "trace").read_text(encoding="utf-8", errors="backslashreplace")
            write(self._folder / "trace", "")
            self.known |= numbers_in(text)


def numbers_in(text: str) -> dict[int, int]:
    """Return the numbers that a buffer tells, by the number here.

    A thread may have any name, also one with line breaks: what is not whole says nothing of the thread asked for.
    """
    numbers: dict[int, int] = {}
    recorded: dict[int, set[int]] = {}
    here, reader = 0, 0
    for line in text.split("\n"):
        if line.startswith("#") or not line:
            continue
        match = _LINE.match(line)
        if match is None:
            recorded.setdefault(here, set()).add(0)
        elif mark := match["mark"]:
            if mark.startswith("I am "):
                numbers[int(mark[5:])] = int(match["who"])
            else:
                here, reader = int(mark), int(match["who"])
        elif int(match["who"]) == reader:
            recorded.setdefault(here, set()).add(int(match["tid"]))
    return numbers | {tid: number for tid, (number, *more) in recorded.items() if tid and number and not more}


@contextmanager
def trace_numbers(tracing: Path, root: Path = Path("/")) -> Iterator[TraceNumbers | None]:
    """Yield what asks a kernel with its tracing at `tracing`; None where it does not record what is needed."""
    if not has(tracing, EVENT):
        yield None
        return
    with instance(tracing, purpose="numbers-") as folder:
        write(folder / "trace_clock", "mono")
        write(folder / "buffer_size_kb", "256")
        write(folder / "events" / EVENT.replace(":", "/") / "enable", "1")
        numbers = TraceNumbers(folder, root)
        numbers.tell()
        try:
            yield numbers
        finally:
            numbers.close()
            write(folder / "events/enable", "0")
