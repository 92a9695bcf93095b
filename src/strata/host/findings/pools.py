"""Pools of more threads that want to run than there are CPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Final

import numpy as np

from strata.arrays import Ints
from strata.host.findings.finding import WORTH_SHARE, Finding, most_of, of_thread
from strata.host.threads.names import stem
from strata.host.view import View

TIMES_CPUS: Final = 1.5
"""Threads of a pool that want to run at once, a CPU: more only wait for each other (and for all others)."""


def find(view: View) -> Iterator[Finding]:
    """Find pools with more threads that want to run at once than CPUs, at the cost of critical threads."""
    pools: dict[str, list[int]] = defaultdict(list)
    for life in np.flatnonzero((view.ran_ns + view.waited_ns > 0) & ~view.is_critical).tolist():
        pools[stem(view.name(life))].append(life)
    num_cpus = len(view.runs.cpus)
    for pool, lives in pools.items():
        if len(lives) <= num_cpus * TIMES_CPUS:
            continue
        names = {view.name(life) for life in lives}
        costs_ms = {
            life: cost_ms
            for life in view.critical_lives
            if (cost_ms := sum(view.blamed(life).get(name, 0.0) for name in names)) * 1e6
            >= WORTH_SHARE * view.lived_ns[life]
        }
        if costs_ms and (busy := _peak(view, np.array(lives))) >= num_cpus * TIMES_CPUS:
            for life, cost_ms in costs_ms.items():
                yield of_thread(
                    view,
                    life,
                    "pool-too-big",
                    {"pool": pool, "threads": busy, "cpus": num_cpus},
                    cost_ms=cost_ms,
                    evidence=f"{len(lives)} threads of {pool}, {busy} of them at once, held the CPU for "
                    f"{cost_ms:,.1f} ms of this thread's waits",
                    confidence=0.8,
                    culprit=_culprit(view, life, pool, names),
                )


def _culprit(view: View, life: int, pool: str, names: Collection[str]) -> str:
    """Return the one name that had most of the CPU, else the pool's: `cc1`, but `omp` for omp-0, omp-1 ..."""
    return most_of({name: ms for name, ms in view.culprits(view.waits_by(life)).items() if name in names}, pool)


def _peak(view: View, lives: Ints) -> int:
    """Return how many of some threads wanted to run at once, for at least 1 % of the trace."""
    is_one = np.zeros(len(view.lives) + 1, bool)
    is_one[lives] = True
    runs, waits = is_one[view.runs.life], is_one[view.waits.life]
    start = np.concatenate([view.runs.start_ns[runs], view.waits.start_ns[waits]])
    end = np.concatenate([view.runs.end_ns[runs], view.waits.end_ns[waits]])
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
