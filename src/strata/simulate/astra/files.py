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


def system_json(algorithms: Sequence[str], memory_bytes_per_s: float = MEMORY_BYTES_PER_S) -> str:
    """Return system.json. One chunk at a time: more of them would multiply the unaware backend's bandwidth."""
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    return _json({
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
    })  # fmt: skip


def remote_memory_json() -> str:
    """Return remote_memory.json: none."""
    return _json({"memory-type": "NO_MEMORY_EXPANSION"})


def groups_json(groups: Sequence[Sequence[int]]) -> str:
    """Return the file of communicator groups; a node names its group in `pg_name`."""
    return _json({str(number): list(ranks) for number, ranks in enumerate(groups, 1)})


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


def scenario_files(scenario: Scenario) -> dict[str, str]:
    """Return all text files by name: what stands beside the traces."""
    return {
        "network.yml": network_yml(scenario.dims),
        "system.json": system_json([dim.algorithm for dim in scenario.dims], scenario.memory_bytes_per_s),
        "remote_memory.json": remote_memory_json(),
        **({"groups.json": groups_json(scenario.groups)} if scenario.groups else {}),
    }


def options(*, has_groups: bool) -> list[str]:
    """Return the command line of a run whose working folder holds the files.

    Names are relative: ASTRA-sim takes any path with "empty" in it for no groups at all.
    """
    return [
        f"--workload-configuration={PREFIX}",
        "--system-configuration=system.json",
        "--network-configuration=network.yml",
        "--remote-memory-configuration=remote_memory.json",
        f"--comm-group-configuration={'groups.json' if has_groups else 'empty'}",
        "--logging-configuration=empty",
        "--logging-folder=log",
    ]


def _json(data: object) -> str:
    return json.dumps(data, indent=1) + "\n"
