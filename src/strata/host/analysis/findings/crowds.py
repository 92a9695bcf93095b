"""Too many at once: storms of new processes, pools of more threads than there are CPUs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from typing import Final

import numpy as np

from strata.arrays import Ints
from strata.host.analysis.culprit import Culprit
from strata.host.analysis.findings.finding import WORTH_SHARE, Finding, listed, most_of, of_thread
from strata.host.analysis.view import TraceView
from strata.host.trace.events import EventKind

STORM_PER_S: Final = 50
"""New threads of one parent's name a second; a shell script makes about ten (assumed)."""


def fork_storms(view: TraceView) -> Iterator[Finding]:
    """Find storms of forks whose children held CPUs that critical threads waited for."""
    events = view.trace.events
    forks = events.of(EventKind.FORK)
    parents = view.tasks.at(events.other[forks], forks)
    children = view.tasks.at(events.tid[forks], forks)
    born: Counter[Culprit] = Counter()
    names: dict[Culprit, set[str]] = defaultdict(set)
    for i, (parent, child) in enumerate(zip(parents.tolist(), children.tolist(), strict=True)):
        name = view.culprit(parent) if parent >= 0 else Culprit(view.trace.names[int(events.other_comm[forks[i]])])
        born[name] += 1
        names[name] |= {name, view.culprit(child)}
    for name, count in born.most_common():
        rate = count * 1e9 / view.wall_ns
        if rate < STORM_PER_S:
            return
        for task in view.critical_tasks:
            held = {culprit: ms for culprit, ms in view.culprits_of(task).items() if culprit in names[name]}
            if sum(held.values()) * 1e6 >= WORTH_SHARE * view.lived_ns[task]:
                yield of_thread(
                    view,
                    task,
                    "fork-storm",
                    {"culprit": name, "rate": rate},
                    cost_ms=sum(held.values()),
                    evidence=f"{count:,} new threads; on the CPU during this thread's waits: {listed(held)}",
                    confidence=0.85,
                    culprit=name,
                )


TIMES_CPUS: Final = 1.5
"""Threads of a pool that want to run at once, a CPU: more only wait for each other (and for all others)."""


def oversubscribed(view: TraceView) -> Iterator[Finding]:
    """Find pools with more threads that want to run at once than CPUs, at the cost of critical threads."""
    pools: dict[Culprit, list[int]] = defaultdict(list)
    for task in np.flatnonzero((view.ran_ns + view.waited_ns > 0) & ~view.is_critical).tolist():
        pools[view.culprit(task).pool].append(task)
    num_cpus = len(view.on_cpu.cpus)
    for pool, tasks in pools.items():
        if len(tasks) <= num_cpus * TIMES_CPUS:
            continue
        names = {view.culprit(task) for task in tasks}
        costs_ms = {
            task: cost_ms
            for task in view.critical_tasks
            if (cost_ms := sum(view.culprits_of(task).get(name, 0.0) for name in names)) * 1e6
            >= WORTH_SHARE * view.lived_ns[task]
        }
        if costs_ms and (busy := _peak(view, np.array(tasks))) >= num_cpus * TIMES_CPUS:
            for task, cost_ms in costs_ms.items():
                yield of_thread(
                    view,
                    task,
                    "oversubscription",
                    {"pool": pool, "threads": busy, "cpus": num_cpus},
                    cost_ms=cost_ms,
                    evidence=f"{len(tasks)} threads of {pool}, {busy} of them runnable at once, held the CPU for "
                    f"{cost_ms:,.1f} ms of this thread's waits",
                    confidence=0.8,
                    culprit=_culprit(view, task, pool, names),
                )


def _culprit(view: TraceView, task: int, pool: Culprit, names: Collection[str]) -> str:
    """Return the one name that had most of the CPU, else the pool's: `cc1`, but `omp` for omp-0, omp-1 ..."""
    return most_of({name: ms for name, ms in view.culprits(view.waits_by(task)).items() if name in names}, pool)


def _peak(view: TraceView, tasks: Ints) -> int:
    """Return how many of some threads wanted to run at once, for at least 1 % of the trace."""
    is_one = np.zeros(len(view.tasks) + 1, bool)
    is_one[tasks] = True
    runs, waits = is_one[view.on_cpu.task], is_one[view.delays.task]
    start = np.concatenate([view.on_cpu.start_ns[runs], view.delays.start_ns[waits]])
    end = np.concatenate([view.on_cpu.end_ns[runs], view.delays.end_ns[waits]])
    start, end = start[end > start], end[end > start]
    time = np.concatenate([start, end])
    step = np.repeat([1, -1], len(start))
    order = np.lexsort((step, time))
    level = np.cumsum(step[order])
    lasted = np.diff(time[order], append=time[order[-1]] if len(order) else 0)
    by_level = np.zeros(max(int(level.max(initial=0)), 0) + 1, np.int64)
    np.add.at(by_level, level, lasted)
    at_least = np.cumsum(by_level[::-1])[::-1]
    return int(np.flatnonzero(at_least >= 0.01 * view.wall_ns).max(initial=0))
