"""One dimension of an ASTRA-sim analytical network: what a message costs on it, in whole nanoseconds.

Read in ASTRA-sim 2's network/analytical sources: "GB/s" is 2^30 B/s, and every delay is truncated to whole
nanoseconds on its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from strata.simulate.astra.discover import AstraBackend

Wire = tuple[str | int, ...]


class FifoLink(NamedTuple):
    """One FIFO server on a message's way: who shares it, how long one message keeps it, when it arrives."""

    wire: Wire
    busy_ns: int
    arrival_ns: int


Path = tuple[FifoLink, ...]


class Topology(StrEnum):
    """The building blocks of a network.yml."""

    RING = "Ring"
    SWITCH = "Switch"
    FULLY_CONNECTED = "FullyConnected"


@dataclass(frozen=True, slots=True)
class Dimension:
    """`npus` ranks on one building block; bandwidth as network.yml writes it (1 = 2^30 B/s), latency per hop.

    backend: aware has links as FIFO servers, unaware every message alone in the network.
    """

    topology: Topology
    npus: int
    bandwidth_gib_per_s: float
    latency_ns: float
    backend: AstraBackend

    @property
    def bytes_per_ns(self) -> float:
        """Bandwidth in the order of operations of NetworkFunction.cpp: the floors see its rounding."""
        return self.bandwidth_gib_per_s * 2**30 / 1e9

    def busy_ns(self, size_bytes: int) -> int:
        """Return how long a message keeps a link to itself (aware)."""
        return int(size_bytes / self.bytes_per_ns)

    def link_ns(self, size_bytes: int) -> int:
        """Return how long a message takes over one link."""
        return int(self.latency_ns + size_bytes / self.bytes_per_ns)

    def send_ns(self, size_bytes: int, *, hops: int = 1) -> int:
        """Return how long a message takes alone to a rank `hops` away on a ring (1: any rank, elsewhere).

        Aware is store-and-forward of whole messages; unaware pays the latency of every hop and the bytes once.
        """
        links = 2 if self.topology is Topology.SWITCH else hops
        if self.backend is AstraBackend.AWARE:
            return links * self.link_ns(size_bytes)
        return int(links * self.latency_ns + size_bytes / self.bytes_per_ns)

    def ring_hops(self, source: int, dest: int) -> int:
        """Return the links between two ranks by the shorter way round a ring; 1 on the other topologies."""
        if self.topology is not Topology.RING:
            return 1
        clockwise = (dest - source) % self.npus
        return min(clockwise, self.npus - clockwise)
