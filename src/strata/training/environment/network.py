"""The network an agent sees: base links, their state at one step, and both as matrices scaled into [0, 1]."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.fleet.dynamics.noise import Uniform
from strata.fleet.fleet import BandwidthCurve, Fleet, Link
from strata.fleet.schema import load_fleet
from strata.units import parse

SEED_BANDWIDTH_BYTES_PER_S: Final = (parse("2Gbps", "bandwidth"), parse("5Gbps", "bandwidth"))
SEED_LATENCY_S: Final = (20e-3, 100e-3)
"""Between which seed 001 §3.3 draws the base of each link at every reset."""


def seed_network(bandwidth: Floats, latency: Floats) -> Fleet:
    """Return domains like those of seed 001, linked by matrices [K, K] of bandwidth [B/s] and latency [s]."""
    like = load_fleet("seed").domains[0]
    domains = tuple(replace(like, name=f"Domain_{index}") for index in range(len(bandwidth)))
    links = [
        Link(a.name, b.name, float(bandwidth[i, j]), float(latency[i, j]))
        for i, a in enumerate(domains)
        for j, b in enumerate(domains)
        if i != j
    ]
    return Fleet("seed", domains, {}).with_links(links)


def scaled(link: Link, *, bandwidth: float, latency: float = 1.0) -> Link:
    """Return a link with its bandwidth (its curve too) and latency multiplied."""
    curve = link.curve
    return replace(
        link,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * bandwidth,
        latency_s=link.latency_s * latency,
        curve=curve and BandwidthCurve(tuple(value * bandwidth for value in curve.coefficients)),
    )


@dataclass(frozen=True, slots=True)
class Noise:
    """Seed 001's dynamics: every link's bandwidth and latency drawn anew around their base at every step."""

    bandwidth: Uniform
    latency: Uniform

    def draw(self, base: Fleet, rng: np.random.Generator) -> Fleet:
        """Return the fleet with the links of the next step. A uniform process has no memory: a step is a reset."""
        links = base.links.values()
        bandwidth = self.bandwidth.reset(rng, (len(links),)).tolist()
        latency = self.latency.reset(rng, (len(links),)).tolist()
        return base.with_links(
            scaled(link, bandwidth=b, latency=a) for link, b, a in zip(links, bandwidth, latency, strict=True)
        )


def matrices(fleet: Fleet) -> tuple[Floats, Floats]:
    """Return bandwidth [B/s] and one-way latency [s], each [K, K]; the diagonal is that of the domain itself."""
    bandwidth, latency = fleet.bandwidth_bytes_per_s(), fleet.latency_s()
    np.fill_diagonal(bandwidth, [domain.intra_bandwidth_bytes_per_s for domain in fleet.domains])
    np.fill_diagonal(latency, [domain.intra_latency_s for domain in fleet.domains])
    return bandwidth, latency


@dataclass(frozen=True, slots=True)
class Caps:
    """What 1 means in an observation: the most that can be drawn, so that nothing is ever clipped.

    Bandwidth within a domain has a cap of its own: against it wide-area links would all look like 0.01.
    """

    bandwidth_bytes_per_s: float
    intra_bandwidth_bytes_per_s: float
    latency_s: float

    @classmethod
    def of(cls, fleet: Fleet, noise: Noise) -> Caps:
        """Return the caps of a fleet with fixed base links."""
        wide, late = 1 + noise.bandwidth.half_width, 1 + noise.latency.half_width
        bandwidths = [link.bandwidth_bytes_per_s * wide for link in fleet.links.values()]
        latencies = [link.latency_s * late for link in fleet.links.values()]
        latencies += [domain.intra_latency_s for domain in fleet.domains]
        return cls(
            max(bandwidths, default=1.0),
            max(domain.intra_bandwidth_bytes_per_s for domain in fleet.domains),
            max(latencies) or 1.0,
        )

    def shares(self, bandwidth: Floats, latency: Floats) -> tuple[Floats, Floats]:
        """Return `matrices` divided by their caps."""
        diagonal = np.eye(len(bandwidth), dtype=bool)
        caps = np.where(diagonal, self.intra_bandwidth_bytes_per_s, self.bandwidth_bytes_per_s)
        return bandwidth / caps, latency / self.latency_s
