"""Critical threads that are taken off their CPU in the middle of their work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from strata.host.findings.finding import WORTH_SHARE, Finding, listed, of_thread, to_blame, worst_span
from strata.host.trace.events import Kind
from strata.host.view import View
from strata.host.waits import Cause


def find(view: View) -> Iterator[Finding]:
    """Find the critical threads that were preempted, by whom first, and who kept the CPU."""
    events = view.trace.events
    for life in view.critical_lives:
        waits = view.waits_by(life)
        waits = waits[view.waits.cause[waits] == Cause.PREEMPTED]
        cost_ms = float(view.waits.length_ns[waits].sum()) / 1e6
        if cost_ms * 1e6 < WORTH_SHARE * view.lived_ns[life]:
            continue
        culprits = view.culprits(waits)
        switches = events.of(Kind.SWITCH)
        left = switches[events.tid[switches] == view.lives.tid[life]]
        starts = set(view.waits.start_ns[waits].tolist())
        came = Counter(
            view.trace.names[int(events.other_comm[i])] for i in left if int(events.time_ns[i]) in starts
        )
        first, times = came.most_common(1)[0] if came else ("nobody", 0)
        yield of_thread(
            view,
            life,
            "cpu-preempted",
            {"times": len(waits), "culprit": to_blame(culprits) or first},
            cost_ms=cost_ms,
            evidence=(
                f"{len(waits)} times taken off the CPU; held it then: {listed(culprits)}; "
                f"most often pushed out by {first} ({times} times)"
            ),
            confidence=0.9,
            culprit=to_blame(culprits) or first,
            span_ns=worst_span(view, waits),
            blame=culprits,
        )
