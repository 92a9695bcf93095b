"""Critical threads that wait while CPUs stand idle: because of a pin, or as the kernel did not move them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from strata.arrays import Ints
from strata.host.findings.finding import WORTH_SHARE, Finding, listed, of_thread, to_blame, worst_span
from strata.host.spans import union, within
from strata.host.view import View

MANY: Final = 20
"""Waits after which a thread seen on one CPU only is taken as pinned to it: a free one would have been moved."""


def find(view: View) -> Iterator[Finding]:
    """Find waits beside idle CPUs, and threads that share the one CPU they are pinned to."""
    runs = view.runs
    idle = union(runs.start_ns[runs.life < 0], runs.end_ns[runs.life < 0])
    home = _homes(view)
    for life in view.critical_lives:
        waits = view.waits_by(life)
        if not len(waits):
            continue
        beside = within(*idle, view.waits.start_ns[waits], view.waits.end_ns[waits])
        culprits = view.culprits(waits)
        # While its own CPU is idle it is waking up: nobody is to blame for that.
        cost_ms = max(float(beside.sum()) / 1e6 - culprits.get("(idle)", 0.0), 0.0)
        is_pinned = home[life] >= 0 and len(waits) >= MANY and len(view.runs.cpus) > 1
        rivals = _rivals(view, life, home) if is_pinned else {}
        rival_ms = sum(culprits.get(name, 0.0) for name in rivals)
        # Where all CPUs are busy a free thread stays where it is, and looks like a pinned one.
        worth_ms = WORTH_SHARE * float(view.lived_ns[life]) / 1e6
        if rivals and min(rival_ms, cost_ms) >= worth_ms:
            yield of_thread(
                view,
                life,
                "pin-conflict",
                {"cpu": int(view.runs.cpus[home[life]]), "culprit": max(rivals, key=rivals.__getitem__)},
                cost_ms=rival_ms,
                evidence=(
                    f"in {len(waits)} waits never on another CPU, like {listed(rivals)} of running there; "
                    f"{cost_ms:,.1f} ms of the waits beside an idle CPU"
                ),
                confidence=0.75,
                culprit=max(rivals, key=rivals.__getitem__),
                span_ns=worst_span(view, waits),
            )
        elif cost_ms >= worth_ms:
            yield of_thread(
                view,
                life,
                "idle-cpu-beside",
                {"cost": cost_ms, "culprit": to_blame(culprits) or "nobody"},
                cost_ms=cost_ms,
                evidence=(
                    f"{cost_ms:,.1f} of {view.waited_ns[life] / 1e6:,.1f} ms of waiting beside an idle CPU"
                    f"{f'; it ran on CPU {view.runs.cpus[home[life]]} only' if is_pinned else ''}"
                ),
                confidence=0.7,
                culprit=to_blame(culprits),
                span_ns=worst_span(view, waits),
                blame=culprits,
            )


def _homes(view: View) -> Ints:
    """Return the one CPU (index) that each thread ran on; -1 where there were others, or none."""
    real = view.runs.life >= 0
    life, cpu = view.runs.life[real], view.runs.cpu[real]
    low = np.full(len(view.lives), len(view.runs.cpus), np.int64)
    high = np.full(len(view.lives), -1, np.int64)
    np.minimum.at(low, life, cpu)
    np.maximum.at(high, life, cpu)
    return np.where(low == high, low, -1)


def _rivals(view: View, life: int, home: Ints) -> dict[str, float]:
    """Return the threads seen on that CPU only which held it for 10 % of the trace or more [ms]."""
    found: dict[str, float] = {}
    for other in np.flatnonzero((home == home[life]) & (view.ran_ns >= 0.1 * view.wall_ns)):
        if other != life and len(view.waits_by(int(other))) >= MANY:
            name = view.name(int(other))
            found[name] = found.get(name, 0.0) + float(view.ran_ns[other]) / 1e6
    return found
