"""CPUs that are clocked down while a critical thread runs on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from strata.host.analysis.findings.finding import WORTH_SHARE, Finding, of_thread
from strata.host.analysis.view import View
from strata.host.trace.events import EventKind

DROP: Final = 0.1
"""Of the highest clock seen; turbo steps alone are less (assumed)."""


def find(view: View) -> Iterator[Finding]:
    """Find critical threads that ran on slow clocks, against the highest clock of the trace."""
    events = view.trace.events
    changes = events.of(EventKind.FREQUENCY)
    cpu = view.on_cpu.index(events.cpu[changes])
    changes, cpu = changes[cpu >= 0], cpu[cpu >= 0]
    if not len(changes):
        return
    order = np.argsort(view.on_cpu.place(cpu, events.time_ns[changes]), kind="stable")
    place = view.on_cpu.place(cpu, events.time_ns[changes])[order]
    khz, cpu = events.other[changes][order].astype(np.int64), cpu[order]
    highest = int(khz.max())
    runs = view.on_cpu
    last = np.searchsorted(place, runs.place(runs.cpu, runs.start_ns), side="right") - 1
    is_known = (last >= 0) & (cpu[np.maximum(last, 0)] == runs.cpu)
    clock = np.where(is_known, khz[np.maximum(last, 0)], highest)
    slow_ns = (runs.end_ns - runs.start_ns) * (1 - clock / highest)
    for task in view.critical_tasks:
        is_own = runs.task == task
        cost_ms = float(slow_ns[is_own].sum()) / 1e6
        ran_ms = float(view.ran_ns[task]) / 1e6
        if cost_ms < DROP * ran_ms or cost_ms * 1e6 < WORTH_SHARE * view.lived_ns[task]:
            continue
        mean = highest * (1 - cost_ms / ran_ms)
        yield of_thread(
            view,
            task,
            "frequency-drop",
            {"mean": mean / 1e6, "highest": highest / 1e6},
            cost_ms=cost_ms,
            evidence=f"ran {ran_ms:,.1f} ms at {mean / 1e6:.2f} GHz on average; at other times or on other CPUs "
            f"{highest / 1e6:.2f} GHz was reached",
            confidence=0.6,
        )
