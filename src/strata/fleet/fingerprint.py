"""What one machine's accelerators are, as they were found: devices, how they are joined, how well they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.decision import Trust
from strata.fleet.accelerator import Accelerator
from strata.fleet.rdma import RdmaPort

LINK_BYTES_PER_S: Final[Mapping[str, float]] = {
    "nvlink": 300e9,
    "hccs": 196e9,
    "sio": 270e9,
    "mlulink": 100e9,
    "xgmi": 100e9,
    "pix": 25e9,
    "pxb": 22e9,
    "phb": 18e9,
    "node": 12e9,
    "sys": 8e9,
}
"""One direction between two devices, by the name tools give the link; assumed, and replaced where measured.

pix, pxb: below one PCIe switch, or several; phb: below one host bridge; node: one NUMA node; sys: across sockets.
"""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a short benchmark made an idle device do, and the power it drew meanwhile; None where nobody tells."""

    at_s: float
    rate_flops: float
    power_w: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """How a device runs its work, as its driver said last while it was busy; None where it does not tell.

    readings: how many there were so far, which tells a new one. sm_clock_share: the clock of its cores over the
    highest it may have; median_sm_clock_share: over the last five minutes. power_share: drawn, of its limit.
    pcie_share: of what both ends of its link could do, lanes times rate. throttled: why its clock is lower now.
    """

    readings: int
    sm_clock_share: float | None = None
    median_sm_clock_share: float | None = None
    power_share: float | None = None
    pcie_share: float | None = None
    pcie_sent_bytes_per_s: float | None = None
    pcie_received_bytes_per_s: float | None = None
    throttled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """One allocatable accelerator.

    model: the catalogue's name, or the tool's where the catalogue has none; `card` then is None.
    board: dies of one board share it, and should be taken together. health: 1 well, 0 not to be used.
    faults: short words of what lowers the health. memory_used_bytes: None where the tool gives no bytes.
    probe: the newest, at seconds since 1970; of all devices of a model, those far below the others are slow.
    load: what it showed when it was busy last; among the devices of one job, those with a lower clock are slow.
    """

    index: int
    uuid: str
    model: str
    vendor: str
    memory_bytes: float
    card: Accelerator | None = None
    memory_used_bytes: float | None = None
    bus_id: str = ""
    board: str = ""
    numa_node: int | None = None
    utilisation: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    health: float = 1.0
    faults: tuple[str, ...] = ()
    probe: Probe | None = None
    load: DeviceLoad | None = None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """One node. `links[i, j]` with i < j names the fastest link of two devices; `sys` where a pair is not there.

    Places in `devices` count, not the tools' own `index`. notes: what could not be read, and why.
    measured: bytes/s of pairs where a micro-benchmark was run. can_p2p: devices reach each other's memory.
    held: by pod (`namespace/name`) and resource, the ids of devices as its device plugin calls them.
    ports: what sends to other nodes by RDMA.
    """

    node: str
    devices: tuple[Device, ...] = ()
    links: Mapping[tuple[int, int], str] = field(default_factory=dict)
    measured: Mapping[tuple[int, int], float] = field(default_factory=dict)
    can_p2p: bool = True
    driver: str = ""
    tool: str = ""
    trust: Trust = Trust.MEASURED
    notes: tuple[str, ...] = ()
    held: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    ports: tuple[RdmaPort, ...] = ()

    def steady(self) -> Fingerprint:
        """Return it without what changes by itself all the time, and decides nothing."""
        devices = tuple(
            replace(
                device,
                memory_used_bytes=None,
                utilisation=None,
                temperature_c=None,
                power_w=None,
                probe=None,
                load=None,
            )
            for device in self.devices
        )
        return replace(self, devices=devices)

    def bandwidth(self) -> Floats:
        """Return bytes/s between devices [n, n], one direction, symmetric; infinite on the diagonal."""
        n = len(self.devices)
        matrix = np.full((n, n), LINK_BYTES_PER_S["sys"])
        for i in range(n):
            for j in range(i + 1, n):
                named = LINK_BYTES_PER_S.get(self.links.get((i, j), "sys"), LINK_BYTES_PER_S["sys"])
                matrix[i, j] = matrix[j, i] = self.measured.get((i, j), named)
        np.fill_diagonal(matrix, np.inf)
        return matrix
