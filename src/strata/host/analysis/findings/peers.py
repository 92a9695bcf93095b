"""Threads that a critical one waits for: other ranks of its job, and those that wake it (GIL, data loaders)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.host.analysis.findings.finding import (
    WARNING_SHARE,
    WORTH_SHARE,
    Finding,
    listed,
    main_culprit,
    of_thread,
)
from strata.host.analysis.run_queue_delays import Cause
from strata.host.analysis.view import TraceView
from strata.host.threads.pools import stem


def straggling(view: TraceView) -> Iterator[Finding]:
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


OFTEN: Final = 0.3
"""Of a pool's wakeups: fewer come by chance from who ran when a timer fired (assumed)."""
DEPTH: Final = 3
"""Links of a chain that are followed: transforms, loaders, trainer."""


def woken_late(view: TraceView) -> Iterator[Finding]:
    """Find waits of a critical thread's wakers that lay within its sleep, and so made it longer.

    A timer's wakeup looks as if it came from whoever ran then, so a waker counts only where
    both wake each other often.
    """
    waits = view.delays
    pairs = _pairs(view)
    for task in view.critical_tasks:
        own = view.waits_by(task)
        handed: dict[str, float] = defaultdict(float)
        queued: list[int] = []
        for link, since_ns in sorted(_chain(view, own, pairs).items()):
            waker = int(waits.task[link])
            if not view.is_critical[waker]:
                handed[view.name(waker)] += float(waits.end_ns[link] - max(waits.start_ns[link], since_ns)) / 1e6
                queued.append(link)
        cost_ms = sum(handed.values())
        if cost_ms * 1e6 < WORTH_SHARE * view.lived_ns[task]:
            continue
        wakers = dict(sorted(handed.items(), key=lambda item: -item[1]))
        culprits = view.culprits(np.array(queued, np.intp))
        worst = next(iter(wakers))
        yield of_thread(
            view,
            task,
            "waker-waits",
            {"waker": worst, "cost": cost_ms, "culprit": main_culprit(culprits) or "nobody"},
            cost_ms=cost_ms,
            evidence=f"its wakers waited first: {listed(wakers)}; on the CPU meanwhile: {listed(culprits)}",
            confidence=0.65,
            culprits=culprits,
        )


def _pairs(view: TraceView) -> set[tuple[str, str]]:
    """Return which pools of threads wake each other: (waker, woken), each a good part of the other's wakeups."""
    waits = view.delays
    woken = np.flatnonzero(waits.cause == Cause.WOKEN)
    pool = [stem(view.name(task)) for task in range(len(view.tasks))]
    total = Counter(pool[task] for task in waits.task[woken].tolist())
    woken = woken[waits.waker[woken] >= 0]
    seen = Counter(
        (pool[a], pool[b]) for a, b in zip(waits.waker[woken].tolist(), waits.task[woken].tolist(), strict=True)
    )
    often = {(a, b) for (a, b), count in seen.items() if count >= OFTEN * total[b]}
    return {(a, b) for a, b in often if (b, a) in often}


def _chain(view: TraceView, own: NDArray[np.intp], pairs: set[tuple[str, str]]) -> dict[int, int]:
    """Return the waits of wakers, and of their wakers, within the sleep before each wakeup, and its start [ns]."""
    waits = view.delays
    links: dict[int, int] = {}
    ran = (
        np.sort(view.on_cpu.end_ns[view.on_cpu.task == waits.task[own[0]]]) if len(own) else np.zeros(0, np.int64)
    )
    for wait in own[(waits.cause[own] == Cause.WOKEN) & (waits.waker[own] >= 0)].tolist():
        # What its waker lost before it went to sleep cost it nothing.
        asleep = int(np.searchsorted(ran, waits.start_ns[wait], side="right")) - 1
        since = int(ran[asleep]) if asleep >= 0 else int(view.trace.start_ns)
        woken_ns = int(waits.start_ns[wait])
        for _ in range(DEPTH):
            waker = int(waits.waker[wait])
            if (stem(view.name(waker)), stem(view.name(int(waits.task[wait])))) not in pairs:
                break
            last = _last_wait(view, waker, woken_ns)
            if last is None or last in links or int(waits.end_ns[last]) <= since:
                break
            links[last] = since
            wait, woken_ns = last, int(waits.start_ns[last])
    return links


def _last_wait(view: TraceView, task: int, before_ns: int) -> int | None:
    """Return the last wait of a thread that was over before a time."""
    first, last = np.searchsorted(view.delays.task, [task, task + 1])
    place = int(np.searchsorted(view.delays.end_ns[first:last], before_ns, side="right")) - 1
    return int(first) + place if place >= 0 else None
