"""ASTRA-sim over ns-3: the files of a packet-level run, where every link may have its own rate and delay.

Here a message has arrived when its last acknowledgement is back, so each one costs a full round trip. A run takes
about 12 CPU-seconds a simulated second on wide-area links: it is for single sums and short steps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from strata.bundled import bundled_text
from strata.simulate.astra.chakra import Node, NodeType
from strata.simulate.astra.files import MEMORY_BYTES_PER_S, common_files, options

MAX_MESSAGE_BYTES: Final = 2**31 - 1
"""ns-3 holds the bytes of a message in a C int."""


@dataclass(frozen=True, slots=True)
class Cable:
    """One link between two nodes, alike in both directions. Nodes below the number of ranks are ranks."""

    a: int
    b: int
    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Ns3Network:
    """Ranks, then switches, and the links between them; a trace per rank, groups numbered from 1."""

    num_switches: int
    cables: tuple[Cable, ...]
    traces: tuple[tuple[Node, ...], ...]
    groups: tuple[tuple[int, ...], ...] = ()
    memory_bytes_per_s: float = MEMORY_BYTES_PER_S

    @property
    def num_ranks(self) -> int:
        """Ranks; switches are numbered from here on."""
        return len(self.traces)

    def files(self) -> dict[str, str]:
        """Return all text files by name: what stands beside the traces."""
        return {
            "config.txt": config_txt([cable.bandwidth_bytes_per_s for cable in self.cables]),
            "topology.txt": topology_txt(self),
            "logical.json": json.dumps({"logical-dims": [str(self.num_ranks)]}) + "\n",
            "flow.txt": "0\n",
            "flow_trace.txt": "0\n",
            **common_files(["ring"], self.groups, memory_bytes_per_s=self.memory_bytes_per_s),
        }

    def arguments(self) -> list[str]:
        """Return the command line of a run whose working folder holds the files."""
        logical = "--logical-topology-configuration=logical.json"
        return [*options("config.txt", has_groups=bool(self.groups)), logical]


def topology_txt(network: Ns3Network) -> str:
    """Return the graph: counts, switches, then a line a link with its rate [bit/s] and one-way delay [ns]."""
    nodes = network.num_ranks + network.num_switches
    switches = " ".join(str(node) for node in range(network.num_ranks, nodes))
    lines = [f"{nodes} {network.num_switches} {len(network.cables)}", switches]
    lines += [
        f"{cable.a} {cable.b} {_bits(cable.bandwidth_bytes_per_s)}bps {max(1, round(cable.latency_s * 1e9))}ns 0"
        for cable in network.cables
    ]
    return "\n".join(lines) + "\n"


def config_txt(bandwidths_bytes_per_s: Sequence[float]) -> str:
    """Return config.txt: DCQCN, no trace files, and congestion thresholds for every rate that is used.

    Thresholds [kB] grow with the rate as in the settings that come with ASTRA-sim: 100 and 400 at 25 Gbps.
    """
    rates = sorted({_bits(value) for value in bandwidths_bytes_per_s})

    def thresholds(at_25_gbps: int) -> str:
        pairs = (f"{rate} {max(at_25_gbps, round(at_25_gbps * rate / 25e9))}" for rate in rates)
        return f"{len(rates)} {' '.join(pairs)}"

    # What ASTRA-sim's own example sets, but: paths, DCQCN, no trace (it can fill a disk), short queue log.
    config = bundled_text("strata.simulate.astra", "ns3_config.txt")
    pmax = f"{len(rates)} " + " ".join(f"{rate} 0.2" for rate in rates)
    return config.format(kmax=thresholds(400), kmin=thresholds(100), pmax=pmax)


def _bits(bandwidth_bytes_per_s: float) -> int:
    return max(1, round(bandwidth_bytes_per_s * 8))


def known_case() -> Ns3Network:
    """Return 1 MiB from rank 0 to rank 1 over a switch, both links 5 Gbps and 15 ms: measured 61.74 ms."""
    message = {"comm_src": 0, "comm_dst": 1, "comm_size": 2**20, "comm_tag": 1}
    traces = ((Node(0, NodeType.COMM_SEND, "send", attrs=message),),
              (Node(0, NodeType.COMM_RECV, "receive", attrs=message),))  # fmt: skip
    return Ns3Network(1, (Cable(0, 2, 5e9 / 8, 15e-3), Cable(1, 2, 5e9 / 8, 15e-3)), traces)
