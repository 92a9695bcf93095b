"""How many threads of each pool waited for a CPU, over the time of a trace: what the dashboard draws as lanes."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from strata.arrays import Floats, Ints
from strata.host.analysis.run_queue_delays import Cause
from strata.host.analysis.view import TraceView
from strata.host.threads.pools import of_thread, stem

COLUMNS: Final = 220
MOST_POOLS: Final = 8
"""Pools with a critical thread first, then those that waited longest; what is beyond is one lane."""
OTHERS: Final = "(other threads)"


def pool_of(thread: str) -> str:
    """Return the pool that a thread's name speaks for, else the name without its number."""
    known = of_thread(thread)
    return known[0] if known is not None else stem(thread)


def pool_lanes(view: TraceView) -> list[dict[str, Any]]:
    """Return a lane for each pool that waited, in the stable JSON form of the report.

    `woken`, `preempted` and `yielded`: how many of its threads waited at a time for that cause, the mean over each
    of COLUMNS equal parts of the trace. Their sum over time is `waited_ms`.
    """
    by_pool: dict[str, list[int]] = defaultdict(list)
    for task in np.flatnonzero(view.waited_ns > 0).tolist():
        by_pool[pool_of(view.name(task))].append(task)
    pools = {pool: np.array(tasks) for pool, tasks in by_pool.items()}
    order = sorted(
        pools, key=lambda pool: (not _is_critical(view, pools[pool]), -view.waited_ns[pools[pool]].sum())
    )
    if len(order) > MOST_POOLS:
        rest = np.concatenate([pools[pool] for pool in order[MOST_POOLS - 1 :]])
        pools, order = {**pools, OTHERS: rest}, [*order[: MOST_POOLS - 1], OTHERS]
    return [_lane(view, pool, pools[pool]) for pool in order]


def _is_critical(view: TraceView, tasks: NDArray[np.intp]) -> bool:
    return bool(view.is_critical[tasks].any())


def _lane(view: TraceView, pool: str, tasks: NDArray[np.intp]) -> dict[str, Any]:
    delays = view.delays
    is_member = np.zeros(len(view.tasks), bool)
    is_member[tasks] = True
    waits = np.flatnonzero(is_member[delays.task])
    edges = np.linspace(0.0, float(view.wall_ns), COLUMNS + 1)
    lane: dict[str, Any] = {
        "pool": pool,
        "is_critical": _is_critical(view, tasks),
        "threads": len(tasks),
        "waits": len(waits),
        "waited_ms": round(float(view.waited_ns[tasks].sum()) / 1e6, 3),
        "longest_ms": round(float(delays.length_ns[waits].max(initial=0)) / 1e6, 3),
    }
    for cause in Cause:
        of_cause = waits[delays.cause[waits] == cause]
        start_ns = delays.start_ns[of_cause] - view.trace.start_ns
        waiting = _waiting(start_ns, start_ns + delays.length_ns[of_cause], edges)
        lane[cause.name.lower()] = [round(value, 3) for value in waiting.tolist()]
    return lane


def _waiting(start_ns: Ints, end_ns: Ints, edges_ns: Floats) -> Floats:
    """Return how many waited at a time, the mean of each column."""
    waited = _until(start_ns, edges_ns) - _until(end_ns, edges_ns)
    return np.asarray(np.maximum(np.diff(waited) / np.diff(edges_ns), 0.0))


def _until(times_ns: Ints, edges_ns: Floats) -> Floats:
    """Return the time that has passed at each edge since all the times before it, together."""
    times = np.sort(times_ns).astype(np.float64)
    before = np.searchsorted(times, edges_ns, side="right")
    return np.asarray(before * edges_ns - np.concatenate([[0.0], np.cumsum(times)])[before])
