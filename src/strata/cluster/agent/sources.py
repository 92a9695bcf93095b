"""The agent's threads that look: at the tools now and then, at the bus always, at NVML's events when they come.

Each is a function that runs until it is told to stop, and gives what it found to `put`.
"""

from __future__ import annotations

import logging
import select
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any, Final

from strata.clock import Clock
from strata.cluster.agent import probe, xid
from strata.cluster.agent.benchmark import is_idle
from strata.cluster.agent.watch import BusWatch, Presence, start_trace
from strata.errors import StrataError
from strata.fleet.discovery.collect import Collected
from strata.fleet.fingerprint import Device, Fingerprint
from strata.fleet.health import DeviceReading

log = logging.getLogger(__name__)

Put = Callable[[Any], None]
Collect = Callable[[float, Mapping[str, DeviceReading] | None], Collected]
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
    collect: Collect,
    put: Put,
    *,
    took: Callable[[float], None],
    every_s: float,
    look: threading.Event,
    stopped: threading.Event,
    clock: Clock,
) -> None:
    """Collect every so often, and at once when `look` is set; `took` is told how long each time took [s]."""
    past: deque[tuple[float, Mapping[str, DeviceReading]]] = deque()
    while not stopped.is_set():
        now_s = clock()
        while len(past) > 1 and past[1][0] <= now_s - SPAN_S:
            past.popleft()
        collection = collect(now_s, past[0][1] if past else None)
        took(clock() - now_s)
        past.append((now_s, collection.readings))
        put(collection)
        if not stopped.wait(min(REST_S, every_s)):
            look.wait(max(0.0, every_s - REST_S))
        look.clear()


Addresses = Callable[[], tuple[str, ...]]
"""Where on the bus the devices are, as far as they are known by now."""


def watch_errors(
    addresses: Addresses,
    put: Put,
    *,
    stopped: threading.Event,
    clock: Clock,
    root: Path = Path("/sys"),
    poll_s: float = POLL_S,
) -> None:
    """Follow the bus errors of devices, by the kernel's counters and, where it may be had, its trace."""
    tracing, bus = start_trace(root), BusWatch((), root=root)
    try:
        while not stopped.is_set():
            if (wanted := addresses()) != bus.addresses:
                bus.close()
                bus = BusWatch(wanted, root=root)
            if tracing is None:
                stopped.wait(poll_s)
            elif select.select([tracing.fd], [], [], poll_s)[0]:
                for fault in tracing.read(clock()):
                    if fault.device in wanted:  # it tells of everything on the bus
                        put(fault)
                stopped.wait(TRACE_REST_S)  # a flood of corrected errors must not keep this busy
            for fault in bus.poll(clock()):
                put(fault)
    finally:
        bus.close()
        if tracing is not None:
            tracing.close()


def watch_presence(
    addresses: Addresses,
    put: Put,
    *,
    stopped: threading.Event,
    clock: Clock,
    root: Path = Path("/sys"),
    poll_s: float = POLL_S,
) -> None:
    """Follow whether devices are on the bus."""
    presence = Presence((), root=root)
    try:
        while not stopped.wait(poll_s):
            if (wanted := addresses()) != presence.addresses:
                presence.close()
                presence = Presence(wanted, root=root)
            for fault in presence.poll(clock()):
                put(fault)
    finally:
        presence.close()


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


def run_benchmarks(
    current: Callable[[], Fingerprint | None],
    put: Put,
    *,
    at_start: bool,
    probe_every_s: float | None,
    stopped: threading.Event,
    wall_clock: Clock,
    measure: Callable[[probe.What, Sequence[Device]], Mapping[str, Any]] = probe.measure,
) -> None:
    """Benchmark idle devices, one after the other: in full when this starts, by a short probe every so often.

    A device counts as idle by its memory and utilisation; a job that starts meanwhile shares it for the rest.
    """

    def tried(what: probe.What, devices: Sequence[Device]) -> Mapping[str, Any] | None:
        try:
            return measure(what, devices)
        except StrataError as error:
            log.warning("%s", error)
            return None

    while current() is None and not stopped.is_set():
        stopped.wait(REST_S)
    if at_start and not stopped.is_set():
        idle = _idle(current())
        for device in idle:
            if (result := tried("device", [device])) is not None:
                put(methodcaller("measured", device.uuid, probe.timings_of(result)))
        for vendor in dict.fromkeys(device.vendor for device in idle):
            ours = [device for device in idle if device.vendor == vendor]
            if len(ours) > 1 and (result := tried("links", ours)) is not None:
                put(methodcaller("linked", [device.uuid for device in ours], probe.timings_of(result)))
    while probe_every_s is not None and not stopped.wait(probe_every_s):
        for device in _idle(current()):
            if (result := tried("probe", [device])) is not None:
                put(methodcaller("probed", device.uuid, probe.probe_of(result, wall_clock())))


def _idle(fingerprint: Fingerprint | None) -> list[Device]:
    return [device for device in fingerprint.devices if is_idle(device)] if fingerprint is not None else []
