"""What devices did of late, for the test of slowness: probes and loads as the controller received them.

A probe is the same work on every idle device, so all devices of a model are compared by its rate. Of busy devices
those that work together are compared: the pods of a gang do the same, step by step, and wait for the last of them,
so it is the clock of each that tells who holds the others up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from strata.fleet.fingerprint import Fingerprint
from strata.fleet.health import MIN_SAMPLES, WINDOW_S, Sample, Slow, slow

NO_GANGS: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SubHealthReport:
    """slow: as `health.slow` has it. judged: devices with enough samples to say anything of them."""

    slow: tuple[Slow, ...] = ()
    judged: frozenset[str] = frozenset()


@dataclass
class Window:
    """The samples of the last `window_s`; what is published again is not a new sample."""

    window_s: float = WINDOW_S
    _probes: list[Sample] = field(default_factory=list)
    _clocks: list[Sample] = field(default_factory=list)
    _probed_s: dict[str, float] = field(default_factory=dict)
    _readings: dict[str, int] = field(default_factory=dict)

    def add(self, fingerprint: Fingerprint, received_s: float, gangs: Mapping[int, str] = NO_GANGS) -> None:
        """Take what a node published. received_s: by the controller's clock, since the node's own may be off.

        gangs: who holds its devices, by place.
        """
        for place, device in enumerate(fingerprint.devices):
            uuid, probe, load = device.uuid, device.probe, device.load
            # By the node's own clock, and its own count, so whatever is unlike is new.
            if probe is not None and self._probed_s.get(uuid, math.nan) != probe.at_s:
                self._probed_s[uuid] = probe.at_s
                self._probes.append(Sample(received_s, uuid, device.model, probe.rate_flops, probe.power_w))
            if load is not None and self._readings.get(uuid) != load.readings:
                self._readings[uuid] = load.readings
                if load.sm_clock_share is not None and place in gangs:
                    sample = Sample(received_s, uuid, device.model, load.sm_clock_share, cohort=gangs[place])
                    self._clocks.append(sample)

    def look(self, now_s: float) -> SubHealthReport:
        """Judge what is in the window, and forget what is older."""
        self._probes, self._clocks = (
            [sample for sample in some if sample.at_s > now_s - self.window_s]
            for some in (self._probes, self._clocks)
        )
        counts = Counter(sample.uuid for sample in (*self._probes, *self._clocks))
        judged = frozenset(uuid for uuid, count in counts.items() if count >= MIN_SAMPLES)
        by_probe = slow(self._probes, now_s, window_s=self.window_s)
        by_clock = [replace(each, what="clock") for each in slow(self._clocks, now_s, window_s=self.window_s)]
        worst = {each.uuid: each for each in (*by_clock, *by_probe)}  # a probe compares more devices
        return SubHealthReport(tuple(sorted(worst.values(), key=lambda each: (each.share, each.uuid))), judged)
