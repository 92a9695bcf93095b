"""Serving plan files: pipelines, what they were made for and what they promise, as `strata plan serve` wrote them.

There is one form: what the command prints as JSON is what `--save` writes, what `strata export` reads, and what
`strata explain` shows again. `ServingPlan` is what launching needs; `ServingPlanFile` adds what only people read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from strata.decision import Trust
from strata.errors import BadFile, Fault
from strata.files import Document, FileModel, read_document
from strata.serving.planning.allocation import Stage
from strata.serving.planning.goal import Goal

Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(strict=True, gt=0)]
Layers = Annotated[int, Field(strict=True, ge=0)]
Time = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class PlannedStage(FileModel):
    """Layers [first, end) on a node: seconds of a decode step, and the sequences its KV memory holds."""

    node: Name
    first: Layers
    end: Count
    stage_s: Time
    slots: Layers


class PlannedPipeline(FileModel):
    """Stages that hold all layers, and what they give together; `slots` and `kv_tokens` of the tightest stage.

    Times are without any queue. requests_per_s: at the best batch; goodput_per_s: of those within the job's goals.
    decode_s: of one token around the pipeline; ttft_s: of a prompt, until its first token is back. kv_tokens: 0
    where it is not known.
    """

    stages: Annotated[tuple[PlannedStage, ...], Field(min_length=1)]
    slots: Layers
    tokens_per_s: Time
    requests_per_s: Time
    goodput_per_s: Time
    decode_s: Time
    ttft_s: Time
    trust: Trust
    kv_tokens: Layers = 0

    @property
    def layout(self) -> tuple[Stage, ...]:
        """The pipeline as allocators and routers know it."""
        return tuple(Stage(stage.node, stage.first, stage.end) for stage in self.stages)


class PlannedNode(FileModel):
    """What launching needs to know of a node, or of a group of its devices.

    first_device: of the group on its machine; null where all devices of the machine work as one.
    """

    id: Name
    domain: str
    accelerator: str
    num_devices: Annotated[int, Field(strict=True, gt=0, le=10_000)]
    vendor: str = ""
    first_device: Layers | None = None


class PlannedFleet(FileModel):
    """The fleet a plan was made for, node by node, the unused ones too."""

    name: Name
    nodes: tuple[PlannedNode, ...]


class PlannedService(FileModel):
    """The job a plan was made for. `num_layers`: blocks, without embedding and head; num_heads: what tensor
    parallelism divides (`ModelSpec.served_heads`), 0 unknown.

    weights, kv: their precisions. memory_headroom: share of each device's memory that the plan leaves free.
    context_limit: most tokens of a request that job or model state, 0 where neither does. is_whole: all layers are
    on one node, and in one rank of a pipeline; kv_heads: see `ModelInfo`. notes: what a reader of the figures
    should know of how the model was read.
    """

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
    is_whole: bool = False
    kv_heads: tuple[Count, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def context_tokens(self) -> int:
        """Tokens of a whole request, the means."""
        return self.prompt_tokens + self.output_tokens


class ServingPlan(FileModel):
    """Where the layers go. Without pipelines: nothing fits. `inputs` names the files of fleet and job."""

    api_version: Literal["strata/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["ServingPlan"]
    name: Name
    strategy: Literal["auto", "dp", "greedy"]
    goal: Goal
    routing: Literal["auto", "dp", "rr"]
    pipelines: tuple[PlannedPipeline, ...]
    fleet: PlannedFleet
    job: PlannedService
    inputs: dict[str, str] = Field(default={})

    def node(self, node_id: str) -> PlannedNode:
        """Return a node of the plan (KeyError if there is none)."""
        for node in self.fleet.nodes:
            if node.id == node_id:
                return node
        raise KeyError(node_id)

    def devices(self) -> dict[str, int]:
        """Return how many devices of each domain serve."""
        used, counts = {stage.node for pipeline in self.pipelines for stage in pipeline.stages}, Counter[str]()
        for node in self.fleet.nodes:
            counts[node.domain] += node.num_devices * (node.id in used)
        return counts

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form, which `read_serving_plan` reads back."""
        return self.model_dump(mode="json", by_alias=True)


class ReasonEntry(FileModel):
    """A reason as `Reason.to_dict` writes it."""

    token: Name
    subject: str = ""
    data: dict[str, Any] = Field(default={})
    text: str


class PlanFiguresEntry(FileModel):
    """What all pipelines give together; `gap` is of the stages alone, to what no plan exceeds.

    Money is of devices in pipelines and of links; a million tokens read and written, at requests_per_s and at
    goodput_per_s. null: a price is missing.
    """

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
    flops_efficiency: Time | None
    bandwidth_efficiency: Time | None
    efficiencies_trust: Trust
    usd_per_hour: Time | None = None
    cost_usd_per_mtoken: Time | None = None
    goodput_usd_per_mtoken: Time | None = None


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


class ServingPlanFile(ServingPlan):
    """`kind: ServingPlan`. Without pipelines: nothing fits, and `reasons` say why."""

    figures: PlanFiguresEntry | None = None
    reasons: list[ReasonEntry] = Field(default=[])
    alternatives: list[PlanAlternativeEntry] = Field(default=[])
    unused: list[UnusedEntry] = Field(default=[])
    trust: Trust = Trust.ASSUMED
    inputs_digest: str = ""
    seed: int = 0
    search_s: Time = 0.0


def read_serving_plan(path: str | Path) -> ServingPlanFile:
    """Read a plan file. Raises BadFile with all faults and their places, also where layers are missing."""
    document = read_document(path)
    plan = document.check(ServingPlanFile)
    if faults := list(_relations(document, plan)):
        raise BadFile(faults)
    return plan


def _relations(document: Document, plan: ServingPlan) -> Iterator[Fault]:
    """Yield what is wrong between values that are right alone."""
    known, used = {node.id for node in plan.fleet.nodes}, set[str]()
    for p, pipeline in enumerate(plan.pipelines):
        layer = 0
        for s, stage in enumerate(pipeline.stages):
            here = ("pipelines", p, "stages", s)
            if stage.first != layer:
                yield document.fault(
                    (*here, "first"), f"should be {layer}: stages hold consecutive layers, from 0 on"
                )
            if stage.end <= stage.first:
                yield document.fault((*here, "end"), "a stage must hold at least one layer")
            layer = stage.end
            if stage.node not in known:
                yield document.fault((*here, "node"), f"no node {stage.node!r} in `fleet`")
            elif stage.node in used:
                yield document.fault((*here, "node"), f"{stage.node} already holds a stage")
            used.add(stage.node)
        if layer != plan.job.num_layers:
            message = f"ends after {layer} layers where the job's model has {plan.job.num_layers}"
            yield document.fault(("pipelines", p, "stages"), message)
