"""Looks at which processes there are, again and again while a trace is recorded: a trace has threads only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from strata.errors import MissingPart
from strata.host.machine.cgroups import cgroup_of
from strata.host.machine.kernel import read_attribute, threads_in
from strata.host.threads.observe import status_of
from strata.host.threads.processes import Census, Process, command_of, merged

FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
"""The namespace whose numbers the kernel's traces have (PROC_PID_INIT_INO of linux/proc_ns.h)."""


class CensusTaker:
    """Collects what is new at each look: threads, processes, and those that became another program."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._seen: set[int] = set()
        self._known: dict[int, Process] = {}
        self._pids: dict[int, int] = {}
        self.looks: list[dict[str, Any]] = []

    def look(self) -> None:
        """Look once."""
        processes: list[dict[str, Any]] = []
        threads: dict[str, int] = {}
        for folder in (self._root / "proc").glob("[0-9]*"):
            pid = int(folder.name)
            new = [tid for task in threads_in(folder) if (tid := int(task.name)) not in self._seen]
            self._seen.update(new)
            threads |= {str(tid): pid for tid in new}
            self._pids |= dict.fromkeys(new, pid)
            if (process := read_process(folder)) is not None and process != self._known.get(pid):
                self._known[pid] = process
                processes.append(process.to_dict())
        self.looks.append({"taken_ns": time.monotonic_ns(), "processes": processes, "threads": threads})

    def threads_of(self, job: int | None, *, critical: Iterable[int] = ()) -> list[tuple[int, int]]:
        """Return what a report may be about, (process, thread): critical threads, the first of the job's."""
        tree = Census(self._known).tree(job) if job is not None else ()
        known = [(self._pids[tid], tid) for tid in critical if tid in self._pids]
        return [*known, *((pid, pid) for pid in sorted(tree))]

    def threads_in(self, job: int | None) -> list[tuple[int, int]]:
        """Return every thread of a job that was seen, (process, thread), the oldest first; None: everybody's."""
        tree = Census(self._known).tree(job) if job is not None else self._known
        return [(pid, tid) for tid, pid in self._pids.items() if pid in tree]


def read_process(folder: Path) -> Process | None:
    """Read a process's folder of /proc; None for a kernel thread, or one that has ended."""
    status = status_of(folder / "status")
    if not status or "VmSize" not in status:
        return None
    user = int(status.get("Uid", "0 0").split()[1])
    group = cgroup_of(read_attribute(folder / "cgroup"))
    return Process(int(folder.name), int(status["PPid"]), status["Name"], command_of(folder), group, user)


def census_of(looks: list[dict[str, Any]]) -> Census:
    """Read the looks of a snapshot's file. Raises KeyError, TypeError, ValueError."""
    return merged(
        (
            int(look["taken_ns"]),
            [Process(**process) for process in look["processes"]],
            {int(tid): int(pid) for tid, pid in look["threads"].items()},
        )
        for look in looks
    )


def numbers_are_the_traces() -> bool:
    """Return whether process numbers here are those in the kernel's traces, as in a container they are not.

    Raises MissingPart where /proc has the numbers of yet another namespace, so that nobody's are known.
    """
    try:
        if Path("/proc/self").readlink().name != str(os.getpid()):
            raise MissingPart(
                "/proc is that of another namespace of processes: its numbers are not ours",
                hint="mount -t proc proc /proc in this one (unshare --mount-proc), or nsenter to the other",
            )
        return str(Path("/proc/self/ns/pid").readlink()) == FIRST_PID_NAMESPACE
    except OSError:
        return True
