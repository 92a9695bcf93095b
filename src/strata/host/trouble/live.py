"""Trouble with a known culprit on the kernel that runs here: real processes, recorded by perf or tracefs.

Everything runs at `NICE`, so that what else runs on the machine hardly counts: trainer and culprit compete as
they would alone.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from strata.host.record import perf, tracefs, tracing
from strata.host.record.sink import sink
from strata.host.record.work import Work
from strata.host.trouble import acts
from strata.host.trouble.scenes import TRAINER, Trouble
from strata.host.trouble.score import Trial

SECONDS: Final = 2.0
NICE: Final = -15
"""28 times the weight of a usual process (sched_prio_to_weight of the kernel)."""
REAL: Final = tuple(trouble for trouble in Trouble if trouble is not Trouble.IRQ_LOAD)
"""Interrupts of a device cannot be made without the device: simulated only."""
_ACT: Final = {
    Trouble.CPU_HOGS: "hog",
    Trouble.FORK_STORM: "forks",
    Trouble.YIELD_STORM: "yields",
    Trouble.PIPE_STORM: "pipe",
    Trouble.PINNED_HOG: "hog",
}


def record_trial(trouble: Trouble, *, seed: int, trace: Path) -> Trial:
    """Make one trouble beside a trainer, record it into `trace`, and end all of it.

    Raises MissingPart where the scheduler cannot be traced.
    """
    rng = random.Random(f"{trouble} {seed}")
    cpus = sorted(os.sched_getaffinity(0))
    pin = rng.choice(cpus) if trouble is Trouble.PINNED_HOG else -1
    name = f"noise-{rng.randrange(10**6)}"
    count = {Trouble.QUIET: 0, Trouble.PINNED_HOG: 1}.get(trouble, len(cpus) * rng.choice((1, 2)) + 1)
    noise = [f"{_ACT[trouble]} {name} {pin}"] * count if count else []
    _record(Running([f"train {TRAINER} {pin}", *noise]), trace)
    return Trial(trouble, seed, frozenset({name} if count else ()))


class Running(Work):
    """Acts that run while they are recorded: from when the recorder is ready, so that it has CPUs to get ready."""

    def __init__(self, acts_: Sequence[str]) -> None:
        super().__init__(seconds=SECONDS)
        self._acts = acts_

    def start(self) -> None:
        """Start the acts, and return once they all run."""
        command = [sys.executable, "-S", "-E", acts.__file__, str(NICE), *self._acts]
        self.process = subprocess.Popen(
            command, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def wait(self) -> None:
        """Wait, and end the acts."""
        assert self.process is not None
        with self.process:  # closes its input at the end, which ends them all
            super().wait()


def _record(work: Work, trace: Path) -> None:
    folder = tracing.find()
    events, num_cpus = tracing.available(folder), os.cpu_count() or 1
    found = perf.find()
    with sink(trace) as out:
        if found is not None:
            perf.record(found, work, out, events=events, num_cpus=num_cpus, folder=trace.parent)
        else:
            tracefs.record(folder, work, out, events=events, num_cpus=num_cpus)
