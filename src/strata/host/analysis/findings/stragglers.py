"""Ranks of one job of which one waits more than the others: all wait for it at the next collective."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from strata.host.analysis.findings.finding import (
    WARNING_SHARE,
    Finding,
    listed,
    of_thread,
)
from strata.host.analysis.view import View
from strata.host.threads.pools import stem


def find(view: View) -> Iterator[Finding]:
    """Find the rank that waited longest beyond the median of its like, where that is much."""
    ranks: dict[str, list[int]] = defaultdict(list)
    for task in view.critical_tasks:
        ranks[stem(view.name(task))].append(task)
    for name, tasks in ranks.items():
        if len(tasks) < 2:
            continue
        shares = view.waited_ns[tasks] / view.lived_ns[tasks]
        typical = float(np.median(shares)) if len(tasks) > 2 else float(shares.min())
        worst = tasks[int(shares.argmax())]
        beyond = float(shares.max()) - typical
        if beyond < WARNING_SHARE / 2:
            continue
        waits = view.waits_by(worst)
        culprits = view.culprits(waits)
        yield of_thread(
            view,
            worst,
            "straggler",
            {"ranks": len(tasks), "pool": name, "beyond": beyond},
            cost_ms=beyond * float(view.lived_ns[worst]) / 1e6,
            evidence=f"waited {shares.max():.1%} of the time, its peers {typical:.1%}; "
            f"on its CPU: {listed(culprits)}",
            confidence=0.8,
            culprits=culprits,
        )
