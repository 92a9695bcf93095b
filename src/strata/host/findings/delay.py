"""Critical threads that wait for a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from strata.host.findings.finding import WORTH_SHARE, Finding, listed, of_thread, share_of, to_blame, worst_span
from strata.host.view import View
from strata.host.waits import Cause

MANY: Final = 10
"""Wakeups from which on a thread is taken to work in rounds."""


def find(view: View) -> Iterator[Finding]:
    """Find the critical threads that lost time in the run queue, and who had the CPU meanwhile."""
    for life in view.critical_lives:
        waits = view.waits_by(life)
        total_ns = int(view.waited_ns[life])
        lived_ns = int(view.lived_ns[life])
        if total_ns < WORTH_SHARE * lived_ns or not len(waits):
            continue
        lengths_ms = view.waits.length_ns[waits] / 1e6
        culprits = view.culprits(waits)
        name = to_blame(culprits)
        share = share_of(culprits, name)
        rounds = int(np.count_nonzero(view.waits.cause[waits] == Cause.WOKEN))
        rate = rounds * 1e9 / lived_ns
        gain = total_ns / max(lived_ns - total_ns, 1)
        more = f" ({rate * (1 + gain):,.0f} rounds a second, not {rate:,.0f})" if rounds >= MANY else ""
        yield of_thread(
            view,
            life,
            "cpu-wait",
            {"share": total_ns / lived_ns, "culprit": name or "nobody", "blame": share},
            cost_ms=total_ns / 1e6,
            evidence=(
                f"{len(waits)} waits, mean {lengths_ms.mean():.3f} ms, "
                f"p99 {np.percentile(lengths_ms, 99):.1f} ms, longest {lengths_ms.max():.1f} ms; "
                f"on the CPU meanwhile: {listed(culprits)}; "
                f"without them at most {gain:.0%} more work{more}"
            ),
            confidence=0.95,
            culprit=name,
            span_ns=worst_span(view, waits),
            blame=culprits,
        )
