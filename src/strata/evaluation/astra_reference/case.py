"""One run of ASTRA-sim, read from a row of a reference table (columns as in docs/fidelity.md)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from strata.errors import UsageError
from strata.simulate.astra.discover import AstraBackend
from strata.simulate.compat.network import Dimension, Topology
from strata.simulate.compat.system import Algorithm, Collective, System

COLUMNS: Final = (
    "scenario", "topology", "npus", "bandwidth_GBps", "latency_ns", "collective_or_pattern", "bytes", "backend",
)  # fmt: skip
LARGEST: Final = 2**16
"""The most ranks, splits or microbatches read: beyond it a number is a slip, and an answer would take hours."""
_UNIT_US: Final = {"ns": 1e-3, "us": 1, "ms": 10**3, "s": 10**6}


@dataclass(frozen=True, slots=True)
class CollectiveRun:
    """A collective over all ranks, one algorithm a dimension."""

    collective: Collective
    algorithms: tuple[Algorithm, ...]
    system: System


@dataclass(frozen=True, slots=True)
class Group:
    """A collective over the listed ranks alone, or (is_flat) over the whole world as one ring."""

    collective: Collective
    algorithm: Algorithm
    ranks: tuple[int, ...]
    system: System
    is_flat: bool = False


@dataclass(frozen=True, slots=True)
class Send:
    """One message between two ranks."""

    source: int
    dest: int


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """A pipeline with rank = stage, the same compute on each."""

    stages: int
    microbatches: int
    order: str
    forward_us: int
    backward_us: int


@dataclass(frozen=True, slots=True)
class LlmRun:
    """A pipeline in replicas, rank = replica + replicas x stage, its gradients summed layer by layer.

    Microbatches and the times of a layer stand in no column: they are those of all the reference's runs.
    """

    stages: int
    replicas: int
    layers_per_stage: int
    order: str
    gradient_bytes: int
    system: System
    microbatches: int = 8
    forward_us: int = 2500
    backward_us: int = 5000


Traffic = CollectiveRun | Group | Send | PipelineRun | LlmRun


@dataclass(frozen=True, slots=True)
class AstraCase:
    """What ran on which network. `size_bytes`: the buffer, the shard (all_gather) or the message."""

    dimensions: tuple[Dimension, ...]
    size_bytes: int
    traffic: Traffic

    @property
    def backend(self) -> AstraBackend:
        """The analytical binary that ran."""
        return self.dimensions[0].backend


def read_case(row: Mapping[str, str | None]) -> AstraCase:
    """Return the case of a row. Raises UsageError where a column or the scenario says nothing we know."""
    cells = {name: (row.get(name) or "").strip() for name in COLUMNS}
    if empty := [name for name, cell in cells.items() if not cell]:
        raise UsageError(f"nothing in column {', '.join(empty)}")
    scenario, pattern = cells["scenario"], cells["collective_or_pattern"]
    llm = _llm_run(scenario, pattern) if scenario.startswith("llm") else None
    dimensions = _dimensions(cells, _sizes(cells, (llm.replicas, llm.stages) if llm else None))
    return AstraCase(
        dimensions, _whole("bytes", cells["bytes"], 2**60), llm or _traffic(scenario, pattern, dimensions)
    )


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{name} {text!r} is not a number") from None


def _whole(name: str, text: str, most: int = LARGEST) -> int:
    value = _number(name, text)
    if not (1 <= value <= most and value == int(value)):
        raise UsageError(f"{name} {text!r} is not a whole number from 1 to {most}")
    return int(value)


def _sizes(cells: Mapping[str, str], known: tuple[int, int] | None) -> list[int]:
    """Return the ranks of each dimension, which an `AxB` in the scenario says where there are several."""
    count, total = cells["topology"].count("+") + 1, _whole("npus", cells["npus"])
    if count == 1:
        return [total]
    match = re.search(rf"(?<!\d)\d+(?:x\d+){{{count - 1}}}(?!\d)", cells["scenario"])
    sizes = [_whole("npus", each) for each in match[0].split("x")] if match else list(known or ())
    if len(sizes) != count or math.prod(sizes) != total:
        raise UsageError(f"scenario {cells['scenario']!r} does not say how {total} ranks form {cells['topology']}")
    return sizes


def _dimensions(cells: Mapping[str, str], sizes: Sequence[int]) -> tuple[Dimension, ...]:
    """Return the dimensions, whose columns are joined by `+`."""
    dimensions = []
    for index, (name, npus) in enumerate(zip(cells["topology"].split("+"), sizes, strict=True)):
        if name not in set(Topology) or cells["backend"] not in ("aware", "unaware"):
            raise UsageError(f"no topology {name!r} with backend {cells['backend']!r}")
        bandwidth, latency = (_at(cells, column, index) for column in ("bandwidth_GBps", "latency_ns"))
        if npus < 2 or not 0 < bandwidth < float("inf") or not 0 <= latency < float("inf"):
            raise UsageError(f"{npus} ranks, {bandwidth} GB/s, {latency} ns: network.yml needs >= 2, > 0, >= 0")
        dimensions.append(Dimension(Topology(name), npus, bandwidth, latency, AstraBackend(cells["backend"])))
    return tuple(dimensions)


def _at(cells: Mapping[str, str], column: str, index: int) -> float:
    values = cells[column].split("+")
    return _number(column, values[min(index, len(values) - 1)])


def _traffic(scenario: str, pattern: str, dimensions: Sequence[Dimension]) -> Traffic:
    if match := re.match(r"pp(\d+)x(\d+)_(\w+?)(?:_|$)", scenario):
        stages, microbatches = _whole("stages", match[1], 1024), _whole("microbatches", match[2], 4096)
        return PipelineRun(stages, microbatches, match[3], _duration(pattern, "fwd"), _duration(pattern, "bwd"))
    if match := re.search(r"p2p_(\d+)to(\d+)", scenario):
        return Send(int(match[1]), int(match[2]))
    name, _, how = pattern.partition(":")
    if name not in set(Collective):
        raise UsageError(f"{pattern!r} of {scenario!r} is neither a collective, a pipeline nor a p2p")
    collective = Collective(name)
    if match := re.search(r"group_\[(\d+(?:-\d+)+)\]", scenario):
        algorithm = Algorithm(how) if how in set(Algorithm) else Algorithm.RING
        return Group(collective, algorithm, tuple(int(rank) for rank in match[1].split("-")), System())
    if how == "oneRing":
        world = math.prod(dimension.npus for dimension in dimensions)
        return Group(collective, Algorithm.RING, tuple(range(world)), System(), is_flat=True)
    return CollectiveRun(collective, *_algorithms(scenario, how, len(dimensions)))


def _llm_run(scenario: str, pattern: str) -> LlmRun:
    shape = re.fullmatch(r"llm(\d+)L_pp(\d+)dp(\d+)(?:_wan)?_(1f1b|gpipe)_splits(\d+)", scenario)
    gradients = re.search(r"AR (\d+)MiB/layer", pattern)
    if not shape or not gradients:
        raise UsageError("the row says too little of its trace; llm runs show ASTRA-sim's scale")
    layers, stages, replicas, splits = (_whole("llm shape", shape[i], 1024) for i in (1, 2, 3, 5))
    if layers % stages:
        raise UsageError(f"{layers} layers on {stages} stages: the row does not say which has more")
    size = _whole("gradients in MiB", gradients[1]) * 2**20
    return LlmRun(stages, replicas, layers // stages, shape[4], size, System(splits=splits))


def _duration(pattern: str, name: str) -> int:
    """Return microseconds: a trace knows no shorter time."""
    match = re.search(rf"{name}(\d+(?:\.\d+)?)(ns|us|ms|s)\b", pattern)
    if not match:
        raise UsageError(f"{pattern!r} does not say how long {name} takes")
    return round(float(match[1]) * _UNIT_US[match[2]])


def _algorithms(scenario: str, how: str, dimensions: int) -> tuple[tuple[Algorithm, ...], System]:
    """Return the algorithm of each dimension, and the keys of system.json that the scenario changes."""
    system = System()
    if how == "baseline":
        return (Algorithm.RING,) * dimensions, replace(system, is_bandwidth_aware=False)
    if match := re.search(r"splits(\d+)_active(\d+)(?:_q(\d+))?", scenario):
        splits, active, queues = (
            _whole("splits, active chunks or queues", each or "1") for each in match.groups()
        )
        system = replace(system, splits=splits, active_chunks=active, queues=queues)
    names = [how] * dimensions
    if how == "hier":
        named = re.search(r"hier_([A-Za-z]+(?:-[A-Za-z]+)+)", scenario)
        names = named[1].split("-") if named else ["ring"] * dimensions
    if len(names) != dimensions or not set(names) <= set(Algorithm):
        raise UsageError(f"{'-'.join(names)} is not one algorithm of {', '.join(Algorithm)} for each dimension")
    return tuple(Algorithm(name) for name in names), system
