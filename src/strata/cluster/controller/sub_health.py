"""What devices did of late, for the test of slowness: probes as the controller received them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from strata.fleet.fingerprint import Fingerprint
from strata.fleet.health import MIN_SAMPLES, WINDOW_S, Sample, Slow, slow


def samples_of(fingerprint: Fingerprint, received_s: float) -> tuple[Sample, ...]:
    """Return a fingerprint's probes as samples of the time they were received, by the controller's clock.

    When the node says it measured is not believed: its clock may be off. Power goes along, so that FLOP/s per watt
    are judged beside FLOP/s.
    """
    return tuple(
        Sample(received_s, device.uuid, device.model, device.probe.rate_flops, device.probe.power_w)
        for device in fingerprint.devices
        if device.probe is not None
    )


@dataclass(frozen=True, slots=True)
class SubHealthReport:
    """slow: as `health.slow` has it. judged: devices with enough samples to say anything of them."""

    slow: tuple[Slow, ...] = ()
    judged: frozenset[str] = frozenset()


@dataclass
class Window:
    """The samples of the last `window_s`; a probe that is published again is not a new sample."""

    window_s: float = WINDOW_S
    _samples: list[Sample] = field(default_factory=list)
    _last: dict[str, float] = field(default_factory=dict)

    def add(self, fingerprint: Fingerprint, received_s: float) -> None:
        """Take what a node published."""
        said_s = {device.uuid: device.probe.at_s for device in fingerprint.devices if device.probe is not None}
        for sample in samples_of(fingerprint, received_s):
            # By the node's own clock, so whatever is unlike is new.
            if self._last.get(sample.uuid, math.nan) != said_s[sample.uuid]:
                self._last[sample.uuid] = said_s[sample.uuid]
                self._samples.append(sample)

    def look(self, now_s: float) -> SubHealthReport:
        """Judge what is in the window, and forget what is older."""
        self._samples = [sample for sample in self._samples if sample.at_s > now_s - self.window_s]
        counts = Counter(sample.uuid for sample in self._samples)
        judged = frozenset(uuid for uuid, count in counts.items() if count >= MIN_SAMPLES)
        return SubHealthReport(slow(self._samples, now_s, window_s=self.window_s), judged)
