"""How well devices are: faults of one device, and devices slower than their own kind.

Two tests that need no model of the hardware:
* a *health score* from what changed between two readings of one device (`score`);
* *sub-health*: a device whose median rate, or rate per watt, over a window lies far below its own model's cohort
  by median and MAD (`slow`). A cohort that is slow as a whole isolates nobody: that is the work, not the cards.

`isolation.py` decides from both who is taken out. All weights here are assumed, none was fitted.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from strata import stats
from strata.fleet.local import Aer

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs a program causes by its own fault; they say nothing of the card (as NVIDIA's device plugin, recalled)."""

FATAL_XIDS: Final = frozenset({48, 62, 64, 74, 79, 95, 119, 120})
"""XIDs after which a card needs a reset or replacing: double-bit ECC, failed remap, NVLink, off the bus, GSP."""

WEIGHTS: Final[Mapping[str, float]] = {
    "lost": 0.0,
    "no-driver": 0.0,
    "remap-failed": 0.0,
    "ecc-uncorrected": 0.0,
    "aer-fatal": 0.0,
    "aer-nonfatal": 0.3,
    "nvlink-down": 0.3,
    "remap-pending": 0.5,
    "hw-slowdown": 0.5,
    "thermal": 0.6,
    "pcie-degraded": 0.6,
    "power-brake": 0.6,
    "hot": 0.7,
    "ecc-corrected": 0.8,
    "nvlink-errors": 0.8,
    "pcie-replay": 0.8,
    "aer-correctable": 0.8,
    "heating": 0.8,
}
"""What each fault leaves of a device's health."""

BUSY: Final = 0.5
"""Utilisation from which on a device's clock, power and link are those of its work; an idle one lowers them."""

HOT_C: Final = 85.0
HEATING_C: Final = 15.0
CORRECTED_PER_HOUR: Final = 100.0
"""Corrected ECC errors, correctable bus errors or replays above this rate foretell worse."""

DEGRADED: Final = 0.75
"""Share of its PCIe link's rate below which a busy device is held back: half the lanes, or a generation less."""

WINDOW_S: Final = 300.0
"""Sub-health is judged over five minutes (seed 002, 2.3)."""

COVERED: Final = 0.8
"""Share of the window a device's samples must span."""

MIN_SAMPLES: Final = 5
MIN_COHORT: Final = 4
"""With fewer, an outlier and a majority look alike."""

OUTLYING: Final = 3.5
"""Median absolute deviations below the median, the usual bound for outliers (Iglewicz, Hoaglin 1993)."""

SLOWER: Final = 0.1
"""How much below the median a device must be besides, so that a very even cohort does not lose its last."""


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """A device's counters at one time; None where its tool does not tell.

    Counters grow until the driver restarts. throttled: reasons active now. processes: that compute on it now.
    Shares: of the highest clock, of the power limit, of what both ends of the PCIe link can (lanes times rate).
    nvlinks: that are up. nvlink_errors: replays, recoveries and CRC errors of all of them.
    """

    at_s: float
    ecc_uncorrected: int | None = None
    ecc_corrected: int | None = None
    is_remap_pending: bool = False
    has_remap_failed: bool = False
    throttled: frozenset[str] = frozenset()
    aer: Aer | None = None
    pcie_replays: int | None = None
    temperature_c: float | None = None
    processes: int | None = None
    utilisation: float | None = None
    sm_clock_share: float | None = None
    power_share: float | None = None
    pcie_share: float | None = None
    pcie_sent_bytes_per_s: float | None = None
    pcie_received_bytes_per_s: float | None = None
    nvlinks: int | None = None
    nvlink_errors: int | None = None

    @property
    def is_busy(self) -> bool:
        """Whether it works, as far as its tool tells."""
        return self.utilisation is not None and self.utilisation >= BUSY


@dataclass(frozen=True, slots=True)
class Health:
    """1 is well, 0 is not to be used; faults are short words of what lowers it, worst first."""

    score: float = 1.0
    faults: tuple[str, ...] = ()


def weight(fault: str) -> float:
    """Return what one fault leaves of a device's health; 1 for an XID that a program causes by itself."""
    if fault.startswith("xid-"):
        xid = int(fault.removeprefix("xid-"))
        return 1.0 if xid in APPLICATION_XIDS else 0.0 if xid in FATAL_XIDS else 0.5
    return WEIGHTS[fault]


def of_faults(faults: Iterable[str]) -> Health:
    """Return the health of a device that has these faults."""
    weights = {fault: weight(fault) for fault in faults}
    return Health(math.prod(weights.values()), tuple(sorted(weights, key=lambda fault: (weights[fault], fault))))


def score(now: DeviceReading, before: DeviceReading | None = None) -> Health:
    """Return a device's health from its newest reading and one before.

    Without a reading before, only what holds now counts: nobody knows how old the counters' errors are.
    """
    is_hot = now.temperature_c is not None and now.temperature_c >= HOT_C
    # A power cap is how a card is meant to run at full load.
    holds = {
        "remap-failed": now.has_remap_failed,
        "remap-pending": now.is_remap_pending,
        "hw-slowdown": "hw-slowdown" in now.throttled,
        "thermal": bool(now.throttled & {"hw-thermal", "sw-thermal"}),
        "power-brake": "power-brake" in now.throttled,
        "hot": is_hot,
    }
    if before is not None and now.at_s > before.at_s:
        holds |= _since(now, before)
    return of_faults(fault for fault, is_so in holds.items() if is_so)


def _since(now: DeviceReading, before: DeviceReading) -> dict[str, bool]:
    allowed = CORRECTED_PER_HOUR * (now.at_s - before.at_s) / 3600
    holds = {
        "ecc-uncorrected": _grown(now.ecc_uncorrected, before.ecc_uncorrected) > 0,
        "ecc-corrected": _grown(now.ecc_corrected, before.ecc_corrected) > allowed,
        "pcie-replay": _grown(now.pcie_replays, before.pcie_replays) > allowed,
        "nvlink-errors": _grown(now.nvlink_errors, before.nvlink_errors) > allowed,
        # Busy at both times: the link of an idle device is slowed down to save power, and needs a moment to wake.
        "pcie-degraded": all(
            each.is_busy and each.pcie_share is not None and each.pcie_share < DEGRADED for each in (now, before)
        ),
    }
    if now.aer is not None and before.aer is not None:
        holds["aer-fatal"] = _grown(now.aer.fatal, before.aer.fatal) > 0
        holds["aer-nonfatal"] = _grown(now.aer.nonfatal, before.aer.nonfatal) > 0
        holds["aer-correctable"] = _grown(now.aer.correctable, before.aer.correctable) > allowed
    if now.temperature_c is not None and before.temperature_c is not None:
        # A rise alone is a job that starts; one that ends near the limit is a fan or a pump that stops.
        rise = now.temperature_c - before.temperature_c
        holds["heating"] = rise >= HEATING_C and now.temperature_c >= HOT_C - HEATING_C / 3
    return holds


def _grown(now: int | None, before: int | None) -> int:
    if now is None or before is None:
        return 0
    # A counter that fell was restarted: what it shows happened since.
    return now - before if now >= before else now


@dataclass(frozen=True, slots=True)
class Sample:
    """What a device did at one time, of work that keeps the card busy: a job's own step, or a benchmark.

    rate: any measure of work per second, the same for all of a model (FLOP/s, steps/s). power_w: None if unknown.
    """

    at_s: float
    uuid: str
    model: str
    rate: float
    power_w: float | None = None


@dataclass(frozen=True, slots=True)
class Slow:
    """A device below its cohort: `share` of the cohort's median."""

    uuid: str
    model: str
    what: Literal["rate", "rate-per-watt", "clock"]
    share: float


_Series = dict[tuple[str, str], list[tuple[float, float]]]
"""Values with their times, by model and device."""

Cohorts = Mapping[tuple[str, str], Mapping[str, float]]
"""A figure of each device, by model and what the devices have in common besides it, such as the job."""


def slow(samples: Iterable[Sample], now_s: float, *, window_s: float = WINDOW_S) -> tuple[Slow, ...]:
    """Return the devices that were slow against their own model's cohort over the window, slowest first.

    A device is judged by its median over `(now_s - window_s, now_s]`, and only if its samples span most of it.
    Scaling all rates, or all powers, of a model changes nothing. Samples that are not finite, or not positive
    in power, are left out; a rate of 0 counts: a card that does nothing while it should work is slow.
    """
    rates: _Series = defaultdict(list)
    per_watt: _Series = defaultdict(list)
    for sample in samples:
        if not (now_s - window_s < sample.at_s <= now_s and math.isfinite(sample.rate) and sample.rate >= 0):
            continue
        key = sample.model, sample.uuid
        rates[key].append((sample.at_s, sample.rate))
        if sample.power_w is not None and math.isfinite(sample.power_w) and sample.power_w > 0:
            per_watt[key].append((sample.at_s, sample.rate / sample.power_w))
    worst: dict[str, Slow] = {}
    for device in (
        *outliers(_medians(per_watt, window_s), "rate-per-watt"),
        *outliers(_medians(rates, window_s), "rate"),
    ):
        if device.uuid not in worst or device.share <= worst[device.uuid].share:
            worst[device.uuid] = device
    return tuple(sorted(worst.values(), key=lambda device: (device.share, device.uuid)))


def _medians(samples: _Series, window_s: float) -> Cohorts:
    cohorts: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for (model, uuid), series in samples.items():
        times = [at for at, _ in series]
        if len(series) >= MIN_SAMPLES and max(times) - min(times) >= COVERED * window_s:
            cohorts[model, ""][uuid] = statistics.median(value for _, value in series)
    return cohorts


def outliers(cohorts: Cohorts, what: Literal["rate", "rate-per-watt", "clock"]) -> list[Slow]:
    """Return the devices whose figure lies far below that of their cohort."""
    devices = []
    for (model, _), medians in cohorts.items():
        middle = statistics.median(medians.values())
        if len(medians) < MIN_COHORT or middle <= 0:
            continue
        spread = stats.mad(list(medians.values()))
        for uuid, value in medians.items():
            below = middle - value
            if below > SLOWER * middle and below > OUTLYING * spread:
                devices.append(Slow(uuid, model, what, value / middle))
    return devices
