"""The files a run of ASTRA-sim reads, and the one place where units are turned into its own.

Its "GB/s" is 2^30 B/s in network.yml and 10^9 B/s for memory; latencies are nanoseconds per hop.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from strata.errors import UsageError
from strata.simulate.astra.chakra import Node, encode

GIB: Final = 2.0**30

MEMORY_BYTES_PER_S: Final = 1600e9
"""Memory bandwidth that reductions are charged to where none is known; the one of the reference runs."""

ENDPOINT_DELAY_NS: Final = 10
"""ASTRA-sim's default, and what it forces in groups smaller than the world anyway."""

PREFIX: Final = "trace"


@dataclass(frozen=True, slots=True)
class AstraDimension:
    """One dimension of the network: `size` ranks, each pair (or neighbour) joined by a like link.

    topology: FullyConnected, Ring or Switch; latency_s is one-way and per hop, a Switch path being two hops.
    """

    size: int
    bandwidth_bytes_per_s: float
    latency_s: float
    topology: str = "FullyConnected"
    algorithm: str = "ring"


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that one run is about: the network, a trace per rank, and groups (numbered from 1) of ranks.

    Rank = Σ coordinate_i × Π size of the dimensions before it: dimension 0 is the fastest.
    """

    dims: tuple[AstraDimension, ...]
    traces: tuple[tuple[Node, ...], ...]
    groups: tuple[tuple[int, ...], ...] = ()
    memory_bytes_per_s: float = MEMORY_BYTES_PER_S

    @property
    def num_ranks(self) -> int:
        """Ranks of the network, idle ones included."""
        return len(self.traces)

    def files(self) -> dict[str, str]:
        """Return all text files by name: what stands beside the traces."""
        algorithms = [dim.algorithm for dim in self.dims]
        return {
            "network.yml": network_yml(self.dims),
            **common_files(algorithms, self.groups, memory_bytes_per_s=self.memory_bytes_per_s),
        }

    def arguments(self) -> list[str]:
        """Return the command line of a run whose working folder holds the files."""
        return options("network.yml", has_groups=bool(self.groups))


def network_yml(dims: Sequence[AstraDimension]) -> str:
    """Return network.yml: bandwidth in units of 2^30 B/s, latency in ns."""

    def row(name: str, values: Sequence[object]) -> str:
        return f"{name}: [ {', '.join(map(str, values))} ]\n"

    return (
        row("topology", [dim.topology for dim in dims])
        + row("npus_count", [dim.size for dim in dims])
        + row("bandwidth", [repr(float(dim.bandwidth_bytes_per_s / GIB)) for dim in dims])
        + row("latency", [repr(round(float(dim.latency_s * 1e9), 6)) for dim in dims])
    )


def common_files(
    algorithms: Sequence[str], groups: Sequence[Sequence[int]], *, memory_bytes_per_s: float
) -> dict[str, str]:
    """Return the files that every backend reads: system.json, no remote memory, and groups where there are some.

    One chunk at a time: more of them would multiply the unaware backend's bandwidth. A node names its group, from
    1, in `pg_name`.
    """
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    system = {
        "scheduling-policy": "LIFO",
        "endpoint-delay": ENDPOINT_DELAY_NS,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        **{f"{kind}-implementation": list(algorithms) for kind in kinds},
        "collective-optimization": "localBWAware",
        "local-mem-bw": max(1, round(memory_bytes_per_s / 1e9)),
        "peak-perf": 900,
        "roofline-enabled": 0,
        "boost-mode": 0,
        "trace-enabled": 0,
    }
    files = {"system.json": system, "remote_memory.json": {"memory-type": "NO_MEMORY_EXPANSION"}}
    if groups:
        files["groups.json"] = {str(number): list(ranks) for number, ranks in enumerate(groups, 1)}
    return {name: json.dumps(data, indent=1) + "\n" for name, data in files.items()}


def encode_traces(traces: Sequence[Sequence[Node]]) -> dict[str, bytes]:
    """Return the trace of each rank by file name."""
    return {f"{PREFIX}.{rank}.et": encode(nodes) for rank, nodes in enumerate(traces)}


def write_traces(folder: Path, traces: Mapping[str, bytes]) -> None:
    """Write traces into a folder. Raises UsageError where it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in traces.items():
            (folder / name).write_bytes(data)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror}", hint="another folder") from None


def options(network: str, *, has_groups: bool) -> list[str]:
    """Return the command line of a run in the folder of its files; `network` is the one of the network.

    Names are relative: ASTRA-sim takes any path with "empty" in it for no groups at all.
    """
    return [
        f"--workload-configuration={PREFIX}",
        "--system-configuration=system.json",
        f"--network-configuration={network}",
        "--remote-memory-configuration=remote_memory.json",
        f"--comm-group-configuration={'groups.json' if has_groups else 'empty'}",
        "--logging-configuration=empty",
        "--logging-folder=log",
    ]
