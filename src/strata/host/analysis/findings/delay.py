"""Critical threads that wait for a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from strata.host.analysis.findings.finding import (
    WORTH_SHARE,
    Finding,
    listed,
    main_culprit,
    of_thread,
    share_of,
    without,
)
from strata.host.analysis.run_queue_delays import Cause
from strata.host.analysis.view import View

MANY: Final = 10
"""Wakeups from which on a thread is taken to work in rounds."""


def find(view: View) -> Iterator[Finding]:
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
        most = rate * (1 + without(total_ns / lived_ns))
        more = f"; without them up to {most:,.0f} rounds a second instead of {rate:,.0f}" if rounds >= MANY else ""
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
