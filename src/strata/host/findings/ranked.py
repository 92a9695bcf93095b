"""All detectors, and what they find in the order in which it matters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from strata.host.findings import (
    chains,
    delay,
    forks,
    frequency,
    gaps,
    gpu_idle,
    idle,
    moves,
    pools,
    preempted,
    starved,
    stolen,
    stragglers,
    theft,
    throttled,
    yields,
)
from strata.host.findings.finding import Finding
from strata.host.view import View

DETECTORS: Final[tuple[Callable[[View], Iterator[Finding]], ...]] = (
    delay.find,
    gpu_idle.find,
    preempted.find,
    theft.find,
    stolen.find,
    throttled.find,
    moves.find,
    yields.find,
    pools.find,
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
    found = [finding for find in DETECTORS for finding in find(view)]
    return tuple(sorted(found, key=lambda one: (-one.severity.rank, -one.cost_ms * one.blamed * one.confidence)))
