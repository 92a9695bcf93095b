"""Case files as pools; the form is that of `serving_cases.json`, milliseconds there and seconds here.

The file may carry more than is read: unknown keys are left alone. A hop costs what the file's `rtt_ms` names: its
neutral scorer counts the value once a hop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field

from strata.errors import BadFile, Fault
from strata.files import Document, FileModel, read_json
from strata.serving.planning.allocation import Performance, Pipeline, Stage, faults, score
from strata.serving.planning.planfile import Count, Layers, Name
from strata.serving.planning.pool import LayerCapacity, NodePool, PoolNode, equal_layers

MAX_FILE_BYTES = 256 * 2**20
"""Round trips of 1000 nodes alone are 8 MB."""
Milliseconds = Annotated[float, Field(ge=0.0, le=1e9, allow_inf_nan=False)]
LayerTime = Annotated[float, Field(ge=1e-9, le=1e9, allow_inf_nan=False)]


class _Loose(FileModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class CapacityEntry(_Loose):
    """Most layers by place in a pipeline."""

    first: Layers
    middle: Layers
    last: Layers
    only: Layers


class NodeEntry(_Loose):
    """One node: milliseconds of a decode step a layer, and what the head adds."""

    id: Name
    layer_ms: LayerTime
    head_ms: Milliseconds
    capacity: CapacityEntry


class PeerEntry(_Loose):
    """A stored allocation; without pipelines where the peer failed."""

    pipelines: list[list[tuple[Name, Layers, Layers]]] | None = None


class CaseEntry(_Loose):
    """One pool and one model; `rtt_ms[i][j]` is paid per token by a hop from node i to node j."""

    id: Name
    layers: Count
    batch: Count
    nodes: list[NodeEntry]
    rtt_ms: list[list[Milliseconds]]
    parallax: dict[str, PeerEntry] | None = None


class ServingCaseFile(_Loose):
    """The cases, in order; a file is the list alone."""

    cases: list[CaseEntry]


def _entry_faults(document: Document, number: int, case: CaseEntry) -> Iterator[Fault]:
    """Yield what its values have wrong together."""
    n = len(case.nodes)
    if len(case.rtt_ms) != n:
        yield document.fault(("cases", number, "rtt_ms"), f"has {len(case.rtt_ms)} rows for {n} nodes")
    for row, values in enumerate(case.rtt_ms):
        if len(values) != n:
            yield document.fault(("cases", number, "rtt_ms", row), f"has {len(values)} values for {n} nodes")
    seen = set[str]()
    for row, node in enumerate(case.nodes):
        if node.id in seen:
            yield document.fault(("cases", number, "nodes", row, "id"), f"{node.id!r} is there twice")
        seen.add(node.id)


@dataclass(frozen=True, slots=True)
class ServingCase:
    """A pool, and the best legal plan that the file has of Parallax, by tokens/s; None where it has none."""

    id: str
    pool: NodePool
    parallax: Performance | None


def read_cases(path: str | Path) -> list[ServingCase]:
    """Read a case file. Raises UsageError for a missing file, BadFile with all faults for a bad one."""
    document = Document(str(path), {"cases": read_json(path, max_bytes=MAX_FILE_BYTES)}, {})
    entries = document.check(ServingCaseFile).cases
    problems = [fault for number, entry in enumerate(entries) for fault in _entry_faults(document, number, entry)]
    if problems:
        raise BadFile(problems)
    return [_case(entry) for entry in entries]


def _case(entry: CaseEntry) -> ServingCase:
    nodes = [
        PoolNode(
            node.id,
            equal_layers(node.layer_ms / 1e3, entry.layers),
            node.head_ms / 1e3,
            LayerCapacity(**dict(node.capacity)),
        )
        for node in entry.nodes
    ]
    pool = NodePool.of(nodes, entry.layers, entry.batch, np.array(entry.rtt_ms) / 1e3)
    peers = [_pipelines(peer.pipelines) for peer in (entry.parallax or {}).values() if peer.pipelines]
    known = [score(pool, plan) for plan in peers if not faults(pool, plan)]
    return ServingCase(entry.id, pool, max(known, key=lambda performance: performance.tokens_per_s, default=None))


def _pipelines(rows: list[list[tuple[str, int, int]]]) -> list[Pipeline]:
    return [tuple(Stage(*stage) for stage in row) for row in rows]
