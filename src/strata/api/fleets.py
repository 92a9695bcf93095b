"""A fleet as data: what a table, a picture and a program show of it."""

from __future__ import annotations

from typing import Any

from strata.api.inputs import FleetLike, fleet_of
from strata.fleet.acu import acu


def fleet_data(fleet: FleetLike) -> dict[str, Any]:
    """Return domains with the ACU of a device, and links, in SI units: what `strata fleet show -o json` prints.

    acu: of fp16, None where the card's is not known; of the fleet, where one card's is not. num_free: of the
    moment somebody looked, else None.
    """
    known = fleet_of(fleet)
    vectors = [acu(domain.accelerator) for domain in known.domains]
    domains = [
        {
            "name": domain.name,
            "accelerator": domain.accelerator.name,
            "num_devices": domain.num_devices,
            "devices_per_node": domain.devices_per_node,
            "num_free": domain.num_free_devices,
            "acu": vector.fp16,
            "acu_trust": None if vector.fp16 is None else str(vector.trust["fp16"]),
            "memory_bytes": domain.accelerator.memory_bytes,
            "intra_bandwidth_bytes_per_s": domain.intra_bandwidth_bytes_per_s,
            "network_bandwidth_bytes_per_s": domain.network_bandwidth_bytes_per_s,
            "uplink_bytes_per_s": domain.uplink_bytes_per_s,
            "price_usd_per_device_hour": domain.price_usd_per_device_hour,
            "assumed": list(domain.assumed),
        }
        for domain, vector in zip(known.domains, vectors, strict=True)
    ]
    links = [
        {
            "source": link.source, "dest": link.dest, "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s,
            "latency_s": link.latency_s, "price_usd_per_byte": link.price_usd_per_byte, "trust": str(link.trust),
        }
        for link in known.links.values()
    ]  # fmt: skip
    worths = [v.fp16 * d.num_devices for v, d in zip(vectors, known.domains, strict=True) if v.fp16 is not None]
    total = sum(worths) if len(worths) == len(vectors) else None
    return {"kind": "Fleet", "name": known.name, "acu": total, "domains": domains, "links": links}
