"""How busy devices run, from one reading to the next: a probe needs an idle device, and busy ones are what counts.

What was seen last while a device was busy stays, as its figures are those of its work and not of an idle card.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from strata.fleet.fingerprint import DeviceLoad
from strata.fleet.health import WINDOW_S, DeviceReading

STEADY: Final = 0.025
"""How far the median may waver untold: what a card is worth changes with it, and routers start anew."""


@dataclass
class LoadHistory:
    """By device: its newest load, and the clocks of the last five minutes that it was busy."""

    _loads: dict[str, DeviceLoad] = field(default_factory=dict)
    _clocks: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)

    def take(self, readings: Mapping[str, DeviceReading]) -> None:
        """Take what the tools said of each device."""
        for uuid, reading in readings.items():
            if not reading.is_busy:
                continue
            clocks = self._clocks.setdefault(uuid, deque())
            if reading.sm_clock_share is not None:
                clocks.append((reading.at_s, reading.sm_clock_share))
            while clocks and clocks[0][0] <= reading.at_s - WINDOW_S:
                clocks.popleft()
            before = self._loads.get(uuid)
            median = statistics.median(share for _, share in clocks) if clocks else None
            old = None if before is None else before.median_sm_clock_share
            if median is not None and old is not None and abs(median - old) <= STEADY:
                median = old
            self._loads[uuid] = DeviceLoad(
                1 if before is None else before.readings + 1,
                reading.sm_clock_share,
                median,
                reading.power_share,
                reading.pcie_share,
                reading.pcie_sent_bytes_per_s,
                reading.pcie_received_bytes_per_s,
                tuple(sorted(reading.throttled)),
            )

    def of(self, uuid: str) -> DeviceLoad | None:
        """Return a device's newest load, None where it was never seen busy."""
        return self._loads.get(uuid)
