"""Injected faults with a known culprit on the kernel that runs here: real processes, recorded by perf or tracefs.

Everything runs at `NICE`, so that what else runs on the machine hardly counts: trainer and culprit compete as
they would alone.
"""

from __future__ import annotations

import fcntl
import math
import os
import random
import re
import string
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from strata.errors import MissingPart
from strata.evaluation.fault_injection import workloads
from strata.evaluation.fault_injection.scenarios import InjectedFault
from strata.evaluation.fault_injection.score import Trial
from strata.host.record import perf, tracefs
from strata.host.record.sink import sink
from strata.host.record.work import RecordedCommand

SECONDS: Final = 2.0
MOST_CPUS: Final = 4
"""Of those that we may use, the last: storms on all of a large machine would be more than a recorder follows."""
SETTLE_S: Final = 0.3
"""From a trainer's first event: until then threads look for CPUs, and a session's weight is spread over these."""
NICE: Final = -20
"""87 times the weight of a usual process (sched_prio_to_weight of the kernel): kernel priority 100."""
_ACT: Final = {
    InjectedFault.CPU_HOGS: "hog",
    InjectedFault.FORK_STORM: "forks",
    InjectedFault.YIELD_STORM: "yields",
    InjectedFault.PIPE_STORM: "pipe",
    InjectedFault.PINNED_HOG: "hog",
    InjectedFault.IRQ_LOAD: "flood",
}
_ON_ONE_CPU: Final = (InjectedFault.PINNED_HOG, InjectedFault.IRQ_LOAD)
"""A fault for one CPU, on which the trainer stays."""


_TIME: Final = re.compile(rb"\s(\d+\.\d{6,9}): ")


class FaultMissing(MissingPart):
    """A fault that cannot be made here."""


def record_trial(fault: InjectedFault, *, seed: int, trace: Path) -> Trial:
    """Make one fault beside a trainer, record it into `trace`, and end all of it.

    Raises MissingPart where the scheduler cannot be traced, FaultMissing where the fault cannot be made.
    """
    rng = random.Random(f"{fault} {seed}")
    cpus = sorted(os.sched_getaffinity(0))[-MOST_CPUS:]
    pin = rng.choice(cpus) if fault in _ON_ONE_CPU else -1
    # Names of their own, so that trials at the same time do not take each other's threads for theirs.
    own = "".join(random.Random(f"{fault} {seed} {os.getpid()}").choices(string.ascii_lowercase, k=6))
    name, trainer = f"noise-{own}", f"trainer_{own}"
    # Who yields gives way to whoever wakes: three on two CPUs cost a trainer 6 % (measured), where a warning is
    # from 5 % on; five cost it 10 to 14 %. Each other fault costs it 20 % and more.
    each = rng.choice((1, 2)) * (2 if fault is InjectedFault.YIELD_STORM else 1)
    count = 0 if fault is InjectedFault.QUIET else 1 if pin >= 0 else len(cpus) * each + 1
    work = RunningFaults(cpus, [f"train {trainer} {pin}", *[f"{_ACT.get(fault)} {name} {pin}"] * count])
    with _alone():
        record(work, trace)
    if work.problem:
        raise FaultMissing(work.problem, hint="as root, outside a container, on two CPUs or more")
    injected = {InjectedFault.QUIET: (), InjectedFault.IRQ_LOAD: ("softirq NET_RX", f"ksoftirqd/{pin}")}.get(
        fault, (name,)
    )
    settle(trace, trainer)
    return Trial(fault, seed, frozenset(injected), trainer, work.steal)


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until no one else on this machine injects faults: all lock the tracing folder, of which it has one."""
    folder = os.open(tracefs.find(), os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def settle(trace: Path, trainer: str) -> None:
    """Leave out the start of a trace: all before `SETTLE_S` after a thread was first named, but what was lost."""
    lines = trace.read_bytes().splitlines(keepends=True)
    name = trainer.encode()
    until_s, skipped = math.inf, []
    for kept, line in enumerate(lines):
        at = _TIME.search(line)
        if at is None:
            skipped.append(line)  # how many events were lost
        elif until_s == math.inf and name in line:
            until_s = float(at[1]) + SETTLE_S
        elif float(at[1]) >= until_s:
            trace.write_bytes(b"".join([*skipped, *lines[kept:]]))
            return


class RunningFaults(RecordedCommand):
    """Acts that run while they are recorded: from when the recorder is ready, so that it has CPUs to get ready."""

    def __init__(self, cpus: Sequence[int], requested: Sequence[str]) -> None:
        super().__init__(seconds=workloads.LONGEST_S)
        self._cpus = cpus
        self._workloads = requested
        self.problem = ""

    def start(self) -> None:
        """Start the acts, and return once they all run."""
        command = [sys.executable, "-S", "-E", workloads.__file__, str(NICE), *self._workloads]
        ours = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self._cpus)  # which they inherit
        try:
            self.process = subprocess.Popen(
                command, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        finally:
            os.sched_setaffinity(0, ours)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{SECONDS}\n".encode())
        self.process.stdin.flush()
        self.process.stdout.readline()

    def wait(self) -> None:
        """Wait until they end, or end them. `problem` is then what one of them had to say."""
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self.process:
            super().wait()
            self.process.stdin.close()
            self.problem = self.process.stdout.read().decode().strip()


def record(work: RecordedCommand, trace: Path) -> None:
    """Record some work into `trace` by what is here. Raises MissingPart where the scheduler cannot be traced."""
    folder = tracefs.find()
    events, num_cpus = tracefs.available(folder), os.cpu_count() or 1
    program = perf.find()
    with sink(trace) as out:
        if program is not None:
            perf.record(program, work, out, events=events, num_cpus=num_cpus, folder=trace.parent)
        else:
            tracefs.record(folder, work, out, events=events, num_cpus=num_cpus)
