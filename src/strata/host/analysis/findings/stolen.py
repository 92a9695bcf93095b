"""CPUs that a hypervisor gave to others while a critical thread was on them, or waited for them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from strata.host.analysis.findings.finding import WORTH_SHARE, Finding, of_thread
from strata.host.analysis.view import View


def find(view: View) -> Iterator[Finding]:
    """Find critical threads that lost time to the hypervisor.

    Known is how much each CPU lost in all; it loses only while it has work, so that each thread's part is taken
    as its share of that.
    """
    if view.steal is None:
        return
    runs, waits, seconds = view.on_cpu, view.delays, max(view.steal.seconds, 1e-9)
    rate = np.array([view.steal.by_cpu_s.get(int(cpu), 0.0) / seconds for cpu in runs.cpus])
    if not np.any(rate):
        return
    length_ns = runs.end_ns - runs.start_ns
    worked = runs.task >= 0
    busy_ns = np.bincount(runs.cpu[worked], weights=length_ns[worked], minlength=len(runs.cpus))
    for task in view.critical_tasks:
        is_own = runs.task == task
        part = np.isin(waits.part_wait, view.waits_by(task)) & (waits.part_cpu >= 0)
        there_ns = np.bincount(
            runs.cpu[is_own], weights=length_ns[is_own], minlength=len(runs.cpus)
        ) + np.bincount(
            waits.part_cpu[part],
            weights=(waits.part_end_ns - waits.part_start_ns)[part],
            minlength=len(runs.cpus),
        )
        share = np.minimum(there_ns / np.maximum(busy_ns, 1), 1.0)
        cost_ms = float(np.sum(rate * share)) * view.wall_ns / 1e6
        if cost_ms * 1e6 < WORTH_SHARE * view.lived_ns[task]:
            continue
        cpu, worst = view.steal.worst
        yield of_thread(
            view,
            task,
            "steal-time",
            {"share": view.steal.share, "cost": cost_ms},
            cost_ms=cost_ms,
            evidence=f"the kernel counts {1e3 * sum(view.steal.by_cpu_s.values()):,.0f} ms stolen in "
            f"{view.steal.seconds:.1f} s, most on CPU {cpu} ({worst:.1%}); this thread's part is estimated from "
            "when it ran or waited there",
            confidence=0.7,
        )
