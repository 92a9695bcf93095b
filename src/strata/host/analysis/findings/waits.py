"""Critical threads that wait: for a CPU, after they lost or yielded theirs, and for longer than is ever fair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from strata.decision import Reason
from strata.host.analysis.culprit import Culprit
from strata.host.analysis.findings.finding import (
    WORTH_SHARE,
    Finding,
    Severity,
    listed,
    main_culprit,
    of_thread,
    process_of,
    share_of,
    without,
    worst_span,
)
from strata.host.analysis.run_queue_delays import Cause
from strata.host.analysis.view import TraceView
from strata.host.trace.events import EventKind

MANY: Final = 10
"""Wakeups from which on a thread is taken to work in rounds."""


def delayed(view: TraceView) -> Iterator[Finding]:
    """Find the critical threads that lost time in the run queue, and who had the CPU meanwhile."""
    for task in view.critical_tasks:
        waits = view.waits_by(task)
        total_ns = int(view.waited_ns[task])
        lived_ns = int(view.lived_ns[task])
        if total_ns < WORTH_SHARE * lived_ns or not len(waits):
            continue
        is_over = view.delays.is_over[waits]
        lengths_ms = view.delays.length_ns[waits] / 1e6
        open_ms = "" if is_over.all() else f" (one unfinished after {lengths_ms[~is_over].max():.1f} ms)"
        culprits = view.culprits(waits)
        name = main_culprit(culprits)
        share = share_of(culprits, name)
        rounds = int(np.count_nonzero(view.delays.cause[waits] == Cause.WOKEN))
        rate = rounds * 1e9 / lived_ns
        peak = rate * (1 + without(total_ns / lived_ns))
        more = f"; without them up to {peak:,.0f} rounds a second instead of {rate:,.0f}" if rounds >= MANY else ""
        yield of_thread(
            view,
            task,
            "cpu-wait",
            {"share": total_ns / lived_ns, "culprit": name or "nobody", "culprit_share": share},
            cost_ms=total_ns / 1e6,
            evidence=(
                f"{len(waits):,} waits{open_ms}, {lengths_ms.mean():.1f} ms on average, p99 "
                f"{np.percentile(lengths_ms, 99):.1f} ms, longest {lengths_ms.max():.1f} ms; "
                f"on the CPU meanwhile: {listed(culprits)}{more}"
            ),
            confidence=0.95,
            culprits=culprits,
        )


def preempted(view: TraceView) -> Iterator[Finding]:
    """Find the critical threads that were preempted, by whom first, and who kept the CPU."""
    events = view.trace.events
    for task in view.critical_tasks:
        waits = view.waits_by(task)
        waits = waits[view.delays.cause[waits] == Cause.PREEMPTED]
        cost_ms = float(view.delays.length_ns[waits].sum()) / 1e6
        if cost_ms * 1e6 < WORTH_SHARE * view.lived_ns[task]:
            continue
        culprits = view.culprits(waits)
        switches = events.of(EventKind.SWITCH)
        left = switches[events.tid[switches] == view.tasks.tid[task]]
        starts = set(view.delays.start_ns[waits].tolist())
        came = Counter(
            view.trace.names[int(events.other_comm[i])] for i in left if int(events.time_ns[i]) in starts
        )
        first, times = came.most_common(1)[0] if came else ("nobody", 0)
        yield of_thread(
            view,
            task,
            "cpu-preempted",
            {"times": len(waits), "culprit": main_culprit(culprits) or first},
            cost_ms=cost_ms,
            evidence=(
                f"preempted {len(waits)} times; on the CPU meanwhile: {listed(culprits)}; "
                f"most often by {first} ({times} times)"
            ),
            confidence=0.9,
            culprit=main_culprit(culprits) or first,
            span_ns=worst_span(view, waits),
            culprits=culprits,
        )


STORM_PER_S: Final = 1000
"""Calls of one name a second: more than any lock needs that is contended now and then (assumed)."""


def yielding(view: TraceView) -> Iterator[Finding]:
    """Find critical threads that yield their CPU away, and storms of yields beside critical threads."""
    events = view.trace.events
    calls = events.of(EventKind.YIELD)
    tasks = view.on_cpu.who(view.on_cpu.index(events.cpu[calls]), calls)
    counts: Counter[Culprit] = Counter()
    for yielder, count in zip(*np.unique(tasks[tasks >= 0], return_counts=True), strict=True):
        counts[view.culprit(int(yielder))] += int(count)
    rate = {
        name: count * 1e9 / view.wall_ns
        for name, count in counts.items()
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


STARVED_NS: Final = 1_000_000_000
"""As long as any fair scheduler never lets a thread wait."""
MOST: Final = 20
"""Threads that are told of: on a host without CPU to give, all are starved."""


def starved(view: TraceView) -> Iterator[Finding]:
    """Find waits of a second and more; of critical threads they are errors."""
    waits = view.delays
    long = np.flatnonzero(waits.length_ns >= STARVED_NS)
    tasks, count = np.unique(waits.task[long], return_counts=True)
    matters = np.lexsort((-view.waited_ns[tasks], ~view.is_critical[tasks]))[:MOST]
    first = np.searchsorted(waits.task[long], tasks)
    for i in matters.tolist():
        task, own = int(tasks[i]), long[first[i] : first[i] + count[i]]
        cost_ms = float(waits.length_ns[own].sum()) / 1e6
        culprits = view.culprits(own)
        worst = int(own[waits.length_ns[own].argmax()])
        still = "" if waits.is_over[own].all() else ", one of them past the end of the trace"
        yield Finding(
            Reason("thread-starved", view.name(task), {"longest": waits.length_ns[worst] / 1e9}),
            Severity.ERROR if view.is_critical[task] and not view.is_guessed else Severity.INFO,
            f"{len(own)} waits of a second or more{still}; on the CPU meanwhile: {listed(culprits)}",
            cost_ms,
            0.9,
            view.name(task),
            int(view.tasks.tid[task]),
            main_culprit(culprits),
            cost_ms * 1e6 / float(view.lived_ns[task]),
            (int(waits.start_ns[worst]), int(waits.end_ns[worst])),
            process=process_of(view, main_culprit(culprits)),
        )
