"""What a node's agent knows of its devices, and when it tells: no clock, no thread, no API server in here.

What it is told goes in (`collected`, `faulted`, `measured`, `probed`, `published`, `failed`), each with the time;
what it should publish comes out of `take`, not before `due_s`. Only the newest state is ever published: an API
server that was away for an hour is told once.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from strata.cluster.agent import benchmark
from strata.cluster.agent.benchmark import Timing
from strata.cluster.agent.load import LoadHistory
from strata.cluster.agent.watch import DeviceFault
from strata.errors import StrataError
from strata.fleet import health
from strata.fleet.discovery.collect import Collected
from strata.fleet.fingerprint import Device, Fingerprint, Probe
from strata.fleet.health import DeviceReading

JITTER: Final = 0.1
"""Heartbeats and retries of a thousand nodes spread by so much either way."""


@dataclass(frozen=True, slots=True)
class PublishInterval:
    """How often it publishes: at once when something changed, else by the heartbeat.

    probed_s: sooner, where devices were probed. gap_s: at least, between two publications. backoff_s: after the
    first failure; doubled at each, up to longest_s. hold_s: how long a fault stays that does not need a reset; one
    that does stays until a restart.
    """

    heartbeat_s: float = 150.0
    probed_s: float = 30.0
    gap_s: float = 0.25
    backoff_s: float = 0.5
    longest_s: float = 30.0
    hold_s: float = 600.0


class Agent:
    """One node's state. Times come from a clock that never goes back."""

    def __init__(self, pace: PublishInterval | None = None, *, rng: random.Random) -> None:
        self.pace = pace or PublishInterval()
        self._rng = rng
        self._base: Fingerprint | None = None
        self._faults: dict[str, dict[str, float]] = {}  # device: word: until when
        self._driverless: set[str] = set()
        self._timings: dict[str, Sequence[Timing]] = {}
        self._links: dict[tuple[str, str], float] = {}
        self._probes: dict[str, Probe] = {}
        self._loads = LoadHistory()
        self._nvlinks: dict[str, int] = {}  # the most that were up at once
        self._taken: Fingerprint | None = None
        self._published: Fingerprint | None = None
        self._failures = 0
        self._not_before_s = -math.inf
        self._told_s = -math.inf
        self._spread = 1.0

    def collected(self, new: Collected) -> None:
        """Take a collection. A device that a tool which answers shows no more has dropped off: it stays, lost.

        Where the tool or its driver has gone as a whole, as for an upgrade, its devices are without health until
        they are seen again.
        """
        self._loads.take(new.readings)
        self._count_nvlinks(new.readings)
        old = self._base
        self._base = new.fingerprint if old is None else _merged(new, old)
        here = {device.uuid for device in new.fingerprint.devices}
        missing = [
            device for device in self._base.devices if device.uuid not in here and device.vendor not in new.failed
        ]
        self._driverless = {device.uuid for device in missing if device.vendor not in new.answered}
        for device in missing:
            if device.vendor in new.answered:
                self._faults.setdefault(device.uuid, {})["lost"] = math.inf

    def _count_nvlinks(self, readings: Mapping[str, DeviceReading]) -> None:
        """Note whose links are fewer than they were: those that a board never uses are down on every one."""
        for uuid, reading in readings.items():
            if reading.nvlinks is None:
                continue
            self._nvlinks[uuid] = max(reading.nvlinks, self._nvlinks.get(uuid, 0))
            held = self._faults.setdefault(uuid, {})
            if reading.nvlinks < self._nvlinks[uuid]:
                held["nvlink-down"] = math.inf
            else:
                held.pop("nvlink-down", None)

    def faulted(self, fault: DeviceFault) -> bool:
        """Take a fault; return whether it is news. One that a program causes by itself never is."""
        if not fault.device or not fault.word or (cost := health.weight(fault.word)) == 1.0:
            return False
        held = self._faults.setdefault(fault.device, {})
        is_news = fault.word not in held
        held[fault.word] = math.inf if cost == 0.0 else fault.at_s + self.pace.hold_s
        return is_news

    def measured(self, uuid: str, timings: Sequence[Timing]) -> None:
        """Take a device's benchmark. Raises StrataError for one that cannot be true; it is not kept then."""
        device = next((device for device in self._devices() if device.uuid == uuid), None)
        if device is not None:
            benchmark.measured_card(device, timings)
            self._timings[uuid] = timings

    def linked(self, uuids: Sequence[str], timings: Iterable[Timing]) -> None:
        """Take the benchmark of links; places in its pairs are places in `uuids`. Raises as `measured`."""
        for (i, j), rate in benchmark.link_rates(timings).items():
            self._links[uuids[i], uuids[j]] = rate

    def probed(self, uuid: str, probe: Probe) -> None:
        """Take what a device just did. Raises StrataError for a rate or a power that is none."""
        if not (math.isfinite(probe.rate_flops) and probe.rate_flops >= 0 and math.isfinite(probe.power_w or 0.0)):
            raise StrataError(f"probe of {uuid}: {probe.rate_flops} FLOP/s at {probe.power_w} W cannot be")
        self._probes[uuid] = probe

    def now(self, now_s: float) -> Fingerprint | None:
        """Return the node as it is known; None before the first collection."""
        if self._base is None:
            return None
        devices = tuple(self._judged(device, now_s) for device in self._base.devices)
        places = {device.uuid: i for i, device in enumerate(devices)}
        measured = dict(self._base.measured)
        for (uuid, other_uuid), rate in self._links.items():
            if uuid in places and other_uuid in places:
                i, j = sorted((places[uuid], places[other_uuid]))
                measured[i, j] = rate
        return replace(self._base, devices=devices, measured=measured)

    def due_s(self, now_s: float) -> float:
        """Return when `take` has something to publish, if nothing happens before."""
        current = self.now(now_s)
        if current is None or self._taken is not None:
            return math.inf
        before, wait_s = self._published, self.pace.heartbeat_s
        if before is None or current.steady() != before.steady():
            return self._not_before_s
        if any(now.probe != then.probe for now, then in zip(current.devices, before.devices, strict=True)):
            wait_s = min(wait_s, self.pace.probed_s)
        return max(self._not_before_s, self._told_s + wait_s * self._spread)

    def take(self, now_s: float) -> Fingerprint | None:
        """Return what is to be published now, if anything; nothing more until `published` or `failed`."""
        if self.due_s(now_s) > now_s:
            return None
        self._taken = self.now(now_s)
        return self._taken

    def published(self, now_s: float) -> None:
        """What was taken is known to the API server."""
        self._published, self._taken = self._taken, None
        self._failures = 0
        self._not_before_s = now_s + self.pace.gap_s
        self._told_s, self._spread = now_s, self._jitter()

    def failed(self, now_s: float, *, retry_after_s: float = 0.0) -> None:
        """What was taken could not be published; the state of then is forgotten, the state of later is tried."""
        self._taken = None
        backoff_s = min(self.pace.longest_s, self.pace.backoff_s * 2.0 ** min(self._failures, 30))
        self._failures += 1
        self._not_before_s = now_s + max(backoff_s * self._jitter(), retry_after_s)

    def _devices(self) -> Sequence[Device]:
        return self._base.devices if self._base is not None else ()

    def _judged(self, device: Device, now_s: float) -> Device:
        words = {"no-driver": math.inf} if device.uuid in self._driverless else {}
        for name in {device.uuid, device.bus_id} - {""}:
            held = self._faults.get(name, {})
            for word in [word for word, until in held.items() if until <= now_s]:
                del held[word]
            words |= held
        if timings := self._timings.get(device.uuid):
            device = replace(device, card=benchmark.measured_card(device, timings))
        judgement = health.of_faults(words)
        return replace(
            device,
            # Several sources often mean the same fault: the worse counts.
            health=min(device.health, judgement.score) if math.isfinite(device.health) else 0.0,
            faults=tuple(dict.fromkeys((*judgement.faults, *device.faults))),
            probe=self._probes.get(device.uuid),
            load=self._loads.of(device.uuid),
        )

    def _jitter(self) -> float:
        return self._rng.uniform(1 - JITTER, 1 + JITTER)


def _merged(new: Collected, old: Fingerprint) -> Fingerprint:
    """Bring a collection into the order of before: a device's place is its number in placements.

    Devices it misses stay in theirs, as they were seen last; new ones come last.
    """
    fingerprint = new.fingerprint
    # A card that is off the bus answers nothing, not even its name: it is the one we know by its number.
    named = {(device.vendor, device.index) for device in old.devices if not _is_nameless(device)}
    present = {
        device.uuid: device
        for device in fingerprint.devices
        if not (_is_nameless(device) and (device.vendor, device.index) in named)
    }
    numbered = {(device.vendor, device.index): device for device in present.values()}
    seen: dict[str, Device] = {}
    for device in old.devices:
        now = present.get(device.uuid, device)
        now = numbered.get((now.vendor, now.index), now) if _is_nameless(now) else now
        seen[now.uuid] = now
    stale = [device for device in seen.values() if device.uuid not in present and device.vendor in new.failed]
    seen |= present
    places = {uuid: place for place, uuid in enumerate(seen)}
    links: dict[tuple[int, int], str] = {}
    for source in (old, fingerprint):
        uuids = [device.uuid for device in source.devices]
        for (i, j), link in source.links.items():
            if uuids[i] in places and uuids[j] in places:
                low, high = sorted((places[uuids[i]], places[uuids[j]]))
                links[low, high] = link
    notes = (f"last seen earlier: {', '.join(device.uuid for device in stale)}",) if stale else ()
    return replace(
        fingerprint,
        devices=tuple(seen.values()),
        links=dict(sorted(links.items())),
        can_p2p=fingerprint.can_p2p and (old.can_p2p or not stale),
        notes=fingerprint.notes + notes,
    )


def _is_nameless(device: Device) -> bool:
    return "lost" in device.faults and device.memory_bytes == 0
