"""Sleeps of critical threads that cost time by themselves: for Python's interpreter lock, and in page faults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from strata.host.analysis.findings.finding import WORTH_SHARE, Finding, Severity, of_thread
from strata.host.analysis.sleeps import sleeps_of
from strata.host.analysis.view import TraceView
from strata.host.threads.sleep_calls import SleepCall

TOKENS: Final[dict[SleepCall, str]] = {"interpreter_lock": "interpreter-lock", "fault": "page-faults"}
FEWEST: Final = 20
"""Looks that found a thread asleep, from which on shares of them are worth a finding (assumed)."""


def find(view: TraceView) -> Iterator[Finding]:
    """Find critical threads that were asleep for the interpreter or for pages, by the looks of the recorder.

    What else they sleep for, as a lock or a pipe, may be all that there is to wait for.
    """
    for task in view.critical_tasks:
        if sum(view.sleeping.get(int(view.tasks.tid[task]), {}).values()) < FEWEST:
            continue
        slept = sleeps_of(view, task)
        total_ms = sum(slept.ms.values())
        for call, token in TOKENS.items():
            share = slept.calls.get(call, 0.0)
            cost_ms = share * total_ms
            if cost_ms * 1e6 < WORTH_SHARE * float(view.lived_ns[task]):
                continue
            yield of_thread(
                view,
                task,
                token,
                {"share": cost_ms * 1e6 / float(view.lived_ns[task])},
                cost_ms=cost_ms,
                evidence=f"slept {total_ms:,.0f} ms. {slept.in_calls()}",
                confidence=0.8,
                worst=Severity.WARNING,
            )
