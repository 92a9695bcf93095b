"""Where critical threads run: away from their caches and memory, or queued while other CPUs are idle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from strata.arrays import Ints
from strata.host.analysis.findings.finding import WORTH_SHARE, Finding, Severity, listed, main_culprit, of_thread
from strata.host.analysis.intervals import union, within
from strata.host.analysis.view import TraceView

LLC_REFILL_MS: Final = 0.05
"""To read 1 MB again at 20 GB/s after leaving a last-level cache (assumed)."""
NUMA_REFILL_MS: Final = 0.2
"""The same from the other node's memory, and remote accesses until memory follows (assumed)."""


def moved(view: TraceView) -> Iterator[Finding]:
    """Find moves across last-level caches and NUMA nodes, counted where the thread then really ran."""
    if view.cpus is None:
        return
    place = {cpu.number: (cpu.node, cpu.llc) for cpu in view.cpus.all}
    nodes, llcs = np.array([place.get(int(cpu), (-1, -1)) for cpu in view.on_cpu.cpus]).T
    order = np.lexsort((view.on_cpu.start_ns, view.on_cpu.task))
    for task in view.critical_tasks:
        first, last = np.searchsorted(view.on_cpu.task, [task, task + 1], sorter=order)
        cpus = view.on_cpu.cpu[order[first:last]]
        across_node = np.count_nonzero(np.diff(nodes[cpus]))
        across_llc = np.count_nonzero(np.diff(llcs[cpus])) - across_node
        for token, times, each_ms in (
            ("crosses-numa", across_node, NUMA_REFILL_MS),
            ("crosses-llc", across_llc, LLC_REFILL_MS),
        ):
            cost_ms = times * each_ms
            if times > 0 and cost_ms * 1e6 >= WORTH_SHARE * view.lived_ns[task]:
                rate = times / (view.lived_ns[task] / 1e9)
                yield of_thread(
                    view,
                    task,
                    token,
                    {"times": int(times), "rate": rate},
                    cost_ms=cost_ms,
                    evidence=f"{times} migrations in {len(cpus)} intervals; {each_ms} ms each (assumed)",
                    confidence=0.5,
                    worst=Severity.WARNING,
                )


MANY: Final = 20
"""Waits after which a thread seen on one CPU only is taken as pinned to it: a free one would have been moved."""


def beside_idle_cpus(view: TraceView) -> Iterator[Finding]:
    """Find waits beside idle CPUs, and threads that share the one CPU they are pinned to."""
    runs = view.on_cpu
    idle = union(runs.start_ns[runs.task < 0], runs.end_ns[runs.task < 0])
    home = _homes(view)
    for task in view.critical_tasks:
        waits = view.waits_by(task)
        if not len(waits):
            continue
        beside = within(*idle, view.delays.start_ns[waits], view.delays.end_ns[waits])
        culprits = view.culprits(waits)
        # While its own CPU is idle it is waking up: nobody is to blame for that.
        cost_ms = max(float(beside.sum()) / 1e6 - culprits.get("(idle)", 0.0), 0.0)
        is_pinned = home[task] >= 0 and len(waits) >= MANY and len(view.on_cpu.cpus) > 1
        rivals = _rivals(view, task, home) if is_pinned else {}
        rival_ms = sum(culprits.get(name, 0.0) for name in rivals)
        # Where all CPUs are busy a free thread stays where it is, and looks like a pinned one.
        worth_ms = WORTH_SHARE * float(view.lived_ns[task]) / 1e6
        if rivals and min(rival_ms, cost_ms) >= worth_ms:
            yield of_thread(
                view,
                task,
                "pin-conflict",
                {"cpu": int(view.on_cpu.cpus[home[task]]), "culprit": max(rivals, key=rivals.__getitem__)},
                cost_ms=rival_ms,
                evidence=(
                    f"never on another CPU in {len(waits)} waits; others that run only there: {listed(rivals)}; "
                    f"another CPU was idle for {cost_ms:,.1f} ms of the waits"
                ),
                confidence=0.75,
                culprit=max(rivals, key=rivals.__getitem__),
            )
        elif cost_ms >= worth_ms:
            yield of_thread(
                view,
                task,
                "idle-cpu-beside",
                {"cost": cost_ms, "culprit": main_culprit(culprits) or "nobody"},
                cost_ms=cost_ms,
                evidence=(
                    f"another CPU was idle for {cost_ms:,.1f} of {view.waited_ns[task] / 1e6:,.1f} ms of waiting"
                    f"{f'; it ran on CPU {view.on_cpu.cpus[home[task]]} only' if is_pinned else ''}"
                ),
                confidence=0.7,
                culprits=culprits,
            )


def _homes(view: TraceView) -> Ints:
    """Return the one CPU (index) that each thread ran on; -1 where there were others, or none."""
    real = view.on_cpu.task >= 0
    task, cpu = view.on_cpu.task[real], view.on_cpu.cpu[real]
    low = np.full(len(view.tasks), len(view.on_cpu.cpus), np.int64)
    high = np.full(len(view.tasks), -1, np.int64)
    np.minimum.at(low, task, cpu)
    np.maximum.at(high, task, cpu)
    return np.where(low == high, low, -1)


def _rivals(view: TraceView, task: int, home: Ints) -> dict[str, float]:
    """Return the threads seen on that CPU only which held it for 10 % of the trace or more [ms]."""
    rivals_ms: dict[str, float] = {}
    for other in np.flatnonzero((home == home[task]) & (view.ran_ns >= 0.1 * view.wall_ns)):
        if other != task and len(view.waits_by(int(other))) >= MANY:
            name = view.culprit(int(other))
            rivals_ms[name] = rivals_ms.get(name, 0.0) + float(view.ran_ns[other]) / 1e6
    return rivals_ms
