"""Whose process it is: its command line, and the container, pod or batch job that its cgroup stands for.

References
----------
proc(5): /proc/PID/cmdline. Cgroup names: Kubernetes (kubepods, cri-containerd-ID.scope), Docker, Podman, Slurm's
cgroup/v2 plugin, systemd.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from strata.host.machine.kernel import read_attribute

LONGEST_COMMAND: Final = 200
"""Characters of a command line that are kept: its program and first arguments tell it apart."""
_POD: Final = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f_-]{27,28})")
_CONTAINER: Final = re.compile(r"(?:[/-])([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_SLURM: Final = re.compile(r"/job_(\d+)(?:/|$)")


@dataclass(frozen=True, slots=True)
class Process:
    """A process: its first thread's name, its command line, its cgroup and effective user."""

    pid: int
    ppid: int = 0
    name: str = ""
    command: str = ""
    cgroup: str = ""
    user: int = 0

    @property
    def job(self) -> str:
        """Return the pod, container, batch job or unit of its cgroup; "" for the root cgroup."""
        return job_of(self.cgroup)

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        return {name: getattr(self, name) for name in self.__slots__}

    def __str__(self) -> str:
        command = f": {self.command}" if self.command and self.command != self.name else ""
        where = f", in {self.job}" if self.job else ""
        return f"{self.name}, process {self.pid} of user {self.user}{command}{where}"


@dataclass(frozen=True)
class Census:
    """Processes that were seen, and the process of each thread; `taken_ns`: when, by the monotonic clock."""

    processes: Mapping[int, Process] = field(default_factory=dict)
    pids: Mapping[int, int] = field(default_factory=dict)
    taken_ns: Mapping[int, int] = field(default_factory=dict)

    def tree(self, pid: int) -> frozenset[int]:
        """Return a process and all that descend from it."""
        children: dict[int, list[int]] = {}
        for process in self.processes.values():
            children.setdefault(process.ppid, []).append(process.pid)
        members, open_pids = set(), [pid]
        while open_pids:
            if (member := open_pids.pop()) not in members:
                members.add(member)
                open_pids += children.get(member, ())
        return frozenset(members)


def job_of(cgroup: str) -> str:
    """Return the pod, container, batch job or unit that a cgroup stands for, in words; "" for the root."""
    if match := _POD.search(cgroup):
        return f"pod {match[1].replace('_', '-')}"
    if match := _CONTAINER.search(cgroup):
        return f"container {match[1][:12]}"
    if match := _SLURM.search(cgroup):
        return f"Slurm job {match[1]}"
    return cgroup.rstrip("/")


def is_contained(cgroup: str) -> bool:
    """Return whether a cgroup is that of a pod, a container or a batch job: whose root is not this machine's."""
    return job_of(cgroup) != cgroup.rstrip("/")


def command_of(folder: Path) -> str:
    """Return a process's command line, cut; "" where it has none or it is hidden."""
    words = read_attribute(folder / "cmdline").split("\0")
    text = " ".join(word for word in words if word)
    return text if len(text) <= LONGEST_COMMAND else f"{text[: LONGEST_COMMAND - 3]}..."


def merged(parts: Iterable[tuple[int, Iterable[Process], Mapping[int, int]]]) -> Census:
    """Return one census of several looks: when each was, its processes, and the process of each thread.

    A process is what it was last, as a shell that became `python`; a thread is of whom it was first.
    """
    processes: dict[int, Process] = {}
    pids: dict[int, int] = {}
    taken_ns: dict[int, int] = {}
    for at_ns, seen, threads in parts:
        for process in seen:
            processes[process.pid] = process
        for tid, pid in threads.items():
            if tid not in pids:
                pids[tid], taken_ns[tid] = pid, at_ns
    return Census(processes, pids, taken_ns)
