"""What devices did of late, for the test of slowness: probes and loads as the controller received them.

A probe is the same work on every idle device, so all devices of a model are compared by its rate. Of busy devices
those that work together are compared: the pods of a gang do the same, step by step, and wait for the last of them,
so it is the clock of each that tells who holds the others up. Its median over five minutes is the agent's, which
reads it every few seconds; it counts once the device has been its gang's for as long.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from strata.cluster.cache.informer import STALE_S
from strata.fleet.fingerprint import DeviceLoad, Fingerprint
from strata.fleet.health import MIN_SAMPLES, WINDOW_S, Sample, Slow, outliers, slow

NO_GANGS: Final[Mapping[int, str]] = MappingProxyType({})


class _Clock(NamedTuple):
    """A device at its gang's work: since when it is known there, and what was said of it last, at which time.

    share: None before anything new was said.
    """

    model: str
    gang: str
    since_s: float
    at_s: float
    readings: int
    share: float | None = None


@dataclass(frozen=True, slots=True)
class SubHealthReport:
    """slow: as `health.slow` has it. judged: devices with enough samples to say anything of them."""

    slow: tuple[Slow, ...] = ()
    judged: frozenset[str] = frozenset()


@dataclass
class Window:
    """What was said in the last `window_s`, of clocks as long as an agent counts as heard of.

    What is published again is nothing new.
    """

    window_s: float = WINDOW_S
    _probes: list[Sample] = field(default_factory=list)
    _clocks: dict[str, _Clock] = field(default_factory=dict)
    _probed_s: dict[str, float] = field(default_factory=dict)

    def add(self, fingerprint: Fingerprint, received_s: float, gangs: Mapping[int, str] = NO_GANGS) -> None:
        """Take what a node published. received_s: by the controller's clock, since the node's own may be off.

        gangs: who holds its devices, by place.
        """
        for place, device in enumerate(fingerprint.devices):
            uuid, probe, gang = device.uuid, device.probe, gangs.get(place)
            # By the node's own clock, and its own count, so whatever is unlike is new.
            if probe is not None and self._probed_s.get(uuid, math.nan) != probe.at_s:
                self._probed_s[uuid] = probe.at_s
                self._probes.append(Sample(received_s, uuid, device.model, probe.rate_flops, probe.power_w))
            load = device.load or DeviceLoad(0)
            clock = self._clocks.pop(uuid, None)
            if gang is None:
                continue
            if clock is None or clock.gang != gang:
                clock = _Clock(device.model, gang, received_s, received_s, load.readings)
            elif load.readings != clock.readings:
                share = load.sm_clock_share if load.median_sm_clock_share is None else load.median_sm_clock_share
                clock = clock._replace(at_s=received_s, readings=load.readings, share=share)
            self._clocks[uuid] = clock

    def look(self, now_s: float) -> SubHealthReport:
        """Judge what is in the window, and forget what is older."""
        self._probes = [sample for sample in self._probes if sample.at_s > now_s - self.window_s]
        heard_s = now_s - max(self.window_s, STALE_S)
        self._clocks = {uuid: clock for uuid, clock in self._clocks.items() if clock.at_s > heard_s}
        at_work: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
        for uuid, clock in self._clocks.items():
            if clock.share is not None and clock.at_s - clock.since_s >= self.window_s:
                at_work[clock.model, clock.gang][uuid] = clock.share
        counts = Counter(sample.uuid for sample in self._probes)
        probed = (uuid for uuid, count in counts.items() if count >= MIN_SAMPLES)
        judged = frozenset(probed).union(*at_work.values())
        by_probe = slow(self._probes, now_s, window_s=self.window_s)
        # A probe compares more devices.
        worst = {each.uuid: each for each in (*outliers(at_work, "clock"), *by_probe)}
        return SubHealthReport(tuple(sorted(worst.values(), key=lambda each: (each.share, each.uuid))), judged)
