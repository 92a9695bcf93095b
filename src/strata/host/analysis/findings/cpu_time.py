"""What takes a critical thread's CPU away besides other threads: interrupts, hypervisors, limits, slow clocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from strata.host.analysis.findings.finding import WORTH_SHARE, Finding, listed, of_thread, worst_span
from strata.host.analysis.intervals import within
from strata.host.analysis.run_queue_delays import Cause
from strata.host.analysis.view import TraceView
from strata.host.trace.events import EventKind


def interrupted(view: TraceView) -> Iterator[Finding]:
    """Find the interrupts whose handlers took a critical thread's time."""
    interrupts = view.interrupts
    length_ns = interrupts.end_ns - interrupts.start_ns
    for task in view.critical_tasks:
        is_own = interrupts.task == task
        held_ns = np.bincount(interrupts.cause[is_own], length_ns[is_own], len(interrupts.causes))
        culprits = dict(zip(interrupts.causes, (held_ns / 1e6).tolist(), strict=True))
        for cause, ms in view.culprits_of(task).items():
            if cause in culprits:
                culprits[cause] += ms
        culprits = dict(sorted(culprits.items(), key=lambda item: -item[1]))
        cost_ms = sum(culprits.values())
        if cost_ms * 1e6 < WORTH_SHARE * view.lived_ns[task]:
            continue
        worst = next(iter(culprits))
        longest = np.flatnonzero(is_own)
        span = longest[length_ns[longest].argmax()] if len(longest) else None
        yield of_thread(
            view,
            task,
            "irq-time",
            {"culprit": worst, "cost": cost_ms},
            cost_ms=cost_ms,
            evidence=f"{int(is_own.sum())} interrupts while it ran; with those of its waits: {listed(culprits)}",
            confidence=0.9,
            culprit=worst,
            culprits=culprits,
            span_ns=None if span is None else (int(interrupts.start_ns[span]), int(interrupts.end_ns[span])),
        )


def stolen(view: TraceView) -> Iterator[Finding]:
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
            waits.part_cpu[part], weights=(waits.part_end_ns - waits.part_start_ns)[part], minlength=len(runs.cpus)
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


LONG_NS: Final = 2_000_000
"""No idle CPU needs so long to wake up and switch (assumed; it is microseconds, in a virtual machine 0.2 ms)."""


def throttled(view: TraceView) -> Iterator[Finding]:
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


DROP: Final = 0.1
"""Of the highest clock seen; turbo steps alone are less (assumed)."""


def slowed(view: TraceView) -> Iterator[Finding]:
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
