"""A trainer and its neighbours as real processes, under a policy that is applied and undone as a user's would be.

They share two CPUs, however many there are, and end with their session.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from strata.errors import Infeasible, MissingPart, StrataError
from strata.evaluation.fault_injection import workloads as acts
from strata.evaluation.noisy_neighbours.policies import NoiseScenario
from strata.host.apply.act import apply
from strata.host.apply.journal import folder_of, opened
from strata.host.apply.machine import KernelFiles
from strata.host.apply.undo import undo
from strata.host.machine import cpus, kernel
from strata.host.policy.step import Step
from strata.host.threads.observe import threads_of

SETTLE_S: Final = 0.1
"""From the start of the acts to the first look: they find their CPUs."""


class TooSlow(Exception):
    """The acts had ended before they were looked at."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of the trainer: its waits for a CPU [s], and how often it slept. And of the CPUs [s]:

    how long they were busy, and how long of that with us.
    """

    wait_s: float
    rounds: int
    busy_s: float
    ours_s: float


def some_cpus() -> tuple[int, ...]:
    """Return the CPUs of a session: the last two that we may use, or the only one."""
    return tuple(sorted(os.sched_getaffinity(0))[-2:])


@contextmanager
def running(trainer: str, noise: Sequence[str], *, on: Sequence[int]) -> Iterator[NoiseScenario]:
    """Run acts (see `fault.acts`) on some CPUs; yields them once they have settled."""
    # Inherited, so that nobody starts elsewhere.
    ours = os.sched_getaffinity(0)
    command = [sys.executable, "-S", "-E", acts.__file__, "0", trainer, *noise]
    os.sched_setaffinity(0, on)
    try:
        process = subprocess.Popen(command, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    finally:
        os.sched_setaffinity(0, ours)
    with process:  # closes its input at the end, which ends them all
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        time.sleep(SETTLE_S)
        threads = threads_of(pids)
        if len(threads) < 1 + len(noise):
            raise StrataError("the processes of the benchmark did not all start", hint="ulimit -u")
        yield NoiseScenario(tuple(on), threads[0], threads[1:], cpus.probe(), kernel.probe())


@contextmanager
def applied(steps: Sequence[Step]) -> Iterator[None]:
    """Take steps by way of the undo journal, and take them back at the end.

    Raises MissingPart (no rights), Infeasible (the kill switch is set) or StrataError; then nothing is changed.
    """
    if not steps:
        yield
        return
    machine = KernelFiles()
    with opened(folder_of(os.environ, user=os.geteuid())) as journal:
        if journal.off.exists():
            raise Infeasible(f"the kill switch is set: {journal.off}", hint=f"rm {journal.off}")
        first = max(journal.records, default=-1) + 1
        outcomes = apply(steps, machine, journal)
        try:
            if skipped := [outcome for outcome in outcomes if outcome.result == "skipped"]:
                raise StrataError(f"{skipped[0].step.path}: {skipped[0].why}")
            yield
        finally:
            undone = undo(machine, journal, since=first)
        if failed := [outcome for outcome in undone if outcome.result == "failed"]:
            raise StrataError(
                f"{failed[0].record.step.path} could not be put back: {failed[0].why}", hint="strata host undo"
            )


def look(scenario: NoiseScenario) -> Counters:
    """Return how it stands. Raises MissingPart where the kernel counts no waits, TooSlow for what ended."""
    trainer, *noise = threads_of([scenario.trainer.pid, *(thread.pid for thread in scenario.noise)]) or (None,)
    if trainer is None or len(noise) < len(scenario.noise):
        raise TooSlow(f"a trial took more than {acts.LONGEST_S:.0f} s: the machine is too busy")
    if trainer.wait_s is None:
        raise MissingPart("this kernel counts no waits: no /proc/PID/schedstat")
    ours_s = sum(thread.run_s or 0.0 for thread in (trainer, *noise))
    return Counters(trainer.wait_s, trainer.num_wakeups, _busy_s(scenario.on), ours_s)


def _busy_s(numbers: Sequence[int]) -> float:
    """Return how long some CPUs did not idle since boot, what interrupts and a hypervisor took included [s]."""
    lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    counts = {line[0]: [int(word) for word in line[1:9]] for line in lines if line and line[0].startswith("cpu")}
    # user nice system idle iowait irq softirq steal
    ticks = sum(sum(counts[f"cpu{number}"]) - sum(counts[f"cpu{number}"][3:5]) for number in numbers)
    return ticks / os.sysconf("SC_CLK_TCK")
