"""The agent's threads that look: at the tools now and then, at the bus always, at NVML's events when they come.

Each is a function that runs until it is told to stop, and gives what it found to `put`.
"""

from __future__ import annotations

import select
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from strata.cluster.agent import trace, xid
from strata.cluster.agent.collect import Collected
from strata.cluster.agent.trace import AerTrace
from strata.cluster.agent.watch import BusWatch
from strata.fleet.health import Reading

Put = Callable[[Any], None]
Clock = Callable[[], float]
Collect = Callable[[float, Mapping[str, Reading] | None], Collected]
"""Asks all tools: the time, and the readings of before to judge by."""

SPAN_S: Final = 300.0
"""Counters are judged against those of so long ago, so that one corrected error is not yet a rate."""

REST_S: Final = 1.0
"""At least, between two rounds of asking the tools, however many faults say that one should look."""

POLL_S: Final = 0.1
TRACE_REST_S: Final = 0.01
XID_WAIT_S: Final = 1.0
RETRY_S: Final = 30.0
"""A driver may be loaded after the agent has started."""


def ask_tools(
    collect: Collect, put: Put, *, every_s: float, look: threading.Event, stopped: threading.Event, clock: Clock
) -> None:
    """Collect every so often, and at once when `look` is set."""
    past: deque[tuple[float, Mapping[str, Reading]]] = deque()
    while not stopped.is_set():
        now_s = clock()
        while len(past) > 1 and past[1][0] <= now_s - SPAN_S:
            past.popleft()
        found = collect(now_s, past[0][1] if past else None)
        past.append((now_s, found.readings))
        put(found)
        if not stopped.wait(min(REST_S, every_s)):
            look.wait(max(0.0, every_s - REST_S))
        look.clear()


def watch_bus(
    addresses: Callable[[], tuple[str, ...]],
    put: Put,
    *,
    stopped: threading.Event,
    clock: Clock,
    root: Path = Path("/sys"),
    poll_s: float = POLL_S,
    start_trace: Callable[[], AerTrace | None] = trace.start,
) -> None:
    """Follow the bus errors of the devices at `addresses()`, which may change."""
    tracing, bus = start_trace(), BusWatch((), root=root)
    try:
        while not stopped.is_set():
            if addresses() != bus.addresses:
                bus.close()
                bus = BusWatch(addresses(), root=root)
            if tracing is None:
                stopped.wait(poll_s)
            elif select.select([tracing.fd], [], [], poll_s)[0]:
                for fault in tracing.read(clock()):
                    put(fault)
                stopped.wait(TRACE_REST_S)  # a flood of corrected errors must not keep this busy
            for fault in bus.poll(clock()):
                put(fault)
    finally:
        bus.close()
        if tracing is not None:
            tracing.close()


def listen_for_xids(
    load: Callable[[], Any | None], put: Put, *, stopped: threading.Event, clock: Clock, retry_s: float = RETRY_S
) -> None:
    """Follow NVML's events. Without a driver, or a card that has events, it is tried again every `retry_s`."""
    while not stopped.is_set():
        watch = xid.start(load)
        if watch is None:
            stopped.wait(retry_s)
            continue
        while not stopped.is_set() and not watch.is_broken:
            if (fault := watch.wait(XID_WAIT_S, clock=clock)) is not None:
                put(fault)
        watch.close()
        stopped.wait(REST_S)
