"""Critical threads that are taken off their CPU in the middle of their work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from strata.host.analysis.findings.finding import WORTH_SHARE, Finding, listed, main_culprit, of_thread, worst_span
from strata.host.analysis.run_queue_delays import Cause
from strata.host.analysis.view import View
from strata.host.trace.events import EventKind


def find(view: View) -> Iterator[Finding]:
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
