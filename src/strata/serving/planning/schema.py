"""Serving plan files (`kind: ServingPlan`): what one value may be; `planfile` checks what values mean together."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from strata.decision import Trust
from strata.files import FileModel
from strata.serving.planning.goal import Goal

Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(strict=True, gt=0)]
Layers = Annotated[int, Field(strict=True, ge=0)]
Time = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


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
