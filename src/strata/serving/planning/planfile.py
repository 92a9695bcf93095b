"""Serving plan files: pipelines, what they were made for and what they promise, as `strata plan serve` wrote them.

There is one form: what the command prints as JSON is what `--save` writes, what `strata export` reads, and what
`strata explain` shows again. What only people read (alternatives, reasons, bounds) is left alone here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from strata.decision import Trust
from strata.errors import BadFile, Fault
from strata.files import API_VERSION, Document, read_document
from strata.serving.planning.allocation import Stage
from strata.serving.planning.schema import ServingPlanFile


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """What launching needs to know of a node."""

    id: str
    domain: str
    accelerator: str
    num_devices: int
    vendor: str = ""


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """Layers [first, end) on a node. stage_s: of one decode step; slots: sequences its KV memory holds."""

    node: str
    first: int
    end: int
    stage_s: float
    slots: int


@dataclass(frozen=True, slots=True)
class PlannedPipeline:
    """Stages that hold all layers; `slots` and `kv_tokens` are those of its tightest stage (0 tokens: not known).

    Times are without any queue.

    requests_per_s: at the best batch; goodput_per_s: of those within the job's goals.
    decode_s: of one token around the pipeline; ttft_s: of a prompt, until its first token is back.
    """

    stages: tuple[PlannedStage, ...]
    slots: int
    tokens_per_s: float
    requests_per_s: float
    goodput_per_s: float
    decode_s: float
    ttft_s: float
    trust: Trust
    kv_tokens: int = 0

    @property
    def layout(self) -> tuple[Stage, ...]:
        """The pipeline as allocators and routers know it."""
        return tuple(Stage(stage.node, stage.first, stage.end) for stage in self.stages)


@dataclass(frozen=True, slots=True)
class PlannedService:
    """The serving job a plan is for. `num_layers`: blocks, embedding and head not counted; num_heads: 0 unknown.

    context_limit: most tokens of a request that job or model state, 0 where neither does.

    weights, kv: their precisions. memory_headroom: share of each device's memory that the plan leaves free.
    """

    name: str
    model: str
    num_layers: int
    prompt_tokens: int
    output_tokens: int
    weights: str
    kv: str
    memory_headroom: float
    num_heads: int = 0
    context_limit: int = 0

    @property
    def context_tokens(self) -> int:
        """Tokens of a whole request, the means."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """A plan as a file holds it. `nodes`: all of the pool, also the unused; `inputs` names fleet and job."""

    name: str
    strategy: str
    goal: str
    routing: str
    pipelines: tuple[PlannedPipeline, ...]
    fleet: str
    nodes: tuple[PlannedNode, ...]
    job: PlannedService
    inputs: Mapping[str, str] = field(default_factory=dict)

    def node(self, node_id: str) -> PlannedNode:
        """Return a node of the plan (KeyError if there is none)."""
        for node in self.nodes:
            if node.id == node_id:
                return node
        raise KeyError(node_id)

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form, which `read_serving_plan` reads back."""
        return {
            "apiVersion": API_VERSION,
            "kind": "ServingPlan",
            "name": self.name,
            "strategy": self.strategy,
            "goal": self.goal,
            "routing": self.routing,
            "pipelines": [
                {
                    **asdict(pipeline),
                    "stages": [asdict(stage) for stage in pipeline.stages],
                    "trust": str(pipeline.trust),
                }
                for pipeline in self.pipelines
            ],
            "fleet": {"name": self.fleet, "nodes": [asdict(node) for node in self.nodes]},
            "job": asdict(self.job),
            "inputs": dict(self.inputs),
        }


def read_serving_plan(path: str | Path) -> ServingPlan:
    """Read a plan file. Raises BadFile with all faults and their places, also where layers are missing.

    A file without pipelines reads: it is the answer that nothing fits.
    """
    document = read_document(path)
    file = document.check(ServingPlanFile)
    plan = ServingPlan(
        name=file.name,
        strategy=file.strategy,
        goal=file.goal,
        routing=file.routing,
        pipelines=tuple(
            PlannedPipeline(
                **{
                    **pipeline.model_dump(exclude={"stages"}),
                    "stages": tuple(PlannedStage(**stage.model_dump()) for stage in pipeline.stages),
                }
            )
            for pipeline in file.pipelines
        ),
        fleet=file.fleet.name,
        nodes=tuple(PlannedNode(**node.model_dump()) for node in file.fleet.nodes),
        job=PlannedService(**file.job.model_dump()),
        inputs=file.inputs,
    )
    faults = list(_relations(document, plan))
    if faults:
        raise BadFile(faults)
    return plan


def _relations(document: Document, plan: ServingPlan) -> Iterator[Fault]:
    """Yield what is wrong between values that are right alone."""
    known, used = {node.id for node in plan.nodes}, set[str]()
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
