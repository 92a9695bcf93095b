"""Processes that are started and end by the hundreds: each is new to the caches, and wants a CPU at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from strata.host.analysis.findings.finding import WORTH_SHARE, Finding, listed, of_thread
from strata.host.analysis.view import View
from strata.host.trace.events import EventKind

STORM_PER_S: Final = 50
"""New threads of one parent's name a second; a shell script makes about ten (assumed)."""


def find(view: View) -> Iterator[Finding]:
    """Find storms of forks whose children held CPUs that critical threads waited for."""
    events = view.trace.events
    forks = events.of(EventKind.FORK)
    parents = view.tasks.at(events.other[forks], forks)
    children = view.tasks.at(events.tid[forks], forks)
    born: Counter[str] = Counter()
    names: dict[str, set[str]] = defaultdict(set)
    for i, (parent, child) in enumerate(zip(parents.tolist(), children.tolist(), strict=True)):
        name = view.name(parent) if parent >= 0 else view.trace.names[int(events.other_comm[forks[i]])]
        born[name] += 1
        names[name] |= {name, view.name(child)}
    for name, count in born.most_common():
        rate = count * 1e9 / view.wall_ns
        if rate < STORM_PER_S:
            return
        for task in view.critical_tasks:
            held = {culprit: ms for culprit, ms in view.culprits_of(task).items() if culprit in names[name]}
            if sum(held.values()) * 1e6 >= WORTH_SHARE * view.lived_ns[task]:
                yield of_thread(
                    view,
                    task,
                    "fork-storm",
                    {"culprit": name, "rate": rate},
                    cost_ms=sum(held.values()),
                    evidence=f"{count:,} new threads; on the CPU during this thread's waits: {listed(held)}",
                    confidence=0.85,
                    culprit=name,
                )
