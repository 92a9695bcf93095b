"""All detectors, and what they find in the order in which it matters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from strata.host.analysis.findings import (
    chains,
    delay,
    forks,
    frequency,
    gaps,
    gpu_idle,
    idle,
    irq_time,
    moves,
    oversubscription,
    preempted,
    starved,
    stolen,
    stragglers,
    throttled,
    yields,
)
from strata.host.analysis.findings.finding import Finding
from strata.host.analysis.view import View

DETECTORS: Final[tuple[Callable[[View], Iterator[Finding]], ...]] = (
    delay.find,
    gpu_idle.find,
    preempted.find,
    irq_time.find,
    stolen.find,
    throttled.find,
    moves.find,
    yields.find,
    oversubscription.find,
    forks.find,
    idle.find,
    frequency.find,
    stragglers.find,
    chains.find,
    starved.find,
    gaps.find,
)


def findings_of(view: View) -> tuple[Finding, ...]:
    """Return all findings: the most severe first, among these whose culprit alone cost most.

    So one thief of 300 ms comes before 400 ms that many others had between them.
    """
    findings = [finding for find in DETECTORS for finding in find(view)]
    return tuple(
        sorted(
            findings,
            key=lambda finding: (
                -finding.severity.rank,
                -finding.cost_ms * finding.culprit_share * finding.confidence,
            ),
        )
    )
