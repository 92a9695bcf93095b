"""A trace as the detectors see it: threads, runs, interrupts, waits and who is to blame for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.arrays import Bools, Ints
from strata.host.analysis.accelerator import AcceleratorActivity
from strata.host.analysis.cpu_attribution import CpuAttribution, cpu_attribution_of
from strata.host.analysis.culprit import Culprit
from strata.host.analysis.interrupts import Interrupts, interrupts_of
from strata.host.analysis.on_cpu_intervals import OnCpuIntervals, on_cpu_intervals_of
from strata.host.analysis.ownership import Ownership, ownership_of
from strata.host.analysis.run_queue_delays import Cause, RunQueueDelays, run_queue_delays_of
from strata.host.analysis.task_instances import TaskInstances, task_instances_of
from strata.host.machine.cpus import Cpus
from strata.host.machine.steal import Steal
from strata.host.threads.label import NAME_PREFIX
from strata.host.threads.pools import POOLS, of_thread
from strata.host.threads.processes import Census
from strata.host.threads.sleep_calls import SleepCall
from strata.host.trace.events import Trace

_CRITICAL: Final = re.compile(r"train(er|ing)?([^a-z]|$)|pt_main|(kernel_)?launch|rank_?\d", re.IGNORECASE)
"""How threads that feed accelerators are called besides what `threads.names` knows."""
_POOLS: Final = ("kernel-launch", "comms-monitor")
_KERNEL: Final = re.compile(
    r"(kworker|ksoftirqd|migration|rcu|kswapd|kcompactd|khugepaged|kdamond|jbd2|irq|cpuhp|watchdog)\b|rcu_|irq/"
)
ROUNDS_PER_S: Final = 20
"""Wakeups a second from which on a thread is taken to work in rounds, as one that feeds an accelerator does."""
FEWEST_ROUNDS: Final = 10
MOST_GUESSED: Final = 3
MOST_LAUNCHERS: Final = 8
"""Launching threads that count as critical: those with most launches, the others copy or capture now and then."""
MOST_CRITICAL: Final = 256
LEADS: Final = 0.01
"""Of the trace that the first thread of a job runs or wants to: a launcher that only waits does neither."""


@dataclass(frozen=True)
class TraceView:
    """All that is known of a trace, worked out as it is asked for.

    `critical` holds prefixes of the names of threads that the user says matter; none: see `is_critical`.
    `cpus` is the machine's topology, `accelerator` what a Kineto trace of the same time says; None: not known.
    `feeding` are ids of threads that were seen to feed an accelerator; `steal` is what a hypervisor took. `census`
    has the processes there were; `job` is the process it is all about, `only` the one thread: None for all;
    `sleeping` how often each was found asleep in which call, `holding` how often with its interpreter, and where.
    """

    trace: Trace
    critical: tuple[str, ...] = ()
    cpus: Cpus | None = None
    accelerator: AcceleratorActivity | None = None
    feeding: tuple[int, ...] = ()
    steal: Steal | None = None
    census: Census = field(default_factory=Census)
    job: int | None = None
    only: int | None = None
    sleeping: Mapping[int, Mapping[SleepCall, int]] = field(default_factory=dict)
    holding: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    @cached_property
    def tasks(self) -> TaskInstances:
        """The threads."""
        return task_instances_of(self.trace)

    @cached_property
    def on_cpu(self) -> OnCpuIntervals:
        """Who ran where. Raises UsageError where the times cannot be of one trace."""
        return on_cpu_intervals_of(self.trace, self.tasks)

    @cached_property
    def interrupts(self) -> Interrupts:
        """When interrupts held CPUs."""
        return interrupts_of(self.trace, self.on_cpu)

    @cached_property
    def delays(self) -> RunQueueDelays:
        """Who waited for a CPU."""
        return run_queue_delays_of(self.trace, self.tasks, self.on_cpu)

    @cached_property
    def attribution(self) -> CpuAttribution:
        """Who had the CPU meanwhile."""
        return cpu_attribution_of(self.delays, self.on_cpu, self.interrupts, self.trace.names, self.ownership.pid)

    @cached_property
    def ownership(self) -> Ownership:
        """Whose threads they are, and which are of the job."""
        return ownership_of(self.trace, self.tasks, self.census, job=self.job)

    def name(self, task: int) -> str:
        """Return the last name of a thread; "(idle)" for none."""
        return self.trace.names[int(self.tasks.comm[task])] if task >= 0 else "(idle)"

    def culprit(self, task: int) -> Culprit:
        """Return a thread as one that holds CPUs: its name, with its process where that is known."""
        pid = int(self.ownership.pid[task])
        return Culprit(self.name(task), pid if pid >= 0 else None)

    @property
    def wall_ns(self) -> int:
        """How long the trace is."""
        return max(self.trace.end_ns - self.trace.start_ns, 1)

    @cached_property
    def lived_ns(self) -> Ints:
        """How long each thread was there in the trace: all of it, unless it was born or died in it."""
        lived: Ints = np.maximum(self.tasks.end_ns - self.tasks.start_ns, 1)
        return lived

    @cached_property
    def ran_ns(self) -> Ints:
        """How long each thread ran."""
        return self._sum(self.on_cpu.task, self.on_cpu.end_ns - self.on_cpu.start_ns)

    @cached_property
    def waited_ns(self) -> Ints:
        """How long each thread waited for a CPU, waits that were not over included."""
        return self._sum(self.delays.task, self.delays.length_ns)

    @cached_property
    def is_critical(self) -> Bools:
        """Which threads hold up others: those the user named, else those that launch kernels, seen or by name.

        Where there are none, those that work in rounds and waited longest: a guess.
        """
        known = self._known_critical
        return known if np.any(known) else self._works_in_rounds

    @cached_property
    def is_guessed(self) -> bool:
        """Whether the critical threads are known by their behaviour only."""
        return not np.any(self._known_critical)

    @cached_property
    def critical_tasks(self) -> tuple[int, ...]:
        """The critical threads that ran or waited, those that waited longest first; no more than a host has.

        A trainer that starts programs has a thread of its own name for each.
        """
        active = np.flatnonzero(self.is_critical & (self.ran_ns + self.waited_ns > 0))
        return tuple(active[np.argsort(-self.waited_ns[active], kind="stable")][:MOST_CRITICAL].tolist())

    def waits_by(self, task: int) -> NDArray[np.intp]:
        """Return the waits of a thread."""
        return np.arange(self._first_wait[task], self._first_wait[task + 1])

    def culprits(self, waits: NDArray[np.intp]) -> dict[str, float]:
        """Return who had the CPU during some waits, longest first [ms]."""
        return {label: ns / 1e6 for label, ns in self.attribution.by_culprit(waits).items()}

    def culprits_of(self, task: int) -> dict[str, float]:
        """Return who had the CPU during all waits of a thread, longest first [ms]."""
        if task not in self._culprits_by_task:
            self._culprits_by_task[task] = self.culprits(self.waits_by(task))
        return self._culprits_by_task[task]

    @cached_property
    def _culprits_by_task(self) -> dict[int, dict[str, float]]:
        return {}

    @cached_property
    def _known_critical(self) -> Bools:
        names = [self.trace.names[i] for i in range(len(self.trace.names))]
        matches = [name.startswith(self.critical) if self.critical else _feeds(name) for name in names]
        launches = self.accelerator.launchers if self.accelerator and not self.critical else ()
        seen = (*launches[:MOST_LAUNCHERS], *(() if self.critical else self.feeding))
        is_active = self.ran_ns + self.waited_ns > 0
        if self.only is not None:
            chosen: Bools = (self.tasks.tid == self.only) & is_active
            return chosen
        known = np.array([*matches, False])[self.tasks.comm] | np.isin(self.tasks.tid, seen)
        in_job = self.ownership.in_job
        if in_job is None:
            return known & is_active
        known &= in_job & is_active
        return known if np.any(known) or self.critical else self._lead(in_job & is_active)

    def _lead(self, in_job: Bools) -> Bools:
        """Return the thread that leads a job without a known critical one: the first, if it does anything.

        A launcher, as a shell is, only waits for what it started: of that, the first thread that wanted most.
        """
        wanted = np.where(in_job, self.ran_ns + self.waited_ns, 0)
        is_first = (self.ownership.pid >= 0) & (self.tasks.tid == self.ownership.pid)
        lead = np.zeros(len(self.tasks), bool)
        for candidates in (self.tasks.tid == self.job, is_first, in_job):
            most = np.where(candidates, wanted, 0)
            if len(most) and most.max() >= LEADS * self.wall_ns:
                lead[most.argmax()] = True
                break
        return lead

    @cached_property
    def _works_in_rounds(self) -> NDArray[np.bool_]:
        rounds = np.bincount(self.delays.task[self.delays.cause == Cause.WOKEN], minlength=len(self.tasks))
        candidates = np.flatnonzero((rounds >= FEWEST_ROUNDS) & (rounds * 1e9 >= ROUNDS_PER_S * self.wall_ns))
        candidates = candidates[np.argsort(-self.waited_ns[candidates], kind="stable")]
        chosen = [i for i in candidates.tolist() if not _KERNEL.match(self.name(i))][:MOST_GUESSED]
        guessed = np.zeros(len(self.tasks), bool)
        guessed[chosen] = not self.critical  # who named some wants no others
        return guessed

    @cached_property
    def _first_wait(self) -> NDArray[np.intp]:
        return np.searchsorted(self.delays.task, np.arange(len(self.tasks) + 1))

    def _sum(self, task: NDArray[np.int32], ns: Ints) -> Ints:
        total = np.zeros(len(self.tasks) + 1, np.int64)
        np.add.at(total, task, ns)  # the idle threads' -1 is the last place
        return total[:-1]


def _feeds(name: str) -> bool:
    pool = of_thread(name)
    if name.startswith(NAME_PREFIX):
        return any(name.removeprefix(NAME_PREFIX) in POOLS[pool_name].labels for pool_name in _POOLS)
    return bool(_CRITICAL.match(name)) or (pool is not None and pool[0] in _POOLS)
