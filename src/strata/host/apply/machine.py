"""This machine as steps see it: what is there now, and how to change it. The one place of `apply` that acts."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from strata.errors import MissingPart
from strata.fleet.local import cpu_list
from strata.host.machine.cpus import show
from strata.host.machine.kernel import stat_fields, threads_in
from strata.host.policy.step import Act, Step

CGROUPS: Final = "/sys/fs/cgroup"
RESCTRL: Final = "/sys/fs/resctrl"
SCHEDULERS: Final = {
    "OTHER": os.SCHED_OTHER,
    "FIFO": os.SCHED_FIFO,
    "RR": os.SCHED_RR,
    "BATCH": os.SCHED_BATCH,
    "IDLE": os.SCHED_IDLE,
    "EXT": 7,
}
"""Policies of sched_setscheduler(2)."""
RESET: Final = "reset-on-fork"
"""Behind a nice value: what the thread starts begins with 0 (SCHED_RESET_ON_FORK of sched(7))."""
_MIGRATE_PAGES: Final = {"x86_64": 256, "aarch64": 238}
"""Numbers of the system call, for which C libraries have no function."""


class ThreadGone(Exception):
    """The thread has ended, its number is another's now, or the file is not there any more."""


@dataclass(frozen=True, slots=True)
class Born:
    """A thread (/proc/PID/task/TID), its start in ticks since boot, its process and those it descends from."""

    path: str
    start_ticks: int
    line: frozenset[str]


@dataclass(frozen=True, slots=True)
class KernelFiles:
    """The kernel's files below a root; threads are always those of this machine."""

    root: Path = Path("/")

    def boot(self) -> str:
        """Return what tells this boot from others; what kernels were told does not outlive one."""
        return self._text("/proc/sys/kernel/random/boot_id").strip()

    def check(self, step: Step) -> Step:
        """Return a step with the start of its thread. Raises Gone where that is not the one that was meant."""
        if step.act in ("write", "mkdir"):
            return step
        folder = f"/proc/{step.value}" if step.act == "attach" else step.path
        fields = stat_fields(self._at(f"{folder}/stat"))
        if not fields:
            raise ThreadGone("it is not there any more")
        start_ticks = int(fields[19])
        if step.start_ticks not in (0, start_ticks):
            raise ThreadGone("its number belongs to another thread now")
        return replace(step, start_ticks=start_ticks)

    def read(self, act: Act, path: str, value: str) -> str:
        """Return what a step would change: text, `there` for a folder, the list that has the thread.

        Raises Gone for what is not there, and OSError.
        """
        if act == "mkdir":
            return "there" if self._at(path).is_dir() else ""
        if act == "attach":
            return self._list_of(path, value)
        if act == "migrate":
            return ""
        try:
            if act == "nice":
                return _nice(_number(path))
            if act == "affinity":
                return show(os.sched_getaffinity(_number(path)))
            if act == "scheduler":
                return _scheduler(_number(path))
        except ProcessLookupError:
            raise ThreadGone("the thread has ended") from None
        return self._text(path)

    def before(self, act: Act, path: str, value: str) -> str:
        """Return what undoing a step has to bring back: what `read` says, but for an affinity nobody chose.

        A thread without one may use what its cpuset gives. Steps before may have made that less, and it would keep
        to that when they are undone: it gets all CPUs back instead, of which the kernel takes its cpuset's.
        """
        now = self.read(act, path, value)
        if act != "affinity" or cpu_list(now) != cpu_list(self._cpuset(str(_number(path)))):
            return now
        return self._text("/sys/devices/system/cpu/online").strip()

    def set(self, act: Act, path: str, value: str) -> None:
        """Change one thing. Raises Gone for what is not there, and OSError."""
        try:
            if act == "mkdir":
                self._at(path).mkdir()
            elif act == "nice":
                _set_nice(_number(path), value)
            elif act == "affinity":
                os.sched_setaffinity(_number(path), cpu_list(value))
            elif act == "scheduler":
                name, _, priority = value.partition(" ")
                os.sched_setscheduler(_number(path), SCHEDULERS[name], os.sched_param(int(priority)))
            elif act == "migrate":
                _migrate(_number(path), int(value), [int(node.name[4:]) for node in self._nodes()])
            else:
                # Unbuffered and whole: a kernel file takes one write as one request.
                with self._at(path).open("wb", buffering=0) as stream:
                    stream.write(value.encode())
        except (ProcessLookupError, FileNotFoundError):
            raise ThreadGone("it is not there any more") from None

    def now_ticks(self) -> int:
        """Return the time that threads' starts are counted in, since boot."""
        return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))

    def born(self, *, since_ticks: int) -> tuple[Born, ...]:
        """Return the threads that have started since, with the processes they descend from."""
        folders = {folder.name: folder for folder in self._at("/proc").glob("[0-9]*")}
        parents = {pid: fields[1] for pid, folder in folders.items() if (fields := stat_fields(folder / "stat"))}
        started = []
        for pid, folder in folders.items():
            for task in threads_in(folder):
                fields = stat_fields(task / "stat")
                if fields and int(fields[19]) >= since_ticks:
                    started.append(Born(f"/proc/{pid}/task/{task.name}", int(fields[19]), _line(pid, parents)))
        return tuple(sorted(started, key=lambda born: born.path))

    def remove(self, path: str) -> None:
        """Remove a cgroup or a resctrl group; threads that were born in it go to the one above."""
        folder = self._at(path)
        if path.startswith(CGROUPS):
            above = folder.parent / "cgroup.threads"
            for tid in self._text(f"{path}/cgroup.threads").split():
                try:
                    above.write_text(tid)
                except ProcessLookupError:  # it has just ended
                    continue
        folder.rmdir()

    def _nodes(self) -> list[Path]:
        return sorted(self._at("/sys/devices/system/node").glob("node[0-9]*"))

    def _list_of(self, path: str, tid: str) -> str:
        if path.startswith(RESCTRL):
            groups = sorted(self._at(RESCTRL).glob("*/tasks"))
            group_file = next((group for group in groups if tid in group.read_text().split()), None)
            return f"{RESCTRL}/{group_file.parent.name}/tasks" if group_file is not None else f"{RESCTRL}/tasks"
        lines = [line.split(":", 2) for line in self._text(f"/proc/{tid}/cgroup").splitlines()]
        group = next((line[2] for line in lines if len(line) == 3 and line[0] == "0"), "/")
        return f"{CGROUPS}{group.rstrip('/')}/cgroup.threads"

    def _cpuset(self, tid: str) -> str:
        """Return the CPUs its cgroup gives a thread; "" where no cgroup says."""
        for folder in self._at(self._list_of("", tid)).parents:
            if (file := folder / "cpuset.cpus.effective").exists():
                return file.read_text(encoding="ascii").strip()
        return ""

    def _at(self, path: str) -> Path:
        return self.root / path.removeprefix("/")

    def _text(self, path: str) -> str:
        try:
            return self._at(path).read_text(encoding="utf-8", errors="backslashreplace")
        except (FileNotFoundError, ProcessLookupError):
            raise ThreadGone("it is not there any more") from None


def _line(pid: str, parents: Mapping[str, str]) -> frozenset[str]:
    """Return a process and all it descends from."""
    line: set[str] = set()
    while pid in parents and pid not in line:
        line.add(pid)
        pid = parents[pid]
    return frozenset(line)


def _number(path: str) -> int:
    return int(path.rpartition("/")[2])


def for_good(step: Step) -> str:
    """Return what is set for a step: what a thread starts does not inherit that it was put forward."""
    return f"{step.value} {RESET}" if step.act == "nice" and step.value.startswith("-") else step.value


def _nice(tid: int) -> str:
    nice = str(os.getpriority(os.PRIO_PROCESS, tid))
    return f"{nice} {RESET}" if os.sched_getscheduler(tid) & os.SCHED_RESET_ON_FORK else nice


def _set_nice(tid: int, value: str) -> None:
    """Set a nice value, and whether children begin with 0; a crash between both is seen by `_nice`."""
    nice, _, reset = value.partition(" ")
    now = os.sched_getscheduler(tid)
    policy = now & ~os.SCHED_RESET_ON_FORK
    # Where nothing changes nothing is set: to take the flag back needs CAP_SYS_NICE.
    if reset and now == policy and policy in (os.SCHED_OTHER, os.SCHED_BATCH):
        os.sched_setscheduler(tid, policy | os.SCHED_RESET_ON_FORK, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, tid, int(nice))
    if not reset and now != policy and policy in (os.SCHED_OTHER, os.SCHED_BATCH):
        os.sched_setscheduler(tid, policy, os.sched_param(0))


def _scheduler(tid: int) -> str:
    """Return a thread's policy and real-time priority. Raises OSError for one that could not be set again."""
    policy = os.sched_getscheduler(tid) & ~os.SCHED_RESET_ON_FORK
    name = next((name for name, number in SCHEDULERS.items() if number == policy), None)
    if name is None:
        raise OSError(errno.EINVAL, "its policy, deadline, is set in other ways")
    return f"{name} {os.sched_getparam(tid).sched_priority}"


def _migrate(pid: int, node: int, nodes: list[int]) -> None:
    """Move a process's pages on all other nodes to one node: migrate_pages(2)."""
    number = _MIGRATE_PAGES.get(platform.machine())
    if number is None:
        raise MissingPart(f"pages cannot be moved on {platform.machine()}: its system call is not known")
    words = (max([*nodes, node]) // 64) + 1
    old, new = (ctypes.c_ulong * words)(), (ctypes.c_ulong * words)()
    for node_folder in nodes:
        if node_folder != node:
            old[node_folder // 64] |= 1 << node_folder % 64
    new[node // 64] |= 1 << node % 64
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, pid, ctypes.c_ulong(words * 64 + 1), old, new) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
