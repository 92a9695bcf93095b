"""Critical threads that wait for a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from strata.host.findings.finding import WORTH_SHARE, Finding, listed, of_thread, share_of, to_blame, worst_span
from strata.host.gain import without
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
        is_over = view.waits.is_over[waits]
        lengths_ms = view.waits.length_ns[waits] / 1e6
        still = "" if is_over.all() else f" (one of {lengths_ms[~is_over].max():.1f} ms so far, as the trace ends)"
        culprits = view.culprits(waits)
        name = to_blame(culprits)
        share = share_of(culprits, name)
        rounds = int(np.count_nonzero(view.waits.cause[waits] == Cause.WOKEN))
        rate = rounds * 1e9 / lived_ns
        most = rate * (1 + without(total_ns / lived_ns))
        more = f"; without them at most {most:,.0f} rounds a second, not {rate:,.0f}" if rounds >= MANY else ""
        yield of_thread(
            view,
            life,
            "cpu-wait",
            {"share": total_ns / lived_ns, "culprit": name or "nobody", "blame": share},
            cost_ms=total_ns / 1e6,
            evidence=(
                f"{len(waits):,} waits{still}, {lengths_ms.mean():.1f} ms on average, one in a hundred longer "
                f"than {np.percentile(lengths_ms, 99):.1f} ms, the longest {lengths_ms.max():.1f} ms; "
                f"on the CPU meanwhile: {listed(culprits)}{more}"
            ),
            confidence=0.95,
            culprit=name,
            span_ns=worst_span(view, waits),
            blame=culprits,
        )
