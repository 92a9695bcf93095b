"""Threads that call sched_yield over and over: critical ones lose their CPU by it, others keep the kernel busy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from strata.host.analysis.findings.finding import WORTH_SHARE, Finding, listed, main_culprit, of_thread, worst_span
from strata.host.analysis.run_queue_delays import Cause
from strata.host.analysis.view import View
from strata.host.trace.events import EventKind

STORM_PER_S: Final = 1000
"""Calls of one name a second: more than any lock needs that is contended now and then (assumed)."""


def find(view: View) -> Iterator[Finding]:
    """Find critical threads that yield their CPU away, and storms of yields beside critical threads."""
    events = view.trace.events
    calls = events.of(EventKind.YIELD)
    tasks = view.on_cpu.who(view.on_cpu.index(events.cpu[calls]), calls)
    names = view.tasks.comm[tasks[tasks >= 0]]
    rate = {
        view.trace.names[int(comm)]: int(count) * 1e9 / view.wall_ns
        for comm, count in zip(*np.unique(names, return_counts=True), strict=True)
        if count * 1e9 >= STORM_PER_S * view.wall_ns
    }
    for task in view.critical_tasks:
        waits = view.waits_by(task)
        own = waits[view.delays.cause[waits] == Cause.YIELDED]
        cost_ms = float(view.delays.length_ns[own].sum()) / 1e6
        if cost_ms * 1e6 >= WORTH_SHARE * view.lived_ns[task]:
            culprits = view.culprits(own)
            yield of_thread(
                view,
                task,
                "yields-away",
                {"times": len(own), "culprit": main_culprit(culprits) or "nobody"},
                cost_ms=cost_ms,
                evidence=f"{len(own)} yields after which others ran: {listed(culprits)}",
                confidence=0.9,
                culprit=view.name(task),
                span_ns=worst_span(view, own),
            )
        for name, per_s in sorted(rate.items(), key=lambda item: -item[1]):
            cost_ms = view.culprits_of(task).get(name, 0.0)
            if cost_ms * 1e6 < WORTH_SHARE * view.lived_ns[task]:
                continue
            yield of_thread(
                view,
                task,
                "yield-storm",
                {"culprit": name, "rate": per_s},
                cost_ms=cost_ms,
                evidence=f"{name} held the CPU for {cost_ms:,.1f} ms of this thread's waits",
                confidence=0.85,
                culprit=name,
            )
