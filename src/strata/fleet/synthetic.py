"""Random fleets for benchmarks and tests: sites on a map, links slower and later with distance."""

from __future__ import annotations

from typing import Final

import numpy as np

from strata.decision import Trust
from strata.fleet.accelerator import Accelerator
from strata.fleet.fleet import Domain, Fleet, Link

SPEED_M_PER_S: Final = 2e8
"""Light in fibre; routes are taken 1.5 times as long as the great circle."""


def random_fleet(
    num_domains: int, accelerators: tuple[Accelerator, ...], rng: np.random.Generator, *, devices: int = 64
) -> Fleet:
    """Return a fleet of sites at random places of a 10,000 km square, every pair linked; all figures assumed.

    Sizes are 1/4 to 1 of `devices`, whole nodes of 8; bandwidth falls from 10 to 1 Gbps with distance, with
    noise of a factor 1.5 either way; prices are $0.01 to $0.09 per GB, billed to the sender.
    """
    places = rng.uniform(0, 1e7, size=(num_domains, 2))
    domains = tuple(
        Domain(
            name=f"site{index:02d}",
            accelerator=accelerators[int(rng.integers(len(accelerators)))],
            num_devices=int(rng.integers(max(1, devices // 32), devices // 8 + 1)) * 8,
            devices_per_node=8,
            intra_bandwidth_bytes_per_s=300e9,
            intra_latency_s=5e-6,
            network_bandwidth_bytes_per_s=50e9,
            network_latency_s=10e-6,
            price_usd_per_device_hour=float(rng.uniform(1.5, 4.5)),
        )
        for index in range(num_domains)
    )
    links = {}
    for i, source in enumerate(domains):
        for j, dest in enumerate(domains):
            if i == j:
                continue
            distance = float(np.hypot(*(places[i] - places[j])))
            gbps = (10 - 9 * min(1.0, distance / 1e7)) * float(np.exp(rng.uniform(-0.4, 0.4)))
            links[source.name, dest.name] = Link(
                source.name,
                dest.name,
                bandwidth_bytes_per_s=gbps * 1e9 / 8,
                latency_s=1e-3 + 1.5 * distance / SPEED_M_PER_S,
                price_usd_per_byte=float(rng.uniform(0.01, 0.09)) * 1e-9,
                trust=Trust.ASSUMED,
            )
    return Fleet(f"random{num_domains}", domains, links)
