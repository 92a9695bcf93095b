"""Case files of layer allocation: pools of nodes with decode times, capacities and round trips.

A benchmark's file may carry more than is read here: unknown keys are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import ConfigDict, Field

from strata.errors import Fault
from strata.files import Document, FileModel

Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(strict=True, gt=0)]
Layers = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Time = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


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
    layer_ms: Positive
    head_ms: Time
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
    rtt_ms: list[list[Time]]
    parallax: dict[str, PeerEntry] = Field(default_factory=dict)


class CaseFile(_Loose):
    """The cases, in order; a file is the list alone."""

    cases: list[CaseEntry]


def faults(document: Document, number: int, case: CaseEntry) -> Iterator[Fault]:
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
