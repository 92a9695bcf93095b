"""The hardware: domains of like accelerators and the directed links between them.

A *domain* is one site with a pool of like accelerators; a site with two kinds is two domains joined by a
fast link. Plain frozen data; files are read in `schema.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final

import numpy as np

from strata.arrays import Floats, Ints
from strata.decision import Trust
from strata.fleet.accelerator import Accelerator

Pair = tuple[str, str]

NETWORK_BANDWIDTH: Final = "network_bandwidth_bytes_per_s"
"""A domain's figure that is assumed where its file is silent."""


@dataclass(frozen=True, slots=True)
class Domain:
    """One site and its pool of like accelerators.

    intra_bandwidth_bytes_per_s: per device, one direction, between devices of one node.
    network_bandwidth_bytes_per_s: per node, one direction, between nodes of the domain.
    uplink_bytes_per_s: to all other domains together, each direction; None where only the links bound it.
    price_usd_per_device_hour: None where no price is known; money is then reported as unknown, not as zero.
    assumed: figures above that nobody gave. num_free_devices: when somebody looked, None where nobody did.
    """

    name: str
    accelerator: Accelerator
    num_devices: int
    devices_per_node: int
    intra_bandwidth_bytes_per_s: float
    intra_latency_s: float
    network_bandwidth_bytes_per_s: float
    network_latency_s: float
    price_usd_per_device_hour: float | None = None
    region: str = ""
    uplink_bytes_per_s: float | None = None
    assumed: tuple[str, ...] = field(default=(), repr=False, compare=False)
    num_free_devices: int | None = field(default=None, repr=False, compare=False)  # of a moment: plans outlive it

    @property
    def num_nodes(self) -> int:
        """Whole nodes; a last node that is not full is left out."""
        return self.num_devices // self.devices_per_node


@dataclass(frozen=True, slots=True)
class BandwidthCurve:
    """Bandwidth by message size: a 1 MB message gets half the bandwidth of a 512 MB one.

    GB/s = polynomial(log2(MB)), highest power first, fitted to measured transfers by Sailor (arXiv 2504.17096,
    eth-easl/sailor `multizone_bandwidths_het.json`) and taken exactly as published, without clipping.
    """

    coefficients: tuple[float, ...]

    def bandwidth_bytes_per_s(self, message_bytes: float) -> float:
        """Return the bandwidth one message of this size sees [B/s]."""
        x, value = math.log2(message_bytes / 1e6), 0.0
        for coefficient in self.coefficients:
            value = value * x + coefficient
        return value * 1e9

    def transfer_s(self, message_bytes: float) -> float:
        """Return the time one message takes, latency included as far as the fit saw it [s]."""
        return 0.0 if message_bytes <= 0 else message_bytes / self.bandwidth_bytes_per_s(message_bytes)


@dataclass(frozen=True, slots=True)
class Link:
    """A directed pair of domains. `latency_s` is one-way; `price_usd_per_byte` is billed to this direction."""

    source: str
    dest: str
    bandwidth_bytes_per_s: float
    latency_s: float
    price_usd_per_byte: float = 0.0
    curve: BandwidthCurve | None = None
    trust: Trust = Trust.ASSUMED

    def serialisation_s(self, message_bytes: float) -> float:
        """Return the time a message occupies the link, latency left out [s]."""
        if self.curve is not None:
            return self.curve.transfer_s(message_bytes)
        return message_bytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True)
class Fleet:
    """All domains and the links between them."""

    name: str
    domains: tuple[Domain, ...]
    links: Mapping[Pair, Link]
    _index: Mapping[str, int] = field(init=False, repr=False, compare=False)
    _matrices: dict[str, Floats] = field(init=False, repr=False, compare=False)
    _pairs: list[tuple[Ints, Ints]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_matrices", {})
        object.__setattr__(self, "_pairs", [])
        object.__setattr__(self, "_index", {domain.name: i for i, domain in enumerate(self.domains)})

    def domain(self, name: str) -> Domain:
        """Return a domain by name (KeyError if there is none)."""
        return self.domains[self._index[name]]

    def index(self, name: str) -> int:
        """Return the position of a domain in `domains` and in the matrices below."""
        return self._index[name]

    def link(self, source: str, dest: str) -> Link | None:
        """Return the link of a directed pair, or None."""
        return self.links.get((source, dest))

    @property
    def pairs(self) -> tuple[Ints, Ints]:
        """Positions of the source and of the destination of each of `links`, in their order."""
        if not self._pairs:
            ends = zip(*self.links, strict=True) if self.links else ((), ())
            source, dest = (np.array([self._index[name] for name in end], dtype=np.int64) for end in ends)
            self._pairs.append((source, dest))
        return self._pairs[0]

    @property
    def num_devices(self) -> int:
        """Accelerators of all domains."""
        return sum(domain.num_devices for domain in self.domains)

    def bandwidth_bytes_per_s(self) -> Floats:
        """Return B[i, j], 0 where there is no link, inf on the diagonal."""
        return self._matrix("bandwidth_bytes_per_s", missing=0.0, diagonal=np.inf)

    def latency_s(self) -> Floats:
        """Return one-way L[i, j], inf where there is no link, 0 on the diagonal."""
        return self._matrix("latency_s", missing=np.inf, diagonal=0.0)

    def price_usd_per_byte(self) -> Floats:
        """Return the price per byte sent i -> j, 0 where there is no link and on the diagonal."""
        return self._matrix("price_usd_per_byte", missing=0.0, diagonal=0.0)

    def _matrix(self, attribute: str, *, missing: float, diagonal: float) -> Floats:
        if attribute not in self._matrices:
            matrix = np.full((len(self.domains), len(self.domains)), missing)
            np.fill_diagonal(matrix, diagonal)
            matrix[self.pairs] = np.fromiter(
                map(attrgetter(attribute), self.links.values()), float, len(self.links)
            )
            self._matrices[attribute] = matrix
        return self._matrices[attribute].copy()

    def only(self, names: Iterable[str]) -> Fleet:
        """Return the fleet of some of its domains, order kept."""
        keep = set(names)
        if keep.issuperset(self._index):
            return self
        return replace(
            self,
            domains=tuple(domain for domain in self.domains if domain.name in keep),
            links={pair: link for pair, link in self.links.items() if keep.issuperset(pair)},
        )

    def with_links(self, changed: Iterable[Link]) -> Fleet:
        """Return the fleet with some links replaced or added."""
        return replace(self, links={**self.links, **{(link.source, link.dest): link for link in changed}})
