"""Threads that want to run and do not, to the end of the trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from strata.decision import Reason
from strata.host.findings.finding import Finding, Severity, listed, to_blame
from strata.host.view import View

STARVED_NS: Final = 1_000_000_000
"""As long as any fair scheduler never lets a thread wait."""
MOST: Final = 20
"""Threads that are told of: on a host without CPU to give, all are starved."""


def find(view: View) -> Iterator[Finding]:
    """Find waits of a second and more; of critical threads they are errors."""
    waits = view.waits
    long = np.flatnonzero(waits.length_ns >= STARVED_NS)
    lives, count = np.unique(waits.life[long], return_counts=True)
    matters = np.lexsort((-view.waited_ns[lives], ~view.is_critical[lives]))[:MOST]
    first = np.searchsorted(waits.life[long], lives)
    for i in matters.tolist():
        life, mine = int(lives[i]), long[first[i] : first[i] + count[i]]
        cost_ms = float(waits.length_ns[mine].sum()) / 1e6
        culprits = view.culprits(mine)
        worst = int(mine[waits.length_ns[mine].argmax()])
        still = "" if waits.is_over[mine].all() else ", and still waits when the trace ends"
        yield Finding(
            Reason("thread-starved", view.name(life), {"longest": waits.length_ns[worst] / 1e9}),
            Severity.ERROR if view.is_critical[life] and not view.is_guessed else Severity.INFO,
            f"{len(mine)} waits of a second or more{still}; on the CPU meanwhile: {listed(culprits)}",
            cost_ms,
            0.9,
            view.name(life),
            int(view.lives.tid[life]),
            to_blame(culprits),
            cost_ms * 1e6 / float(view.lived_ns[life]),
            (int(waits.start_ns[worst]), int(waits.end_ns[worst])),
        )
