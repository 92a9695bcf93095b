"""Critical threads that are moved away from their caches or their memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from strata.host.analysis.findings.finding import WORTH_SHARE, Finding, Severity, of_thread
from strata.host.analysis.view import View

LLC_REFILL_MS: Final = 0.05
"""To read 1 MB again at 20 GB/s after leaving a last-level cache (assumed)."""
NUMA_REFILL_MS: Final = 0.2
"""The same from the other node's memory, and remote accesses until memory follows (assumed)."""


def find(view: View) -> Iterator[Finding]:
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
