"""What a node's network is taken to be where a fleet file does not say: that of reference nodes."""

from __future__ import annotations

from typing import Final

from strata.fleet.accelerator import Accelerator

_GBPS: Final = 1e9 / 8

PER_DEVICE_GBPS: Final = {
    "NVLink2": 50, "NVLink3": 200, "NVLink4": 400, "NVLink5": 400, "NVLink5-rack": 400, "HCCS": 200, "SIO+UB": 200,
    "UB/HCCS": 400, "InfinityFabric": 400,
}  # fmt: skip
"""Gbps of network cards per device, by how the devices of a node are joined: DGX H100, H200 and B200 have eight
cards of 400 Gbps for eight devices (NVIDIA DGX BasePOD reference architecture, core components); DGX A100 eight of
200, DGX-1 four of 100, Atlas 800T A2 eight of 200 and MI300X nodes eight of 400 (vendors' data sheets, recalled);
CloudMatrix384 400 a package (its paper)."""

PLAIN_GBPS: Final = 100
"""Gbps of a node of other cards: one port of 100 Gbps, assumed."""


def assumed_bandwidth_bytes_per_s(accelerator: Accelerator, devices_per_node: int) -> float:
    """Return what a node sends to others of its domain, one direction [B/s]."""
    kind = accelerator.interconnect.removesuffix("-capped")
    each = PER_DEVICE_GBPS.get(kind)
    return _GBPS * (PLAIN_GBPS if each is None else each * devices_per_node)
