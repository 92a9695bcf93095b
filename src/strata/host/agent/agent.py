"""The loop: look, publish, and where the trigger says so record ten seconds and file a report."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Final

from strata.errors import UsageError
from strata.host.agent.metrics import HostAgentMetrics
from strata.host.agent.pmu import CacheMisses
from strata.host.agent.readings import read_machine, throttled_s
from strata.host.agent.trigger import Trigger
from strata.host.agent.watch import MOST_SERIES, ThreadWatch, WatchedProcess
from strata.tables import printable

RECORD_S: Final = 10
KEPT: Final = 10
"""Reports in the folder; the oldest go."""
SLOW_LOOKS: Final = 15
"""Looks between two readings of jobs' cgroups."""


class HostAgent:
    """Watches this machine. `tick` is one look; `record` is None where no trace is wanted."""

    def __init__(
        self,
        watch: ThreadWatch,
        metrics: HostAgentMetrics,
        misses: CacheMisses,
        *,
        trigger: Trigger | None = None,
        record: Callable[[str, int], bool] | None = None,
        root: Path = Path("/"),
    ) -> None:
        self._watch, self._metrics, self._misses = watch, metrics, misses
        self._trigger, self._record, self._root = trigger, record, root
        self._looks = 0
        self._looked_s = 0.0

    def tick(self, *, now_s: float) -> None:
        """Take one look, and a trace where it is time for one."""
        with self._metrics.registry.lock:
            self._look(now_s)
        if self._trigger is None or self._record is None:
            return
        job = self._trigger.ask(self._watch.times, now_s=now_s)
        if job is not None:
            result = "filed" if self._record(job, first_process(self._watch.processes, job)) else "failed"
            self._metrics.reports.labels(result).inc()

    def _look(self, now_s: float) -> None:
        watch, metrics = self._watch, self._metrics
        watch.look()
        metrics.looked_s, metrics.steps = now_s, watch.steps()
        metrics.reading, metrics.misses = read_machine(self._root), self._misses.read()
        if self._looks % SLOW_LOOKS == 0:
            metrics.throttled = self._throttled()
        seconds = max(now_s - self._looked_s, 1e-3)
        metrics.busiest = watch.busiest(seconds=seconds) if self._looks else {}
        metrics.waits = watch.longest_waits(seconds=seconds) if self._looks else {}
        self._looked_s = now_s
        self._looks += 1

    def _throttled(self) -> dict[str, float]:
        jobs = {
            process.cgroup: process.identity.job
            for process in self._watch.processes.values()
            if process.identity.job and process.cgroup
        }
        held: dict[str, float] = {}
        for group, seconds in throttled_s(list(jobs)[:MOST_SERIES], self._root).items():
            held[jobs[group]] = held.get(jobs[group], 0.0) + seconds
        return held


def first_process(processes: Mapping[int, WatchedProcess], job: str) -> int:
    """Return the process of a job that feeds an accelerator, of several the first; else its first."""
    own = [process for process in processes.values() if process.identity.job == job]
    return min(own, key=lambda process: (not process.is_on_accelerator, process.pid)).pid if own else 0


def recorder(folder: Path) -> Callable[[str, int], bool]:
    """Return what records a job for RECORD_S and files its report, in processes of its own, whose memory goes.

    Raises UsageError where nothing can be written into the folder now. If that comes later, a full disk say, the
    report is a failed one, and the agent goes on.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        message = f"--reports {folder}: cannot be written to: {error.strerror}"
        raise UsageError(message, hint="a folder of this machine that root may write to") from None

    def record(job: str, pid: int) -> bool:
        try:
            return filed(pid)
        except OSError as error:
            sys.stderr.write(f"no report of {printable(job) or 'what waited'}: {error}\n")
            return False

    def filed(pid: int) -> bool:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{pid}"
        trace = folder / f"{name}.txt.gz"
        about = ("--pid", str(pid)) if pid else ()
        if not _ran("record", "--seconds", str(RECORD_S), *about, "-o", str(trace), timeout_s=12 * RECORD_S):
            return False
        with (folder / f"{name}.json").open("xb") as report:
            is_filed = _ran("report", str(trace), "--top", "200", "-o", "json", timeout_s=60 * RECORD_S, to=report)
        forget(folder)
        return is_filed

    return record


def _ran(*words: str, timeout_s: int, to: IO[bytes] | int = subprocess.DEVNULL) -> bool:
    command = [sys.executable, "-m", "strata", "host", *words]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=to, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:  # it is killed; the agent goes on
        return False
    return done.returncode == 0


def forget(folder: Path, *, kept: int = KEPT) -> None:
    """Remove all but the latest reports, with their traces."""
    reports = sorted(folder.glob("*T*-*.json"), key=lambda path: path.name)
    reports = [path for path in reports if not path.name.endswith(".host.json")]
    for report in reports[:-kept]:
        for path in folder.glob(f"{report.stem}.*"):
            path.unlink(missing_ok=True)
