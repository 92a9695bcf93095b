"""Critical threads that could run, on a CPU that stands idle: their cgroup has used up its share of the time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from strata.host.analysis.findings.finding import WORTH_SHARE, Finding, of_thread, worst_span
from strata.host.analysis.intervals import within
from strata.host.analysis.run_queue_delays import Cause
from strata.host.analysis.view import View

LONG_NS: Final = 2_000_000
"""No idle CPU needs so long to wake up and switch (assumed; it is microseconds, in a virtual machine 0.2 ms)."""


def find(view: View) -> Iterator[Finding]:
    """Find long waits whose own CPU was idle for most of the time."""
    runs, waits = view.on_cpu, view.delays
    is_idle = runs.task < 0
    idle = runs.place(runs.cpu, runs.start_ns)[is_idle], (runs.end_ns - runs.start_ns)[is_idle]
    known = waits.part_cpu >= 0
    cpu = waits.part_cpu[known]
    begin, end = runs.place(cpu, waits.part_start_ns[known]), runs.place(cpu, waits.part_end_ns[known])
    idle_ns = np.zeros(len(waits), np.int64)
    np.add.at(idle_ns, waits.part_wait[known], within(*idle, begin, end))
    is_held = (waits.length_ns >= LONG_NS) & (2 * idle_ns > waits.length_ns)
    for task in view.critical_tasks:
        own = view.waits_by(task)
        own = own[is_held[own]]
        if np.all(waits.cause[own] == Cause.WOKEN):
            continue  # a hypervisor that is slow to run the CPU looks like this; only a limit takes a thread off
        cost_ms = float(idle_ns[own].sum()) / 1e6
        if cost_ms * 1e6 < WORTH_SHARE * view.lived_ns[task]:
            continue
        yield of_thread(
            view,
            task,
            "cpu-throttled",
            {"times": len(own), "cost": cost_ms},
            cost_ms=cost_ms,
            evidence=f"{len(own)} waits of {waits.length_ns[own].mean() / 1e6:,.1f} ms on average, for most of "
            "which its own CPU was idle; no other thread caused these",
            confidence=0.75,
            span_ns=worst_span(view, own),
        )
