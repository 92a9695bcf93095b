"""Reads how long every thread ran and waited, again and again, and adds it up by job, rank and pool.

It costs one small file a thread and look. What is kept is bounded, however many threads there are.

References
----------
proc(5): /proc/PID/task/TID/schedstat: ns on a CPU, ns runnable without one, turns.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from strata.host.agent.jobs import JobIdentity, environment_of, identity_of, step_of
from strata.host.machine.cgroups import cgroup_of
from strata.host.machine.kernel import read_attribute
from strata.host.threads.observe import devices_of
from strata.host.threads.pools import POOLS, Pool, of_thread

MOST_THREADS: Final = 20_000
"""That are watched; 100 bytes each. What is beyond is counted as unwatched."""
MOST_SERIES: Final = 500
"""Of job, rank and pool; what is beyond is added up as `(others)`. Ended ones make room for new ones."""
ENDED: Final = 30
"""Looks for which a key without threads is kept: a minute at two seconds a look, so that it is scraped."""
AGAIN: Final = 30
"""Looks after which names, cgroups and accelerators are read again: a thread takes its name after it is born."""
BUSIEST: Final = 5
"""Processes that are named at a time."""
WAITERS: Final = 64
"""Ranks of which the thread that waited most is named at a time."""
FADES: Final = 0.8
"""What a look's waits still weigh a look later: the last ten seconds or so count, at two seconds a look."""
OTHERS: Final = "(others)"
_ASIDE: Final = frozenset(pool for pool, facts in POOLS.items() if facts.layer != "critical")
"""Pools whose waits a rank does not wait for at once."""

Key = tuple[str, str, str]
"""Job, rank, pool."""


@dataclass(slots=True)
class Times:
    """Seconds that the threads of a key ran, and waited for a CPU; how many there are now, and since when none."""

    ran_s: float = 0.0
    waited_s: float = 0.0
    threads: int = 0
    looks_without: int = 0


@dataclass(slots=True)
class WatchedProcess:
    """A process with its threads' last counts: tid to (ns run, ns waited, pool, ns waited lately).

    ran_ns: since the last look. longest_wait: the thread that waited most lately (ns a look, tid), of those that
    its job waits for.
    """

    pid: int
    identity: JobIdentity
    cgroup: str
    is_on_accelerator: bool = False
    seen: int = 0
    name: str = ""
    ran_ns: int = 0
    longest_wait: tuple[float, int] = (0.0, 0)
    threads: dict[int, tuple[int, int, str, float]] = field(default_factory=dict)


class ThreadWatch:
    """`look` takes one look; `times` is what was added up since the first.

    What a thread did before it was first seen is not counted; what it did in its last moments is lost with it.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root, self._proc = root, str(root / "proc")
        self._kernel: set[int] = set()
        self.processes: dict[int, WatchedProcess] = {}
        self.times: dict[Key, Times] = {}
        self.num_unwatched = 0
        self.has_schedstat = True
        self._looks = 0

    @property
    def num_threads(self) -> int:
        """Return how many threads are watched."""
        return sum(len(process.threads) for process in self.processes.values())

    def look(self) -> None:
        """Read all threads once."""
        pids = {int(name) for name in os.listdir(self._proc) if name.isdecimal()}
        self._kernel &= pids
        for gone in self.processes.keys() - pids:
            del self.processes[gone]
        for times in self.times.values():
            times.looks_without = 0 if times.threads else times.looks_without + 1
            times.threads = 0
        # What could not be watched before is no news when it can be.
        is_news = self._looks > 0 and not self.num_unwatched
        self.num_unwatched, num_threads, num_read = 0, 0, 0
        for pid in pids - self._kernel:
            room = MOST_THREADS - num_threads
            process = self.processes.get(pid)
            if room and (process is None or process.seen % AGAIN == 2):
                process = self._read(pid, process)
                if process is None:
                    continue
                self.processes[pid] = process
            try:
                tids = os.listdir(f"{self._proc}/{pid}/task")
            except OSError:
                continue
            self.num_unwatched += max(0, len(tids) - room)
            if process is None:
                continue
            process.seen += 1
            num_threads += min(len(tids), room)
            num_read += self._add(process, tids[:room], is_news=is_news)
        self.has_schedstat = bool(num_read) or not num_threads
        self._looks += 1

    def busiest(self, *, seconds: float) -> dict[tuple[str, ...], float]:
        """Return the processes that had most CPUs in the last look of so many seconds: job, pid and name."""
        first = sorted(self.processes.values(), key=lambda process: -process.ran_ns)[:BUSIEST]
        return {
            (process.identity.job, str(process.pid), _printable(process.name)): process.ran_ns / 1e9 / seconds
            for process in first
            if process.ran_ns > 0
        }

    def longest_waits(self, *, seconds: float) -> dict[tuple[str, ...], float]:
        """Return the thread of each rank that waited most lately: job, rank, tid and name; the share of time."""
        first: dict[tuple[str, str], tuple[float, int, int]] = {}
        for process in self.processes.values():
            key = process.identity.job, process.identity.rank
            if all(key) and process.longest_wait[0] > 0:
                first[key] = max(first.get(key, (0.0, 0, 0)), (*process.longest_wait, process.pid))
        longest = sorted(first.items(), key=lambda item: -item[1][0])[:WAITERS]
        return {
            (*key, str(tid), _printable(read_attribute(Path(self._proc) / f"{pid}/task/{tid}/comm"))): (
                waited_ns / 1e9 / seconds
            )
            for key, (waited_ns, tid, pid) in longest
        }

    def steps(self) -> dict[tuple[str, str], int]:
        """Return the last step of each job and rank that reports its steps."""
        steps: dict[tuple[str, str], int] = {}
        for process in self.processes.values():
            identity = process.identity
            if identity.progress and len(steps) < MOST_SERIES and (identity.job, identity.rank) not in steps:
                step = step_of(Path(self._proc) / str(process.pid), identity.progress)
                if step is not None:
                    steps[identity.job, identity.rank] = step
        return steps

    def _read(self, pid: int, before: WatchedProcess | None) -> WatchedProcess | None:
        folder = Path(self._proc) / str(pid)
        if before is None and (pages := read_attribute(folder / "statm").split()[:1]) in ([], ["0"]):
            if pages:  # a kernel thread has no memory of its own; without an answer it has just ended
                self._kernel.add(pid)
            return None
        cgroup = cgroup_of(read_attribute(folder / "cgroup"), self._root)
        identity = identity_of(environment_of(folder), cgroup)
        process = WatchedProcess(pid, identity, cgroup, name=read_attribute(folder / "comm"))
        if before is not None:
            # Not at first sight: most processes are gone before they open a device, and listing files costs.
            process.is_on_accelerator = bool(devices_of(folder))
            process.seen = before.seen
            process.threads = {tid: (run, wait, "", late) for tid, (run, wait, _, late) in before.threads.items()}
        return process

    def _add(self, process: WatchedProcess, tids: list[str], *, is_news: bool) -> int:
        before, num_read = process.threads, 0
        now: dict[int, tuple[int, int, str, float]] = {}
        process.ran_ns, process.longest_wait = 0, (0.0, 0)
        job, rank = process.identity.job, process.identity.rank
        for name in tids:
            folder = f"{self._proc}/{process.pid}/task/{name}"
            run_ns, wait_ns = _schedstat(folder)
            num_read += run_ns >= 0
            tid = int(name)
            was_run, was_wait, pool, late_ns = before.get(tid, (0, 0, "", 0.0))
            if 0 <= run_ns < was_run:  # its number is another thread's now
                was_run, was_wait, pool, late_ns = 0, 0, "", 0.0
            pool = pool or self._pool(process, tid, folder)
            is_counted = run_ns >= 0 and (is_news or tid in before)
            late_ns = FADES * late_ns + (1.0 - FADES) * (wait_ns - was_wait if is_counted else 0)
            if pool not in _ASIDE:
                process.longest_wait = max(process.longest_wait, (late_ns, tid))
            now[tid] = (run_ns, wait_ns, pool, late_ns) if run_ns >= 0 else (was_run, was_wait, pool, late_ns)
            times = self._times((job, rank, pool))
            times.threads += 1
            if is_counted:
                times.ran_s += (run_ns - was_run) / 1e9
                process.ran_ns += run_ns - was_run
                times.waited_s += (wait_ns - was_wait) / 1e9
        process.threads = now
        return num_read

    def _times(self, key: Key) -> Times:
        if key not in self.times and len(self.times) >= MOST_SERIES:
            others = OTHERS, "", ""
            ended = max(self.times.keys() - {others}, key=lambda known: self.times[known].looks_without)
            if self.times[ended].looks_without >= ENDED:
                del self.times[ended]
            else:
                key = others
        return self.times.setdefault(key, Times())

    def _pool(self, process: WatchedProcess, tid: int, folder: str) -> str:
        named = of_thread(read_attribute(Path(folder) / "comm"))
        if named is not None:
            return named[0]
        launch: Pool = "kernel-launch"
        return launch if tid == process.pid and process.is_on_accelerator else "none"


def _printable(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def _schedstat(folder: str) -> tuple[int, int]:
    """Return the ns a thread ran and waited; (-1, 0) where they are not counted, or it has ended."""
    try:
        descriptor = os.open(f"{folder}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1, 0
    try:
        run, wait, _ = os.read(descriptor, 100).split()
    except (OSError, ValueError):
        return -1, 0
    finally:
        os.close(descriptor)
    return int(run), int(wait)
