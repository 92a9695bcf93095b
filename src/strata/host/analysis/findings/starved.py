"""Threads that want to run and do not, to the end of the trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from strata.decision import Reason
from strata.host.analysis.findings.finding import Finding, Severity, listed, main_culprit
from strata.host.analysis.view import View

STARVED_NS: Final = 1_000_000_000
"""As long as any fair scheduler never lets a thread wait."""
MOST: Final = 20
"""Threads that are told of: on a host without CPU to give, all are starved."""


def find(view: View) -> Iterator[Finding]:
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
        )
