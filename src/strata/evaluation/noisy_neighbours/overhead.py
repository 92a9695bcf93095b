"""What recording costs: CPU time of the recorder, and by how much the recorded work gets slower, an event.

Two processes that switch all the time are run alone, recorded, and not run while nothing but the rest of the
machine is recorded: so what a recorder costs once is told from what an event costs. All of it is CPU time, which
a busy machine hardly changes.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from strata.errors import MissingPart, StrataError
from strata.evaluation.noisy_neighbours import pipes
from strata.evaluation.noisy_neighbours.turns import Patience, turns
from strata.host.record import perf, tracefs
from strata.host.record.sink import sink
from strata.host.record.work import RecordedCommand
from strata.host.trace.read import read_trace

ROUNDS: Final = 30_000
"""Of the work: 120,000 events, which fit into a recorder's buffers whole, so that none is lost."""
NAME: Final = "strata-pipes"
_PARTS: Final = ("plain", "recorded", "empty")


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """CPU times of one run [s], and events: all that were recorded, those of the work, those that were lost."""

    work_s: float
    recorder_s: float = 0.0
    events: int = 0
    work_events: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class RecordingCost:
    """What recording costs by one recorder [CPU s], medians over some rounds; `reason`: why it is not known.

    recorder, slowdown: a million events; once: for starting and ending it, whatever is recorded.
    """

    how: str
    recorder_s_per_mevents: float | None = None
    slowdown_s_per_mevents: float | None = None
    once_s: float | None = None
    events: int = 0
    lost: int = 0
    reason: str = ""

    @property
    def cpu_s_per_mevents(self) -> float | None:
        """Return both of them together."""
        if self.recorder_s_per_mevents is None or self.slowdown_s_per_mevents is None:
            return None
        return self.recorder_s_per_mevents + self.slowdown_s_per_mevents

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        return {
            "how": self.how,
            "cpu_s_per_mevents": self.cpu_s_per_mevents,
            "recorder_cpu_s_per_mevents": self.recorder_s_per_mevents,
            "slowdown_cpu_s_per_mevents": self.slowdown_s_per_mevents,
            "once_cpu_s": self.once_s,
            "events": self.events,
            "lost": self.lost,
            "trust": None if self.reason else "measured",
            "reason": self.reason,
        }


def cost_of(how: str, rounds: Sequence[dict[str, RecordedRun]]) -> RecordingCost:
    """Return what some rounds say; each has a run `plain`, one `recorded` and one `empty`."""
    slopes, slowdowns = [], []
    for parts in rounds:
        plain, full, empty = (parts[part] for part in _PARTS)
        slopes.append((full.recorder_s - empty.recorder_s) / max(full.events - empty.events, 1))
        slowdowns.append((full.work_s - plain.work_s) / max(full.work_events, 1))
    return RecordingCost(
        how,
        1e6 * statistics.median(slopes),
        1e6 * statistics.median(slowdowns),
        statistics.median(parts["empty"].recorder_s for parts in rounds),
        sum(parts["recorded"].events for parts in rounds),
        sum(parts["recorded"].lost for parts in rounds),
    )


def measure(
    rounds: int, *, patience: Patience, advance: Callable[[float], None] = lambda _done: None
) -> tuple[RecordingCost, ...]:
    """Return the cost of perf and of the kernel's own tracing, the one that `host record` takes first.

    Where tracing is not to be had the only entry says why.
    """
    try:
        folder = tracefs.find()
    except MissingPart as error:
        return (RecordingCost("none", reason=str(error)),)
    hows = (*(["perf"] if perf.find() else []), "tracefs")
    runs: dict[str, list[dict[str, RecordedRun]]] = {how: [] for how in hows}
    reasons: dict[str, str] = {}
    work = [(how, part) for how in hows for part in _PARTS]
    names = [f"{how} {part}" for how, part in work]
    current: dict[str, RecordedRun] = {}
    with patience:
        for done, name in enumerate(turns(names, 0 if patience.is_over else rounds)):
            how, _, part = name.partition(" ")
            if how not in reasons:
                try:
                    current[part] = _run(how, part, folder)
                except StrataError as error:
                    reasons[how] = str(error)
                if len(current) == len(_PARTS):
                    runs[how].append(current)
                    current = {}
            advance((done + 1) / (rounds * len(names)))
    return tuple(
        cost_of(how, runs[how]) if runs[how] else RecordingCost(how, reason=reasons.get(how, "not tried"))
        for how in hows
    )


class _Pipes(RecordedCommand):
    """The work; `cpu_s`: what it says it used, `all_s`: with the start of its interpreter."""

    def __init__(self, rounds: int) -> None:
        super().__init__(seconds=None)
        self._rounds = rounds
        self.cpu_s = self.all_s = 0.0

    def start(self) -> None:
        cpu = max(os.sched_getaffinity(0))
        command = [sys.executable, "-S", "-E", pipes.__file__, NAME, str(self._rounds), str(cpu)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)

    def wait(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            self.cpu_s = float(stdout.read())
        _, status, used = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.all_s = used.ru_utime + used.ru_stime


def _run(how: str, part: str, folder: Path) -> RecordedRun:
    work = _Pipes(0 if part == "empty" else ROUNDS)
    if part == "plain":
        work.start()
        work.wait()
        return RecordedRun(work.cpu_s)
    with tempfile.TemporaryDirectory() as scratch:
        trace = Path(scratch) / "trace.txt"
        before_s = _used_s()
        record(how, work, trace, folder)
        used_s = _used_s() - before_s - work.all_s
        read = read_trace(trace)
    events = read.events
    ours = [index for index, name in enumerate(read.names.raw) if name == NAME.encode()]
    is_ours = np.isin(events.comm, ours) | np.isin(events.other_comm, ours)
    return RecordedRun(work.cpu_s, used_s, read.num_events, int(np.sum(is_ours)), read.lost)


def record(how: str, work: RecordedCommand, trace: Path, folder: Path) -> None:
    """Record by perf, or by the kernel alone in `folder`, while `work` lasts. Raises MissingPart, StrataError."""
    events, num_cpus = tracefs.available(folder), os.cpu_count() or 1
    with sink(trace) as out:
        if how == "perf" and (program := perf.find()) is not None:
            perf.record(program, work, out, events=events, num_cpus=num_cpus, folder=trace.parent)
        else:
            tracefs.record(folder, work, out, events=events, num_cpus=num_cpus)


def _used_s() -> float:
    """Return the CPU time of this process and of its children that ended."""
    some = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in some)
