"""The files of serving: plans (`kind: ServingPlan`), and case files of layer allocation.

What one value may be is said here; what values mean together is checked where a file is read. A benchmark's case
file (pools of nodes with decode times, capacities and round trips) may carry more than is read: unknown keys are
left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from strata.decision import Trust
from strata.errors import Fault
from strata.files import Document, FileModel
from strata.serving.planning.goal import Goal

Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(strict=True, gt=0)]
Layers = Annotated[int, Field(strict=True, ge=0)]
Time = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
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


class PlanStageEntry(FileModel):
    """Layers [first, end) on a node: seconds of a decode step, and the sequences its KV memory holds."""

    node: Name
    first: Layers
    end: Count
    stage_s: Time
    slots: Layers


class PlanPipelineEntry(FileModel):
    """Stages that hold all layers, and what they give together; `slots` and `kv_tokens` of the tightest stage."""

    stages: Annotated[list[PlanStageEntry], Field(min_length=1)]
    slots: Layers
    kv_tokens: Layers = 0
    tokens_per_s: Time
    requests_per_s: Time
    goodput_per_s: Time
    decode_s: Time
    ttft_s: Time
    trust: Trust


class PlanNodeEntry(FileModel):
    """What launching needs to know of a node."""

    id: Name
    domain: str
    accelerator: str
    num_devices: Annotated[int, Field(strict=True, gt=0, le=10_000)]
    vendor: str = ""


class PlanFleetEntry(FileModel):
    """The fleet a plan was made for, node by node."""

    name: Name
    nodes: list[PlanNodeEntry]


class PlanServiceEntry(FileModel):
    """The job a plan was made for. `num_layers`: blocks, without embedding and head."""

    name: Name
    model: str
    num_layers: Count
    prompt_tokens: Count
    output_tokens: Count
    weights: str
    kv: str
    memory_headroom: Annotated[float, Field(ge=0, lt=1)]
    num_heads: Layers = 0
    context_limit: Layers = 0


class ReasonEntry(FileModel):
    """A reason as `Reason.to_dict` writes it."""

    token: Name
    subject: str = ""
    data: dict[str, Any] = Field(default={})
    text: str


class PlanFiguresEntry(FileModel):
    """What all pipelines give together; `gap` is of the stages alone, to what no plan exceeds."""

    tokens_per_s: Time
    decode_s: Time
    ttft_s: Time
    requests_per_s: Time
    goodput_per_s: Time
    link_share: Time
    stages_tokens_per_s: Time
    bound_tokens_per_s: Time
    gap: Time | None
    trust: Trust
    batch: Count
    flops_efficiency: Time
    bandwidth_efficiency: Time
    efficiencies_trust: Trust


class PlanAlternativeEntry(FileModel):
    """Another strategy's plan, what it gives, and why it was not taken."""

    name: Name
    cost: dict[str, int | float]
    reasons: list[ReasonEntry]


class UnusedEntry(FileModel):
    """Nodes in no pipeline, and why; a whole domain that cannot serve has no nodes here."""

    domain: Name
    nodes: list[Name]
    reason: ReasonEntry


class ServingPlanFile(FileModel):
    """`kind: ServingPlan`. Without pipelines: nothing fits, and `reasons` say why."""

    api_version: Literal["strata/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["ServingPlan"]
    name: Name
    strategy: Literal["auto", "dp", "greedy"]
    goal: Goal
    routing: Literal["auto", "dp", "rr"]
    pipelines: list[PlanPipelineEntry]
    figures: PlanFiguresEntry | None = None
    reasons: list[ReasonEntry] = Field(default=[])
    alternatives: list[PlanAlternativeEntry] = Field(default=[])
    unused: list[UnusedEntry] = Field(default=[])
    trust: Trust = Trust.ASSUMED
    inputs_digest: str = ""
    seed: int = 0
    search_s: Time = 0.0
    fleet: PlanFleetEntry
    job: PlanServiceEntry
    inputs: dict[str, str] = Field(default={})
