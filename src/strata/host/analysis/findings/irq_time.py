"""Interrupts that take a critical thread's CPU while it runs, or while it waits for it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from strata.host.analysis.findings.finding import WORTH_SHARE, Finding, listed, of_thread
from strata.host.analysis.view import View


def find(view: View) -> Iterator[Finding]:
    """Find the interrupts whose handlers took a critical thread's time."""
    interrupts = view.interrupts
    length_ns = interrupts.end_ns - interrupts.start_ns
    for task in view.critical_tasks:
        is_own = interrupts.task == task
        held_ns = np.bincount(interrupts.cause[is_own], length_ns[is_own], len(interrupts.causes))
        culprits = dict(zip(interrupts.causes, (held_ns / 1e6).tolist(), strict=True))
        for cause, ms in view.culprits_of(task).items():
            if cause in culprits:
                culprits[cause] += ms
        culprits = dict(sorted(culprits.items(), key=lambda item: -item[1]))
        cost_ms = sum(culprits.values())
        if cost_ms * 1e6 < WORTH_SHARE * view.lived_ns[task]:
            continue
        worst = next(iter(culprits))
        longest = np.flatnonzero(is_own)
        span = longest[length_ns[longest].argmax()] if len(longest) else None
        yield of_thread(
            view,
            task,
            "irq-time",
            {"culprit": worst, "cost": cost_ms},
            cost_ms=cost_ms,
            evidence=f"{int(is_own.sum())} interrupts while it ran; with those of its waits: {listed(culprits)}",
            confidence=0.9,
            culprit=worst,
            culprits=culprits,
            span_ns=None if span is None else (int(interrupts.start_ns[span]), int(interrupts.end_ns[span])),
        )
