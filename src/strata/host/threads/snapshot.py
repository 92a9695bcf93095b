"""The threads of a machine at one moment, as plain data: names, cgroups, behaviour, and who holds accelerators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread of a user process. Counters are since it started.

    process: the name of its group's leader. num_runs: turns on a CPU; num_wakeups: times it gave the CPU up
    itself; num_preempted: times it was taken from it. Times are None where the kernel does not count them.
    start_ticks tells two threads of one number apart. user: its effective user id.
    """

    tid: int
    pid: int
    ppid: int
    name: str
    process: str
    cgroup: str = ""
    start_ticks: int = 0
    age_s: float = 0.0
    run_s: float | None = None
    wait_s: float | None = None
    num_runs: int = 0
    num_wakeups: int = 0
    num_preempted: int = 0
    nice: int = 0
    cpus: tuple[int, ...] = ()
    user: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """Return what tells it from all others, also of the same number."""
        return self.tid, self.start_ticks

    @property
    def is_leader(self) -> bool:
        """Return whether it is its process's first thread."""
        return self.tid == self.pid

    @property
    def run_length_s(self) -> float | None:
        """Return how long it runs at a time, on average; None before its first turn."""
        return self.run_s / self.num_runs if self.run_s is not None and self.num_runs else None

    @property
    def wakeups_per_s(self) -> float:
        """Return how often it waits for something, per second of its life."""
        return self.num_wakeups / self.age_s if self.age_s > 0 else 0.0

    @property
    def busy(self) -> float:
        """Return the share of its life it was running."""
        return min(1.0, self.run_s / self.age_s) if self.run_s is not None and self.age_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """An accelerator: its number, PCI address and device file, the NUMA node it hangs off (None: not known).

    pids: processes that compute on it, as its driver says; empty also where no driver was asked.
    """

    index: int
    address: str = ""
    file: str = ""
    node: int | None = None
    cpus: tuple[int, ...] = ()
    pids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Snapshot:
    """All threads with what is known about their processes.

    devices: accelerator files a process holds open. num_hidden: processes whose files could not be looked at.
    """

    threads: tuple[Thread, ...]
    devices: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    num_hidden: int = 0

    @cached_property
    def processes(self) -> Mapping[int, tuple[Thread, ...]]:
        """Return the threads of each process."""
        by_pid: dict[int, list[Thread]] = {}
        for thread in self.threads:
            by_pid.setdefault(thread.pid, []).append(thread)
        return {pid: tuple(members) for pid, members in by_pid.items()}

    @cached_property
    def is_listed(self) -> bool:
        """Return whether a driver lists processes of here, so that those it does not list compute on none.

        Inside a container it lists none, or by numbers that mean nothing here.
        """
        return any(pid in self.processes for gpu in self.gpus for pid in gpu.pids)

    @cached_property
    def parents(self) -> Mapping[int, int]:
        """Return each process's parent."""
        return {thread.pid: thread.ppid for thread in self.threads}

    def ancestors(self, pid: int) -> tuple[int, ...]:
        """Return a process's parent, its parent's, and so on."""
        ancestors: list[int] = []
        while (pid := self.parents.get(pid, 0)) and pid not in ancestors:
            ancestors.append(pid)
        return tuple(ancestors)

    def tree(self, pid: int) -> frozenset[int]:
        """Return a process and all that descend from it."""
        return frozenset(process for process in self.processes if process == pid or pid in self.ancestors(process))
