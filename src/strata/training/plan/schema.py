"""Plan files: `kind: TrainingPlan`, and the answer of `strata plan train -o json`, as far as a plan is in it.

What one value may be is said here; what values mean together is checked in `planfile.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from strata.files import FileModel
from strata.workload.job import Recompute, Schedule

Name = Annotated[str, Field(min_length=1)]
Index = Annotated[int, Field(strict=True, ge=0)]
Count = Annotated[int, Field(strict=True, gt=0)]


class StageEntry(FileModel):
    """One stage of a pipeline."""

    domain: Name
    first_layer: Index
    num_layers: Count
    tensor_parallel: Count
    warmup: Index = 0


class PipelineEntry(FileModel):
    """A chain of stages and its copies."""

    stages: Annotated[list[StageEntry], Field(min_length=1)]
    replicas: Count
    microbatches: Count


class PlanEntry(FileModel):
    """What `TrainingPlan.to_dict` writes."""

    pipelines: Annotated[list[PipelineEntry], Field(min_length=1)]
    microbatch_size: Count
    schedule: Schedule = Schedule.ONE_F_ONE_B
    recompute: Recompute = Recompute.NONE
    zero_stage: Annotated[int, Field(strict=True, ge=0, le=3)] = 0
    gradient_compression: Annotated[float, Field(gt=0)] = 1.0
    local_steps: Count = 1
    virtual_stages: Count = 1


class DomainFacts(FileModel):
    """What launching needs to know of a domain."""

    name: Name
    accelerator: Name
    num_devices: Index
    devices_per_node: Count


class FleetFacts(FileModel):
    """The fleet a plan was made for."""

    name: Name
    domains: Annotated[list[DomainFacts], Field(min_length=1)]


class JobFacts(FileModel):
    """The job a plan was made for. `num_layers` counts the embedding and the head."""

    name: Name
    model: str = ""
    num_layers: Count
    sequence_length: Count
    global_batch: Count
    precision: str = "bf16"
    optimizer: str = "adamw"
    num_heads: Count | None = None
    hidden_size: Count | None = None


class PlanFile(FileModel):
    """`kind: TrainingPlan`. `inputs` names the files it came from: `fleet` and `job`."""

    api_version: Literal["strata/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["TrainingPlan"]
    name: Name
    plan: PlanEntry
    report: dict[str, Any] = Field(default={})
    fleet: FleetFacts
    job: JobFacts
    inputs: dict[str, str] = Field(default={})


class _Answer(FileModel):
    """Part of an answer: what else is in it is not read."""

    model_config = ConfigDict(extra="ignore")


class RankedPlan(_Answer):
    """One entry of `plans` in an answer."""

    name: str = ""
    plan: PlanEntry
    report: dict[str, Any] = Field(default={})


class PlanAnswer(_Answer):
    """The answer of `strata plan train -o json`; its plans stand best first."""

    plans: Annotated[list[RankedPlan], Field(min_length=1)]
    fleet: FleetFacts
    job: JobFacts
    inputs: dict[str, str] = Field(default={})
