"""ComputeClaim as the API server holds it: what a gang asks for, and what was decided."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from strata.cluster.api.crd.fields import (
    LONGEST_MESSAGE,
    MOST_NODES,
    OURS,
    Conditions,
    Grade,
    Word,
    Written,
    cel_rules,
)
from strata.cluster.scheduling.claim import Substitution, TopologyWish
from strata.files import FileModel
from strata.fleet.acu import Norm


class ClaimSpec(FileModel):
    """What a gang of like pods asks for, in the words of the annotations; amounts are of each pod."""

    model_config = ConfigDict(
        json_schema_extra=cel_rules(
            ("!(has(self.acu) && has(self.tflopsFp16))", "acu and tflopsFp16 say the same; give one of them"),
            (
                "!(has(self.fractional) && self.fractional || has(self.cores)) || has(self.vram)",
                "a fraction needs vram, its share of the device's memory",
            ),
            (
                "!(has(self.fractional) && self.fractional || has(self.cores)) "
                "|| !has(self.devices) || self.devices == 1",
                "a fraction is of one device",
            ),
            (
                "!has(self.cores) || !has(self.fractional) || self.fractional",
                "cores are for fractions, and fractional is false",
            ),
            (
                "!has(self.cores) || !(has(self.acu) || has(self.tflopsFp16))",
                "acu and tflopsFp16 ask for cores as well; give one of them",
            ),
            (
                "!has(self.topology) || self.topology != 'require' || has(self.within)",
                "topology require needs within: node, rdma or rack",
            ),
            (
                "!has(self.topology) || self.topology != 'none' || !has(self.within)",
                "within contradicts topology none",
            ),
        ),
        **OURS,
    )

    vram: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Memory of each pod, of all its devices together: 16Gi."""
    acu: Annotated[float, Field(gt=0, lt=1e9)] | None = None
    """Compute of each pod, 100 is one A100."""
    tflops_fp16: Annotated[float, Field(gt=0, lt=1e9)] | None = None
    devices: Annotated[int, Field(ge=1, le=64)] | None = None
    """Devices of each pod, where the job counts them itself."""
    accelerator: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """The card the job was written for."""
    norm: Norm | None = None
    """What cards are exchanged by."""
    substitution: Substitution | None = None
    """Whether other cards may stand in."""
    fractional: bool | None = None
    """Part of one device: vram of it, and acu, tflopsFp16 or cores."""
    cores: Annotated[float, Field(gt=0, le=100)] | None = None
    """Percent of one device's cores, for a fraction."""
    gang_size: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Pods placed together or not at all."""
    topology: TopologyWish | None = None
    within: Literal["node", "rdma", "rack"] | None = None
    """How near the gang must be."""
    framework: Literal["pytorch", "paddle", "mindspore", "vllm"] | None = None
    profile: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    priority: Annotated[int, Field(gt=-(10**9), lt=10**9)] | None = None


class ReasonStatus(Written):
    """One reason: a stable token, what it is about, and the sentence."""

    token: Word
    subject: Word = ""
    message: Annotated[str, Field(max_length=LONGEST_MESSAGE)]


class MoveStatus(Written):
    """A gang that could move so that this one fits: what it holds, what a move loses, and where it would go on."""

    gang: Word
    devices: Annotated[int, Field(ge=1)]
    cost_device_seconds: Annotated[float, Field(ge=0)]
    nodes: Annotated[list[Word], Field(max_length=MOST_NODES)] = Field(default=[])


class DecisionStatus(Written):
    """Why the gang goes where it goes, or nowhere."""

    reasons: Annotated[list[ReasonStatus], Field(max_length=64)] = Field(default=[])
    trust: Grade
    inputs_digest: Word
    moves: Annotated[list[MoveStatus], Field(max_length=64)] = Field(default=[])
    """Of the reason `room-by-moving`, all of them together."""


class NodeVerdict(Written):
    """Why a node was not chosen."""

    node: Word
    reason: Word
    message: Annotated[str, Field(max_length=LONGEST_MESSAGE)]


class ClaimStatus(Written):
    """What was decided."""

    observed_generation: Annotated[int, Field(ge=0)] | None = None
    conditions: Conditions = Field(default=[])
    profile: Word | None = None
    model: Word | None = None
    devices: Annotated[int, Field(ge=1)] | None = None
    """Of all pods together."""
    placement: Annotated[str, Field(max_length=200_000)] | None = None
    """As in the annotation of that name."""
    decision: DecisionStatus | None = None
    nodes: Annotated[list[NodeVerdict], Field(max_length=MOST_NODES)] = Field(default=[])
    nodes_omitted: Annotated[int, Field(ge=0)] | None = None
    """How many more nodes there were."""


class DecidedClaim(Written):
    """The object as it is read by those who want to know what was decided."""

    status: ClaimStatus


class ComputeClaim(Written):
    """The object as it is read."""

    spec: ClaimSpec
