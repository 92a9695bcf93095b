"""What following a finding's advice would win: the same work with the finding's cost taken off the thread's time.

An upper bound: whatever the thread waits for otherwise, a device or a clock, is taken to come no later for it; and
gains of several findings do not add up, since their costs overlap.
"""

from __future__ import annotations

from typing import Final

from strata.decision import Trust
from strata.host.analysis.findings.finding import Finding

LEAST_SHARE: Final = 0.01
"""Of its time that a thread is taken to need in any case: one that only waited would win without bound."""
_ASSUMED: Final = ("crosses-llc", "crosses-numa")
"""Findings whose cost is a number of moves times what one is assumed to cost."""


def without(cost_share: float) -> float:
    """Return how much more work fits in once a cost is gone: 1 for twice the work. `cost_share` is 0 to 1."""
    return 1.0 / max(1.0 - cost_share, LEAST_SHARE) - 1.0


def predicted_gain(finding: Finding) -> tuple[float, Trust] | None:
    """Return by what share the thread's throughput grows at most; None where no thread loses time."""
    if not finding.thread or finding.cost_share <= 0:
        return None
    trust = Trust.ASSUMED if finding.token in _ASSUMED else Trust.ANALYTIC
    return without(finding.cost_share), trust
