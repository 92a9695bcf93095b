"""Plan files, `kind: TrainingPlan`: what `strata plan train` prints as JSON and saves.

What one value may be is said here and in `planned.py`; what values mean together is checked in `planfile.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from strata.decision import Trust
from strata.files import FileModel
from strata.training.plan.planned import (
    Amount,
    Count,
    Index,
    InputDigests,
    Name,
    PlannedFleet,
    PlannedJob,
    PlanRequest,
)
from strata.workload.job import ContextExchange, Objective, Recompute, Schedule
from strata.workload.plan import TrainingPlan

Positive = Annotated[float, Field(gt=0)]


class StageEntry(FileModel):
    """One stage of a pipeline."""

    domain: Name
    first_layer: Index
    num_layers: Count
    tensor_parallel: Count
    warmup: Index = 0
    context_parallel: Count = 1
    recompute_layers: Index | None = None


class PipelineEntry(FileModel):
    """A chain of stages in `replicas` copies."""

    stages: Annotated[list[StageEntry], Field(min_length=1)]
    replicas: Count
    microbatches: Count
    samples: Count | None = None


class PlanEntry(FileModel):
    """What `TrainingPlan.to_dict` writes."""

    pipelines: Annotated[list[PipelineEntry], Field(min_length=1)]
    microbatch_size: Count
    schedule: Schedule = Schedule.ONE_F_ONE_B
    recompute: Recompute = Recompute.NONE
    zero_stage: Annotated[int, Field(strict=True, ge=0, le=3)] = 0
    gradient_compression: Positive = 1.0
    local_steps: Count = 1
    virtual_stages: Count = 1
    shard_group: Count | None = None
    context_exchange: ContextExchange = ContextExchange.RING
    expert_parallel: Count = 1
    recompute_layers: Count | None = None
    activation_offload: Annotated[float, Field(ge=0, le=1)] = 0.0

    @property
    def plan(self) -> TrainingPlan:
        """The plan as the rooms know it."""
        return TrainingPlan.from_dict(self.model_dump())


class ReasonEntry(FileModel):
    """A reason as `Reason.to_dict` writes it."""

    token: Name
    subject: str = ""
    data: dict[str, Any] = Field(default={})
    text: str


class StageFigures(FileModel):
    """One stage as evaluated: times of one microbatch, memory of one device. `chunks`: first and last layers."""

    domain: Name
    accelerator: Name
    first_layer: Index
    num_layers: Count
    chunks: list[tuple[Index, Index]] = Field(default=[])
    tensor_parallel: Count
    replicas: Count
    forward_s: Amount
    backward_s: Amount
    memory_bytes: Amount
    memory_limit_bytes: Amount


class StepBreakdown(FileModel):
    """Where the time of a step goes."""

    compute: Amount
    bubble: Amount
    wan: Amount
    sync: Amount


class RankedPlanEntry(FileModel):
    """One plan with its figures, and why it was chosen or was not."""

    rank: Count
    name: Name
    kind: Name
    step_time_s: Positive
    tokens_per_s: Positive
    utilization: Amount
    mfu: Amount | None = None
    wan_bytes_per_step: Amount
    egress_usd_per_step: Amount
    cost_usd_per_step: Amount | None
    cost_usd_per_mtoken: Amount | None
    num_devices: Count
    trust: Trust
    fits_memory: bool
    domains: Annotated[list[Name], Field(min_length=1)]
    devices: dict[str, Count]
    stages: Annotated[list[StageFigures], Field(min_length=1)]
    microbatches: Count
    microbatch_size: Count
    schedule: Schedule
    recompute: Recompute
    local_steps: Count
    gradient_compression: Positive
    score: float
    breakdown_s: StepBreakdown
    reasons: list[ReasonEntry]
    plan: PlanEntry


class BaselineEntry(FileModel):
    """What the plan is compared with; `reason` says why there is nothing to compare with."""

    found: bool
    step_time_s: Positive | None
    ratio: Positive | None
    reason: str = ""
    name: str = ""
    tokens_per_s: Positive | None = None
    utilization: Amount | None = None
    wan_bytes_per_step: Amount | None = None
    cost_usd_per_mtoken: Amount | None = None
    num_devices: Count | None = None
    device_seconds_per_mtoken: Positive | None = None
    trust: Trust | None = None

    @model_validator(mode="after")
    def _has_figures(self) -> Self:
        needed = ("step_time_s", "ratio", "num_devices", "device_seconds_per_mtoken")
        missing = [key for key in needed if getattr(self, key) is None]
        if self.found and missing:
            raise ValueError(f"found: true needs {', '.join(missing)}")
        return self


class ProofEntry(FileModel):
    """How good the best plan is: no plan of the space scores below the bound."""

    bound_s: float | None
    bound_score: float | None
    gap: Amount | None
    branches: Index
    evaluated: Index
    rows_searched_in_part: tuple[Count, ...] = ()


class AlternativeEntry(FileModel):
    """Another plan or set of domains, what it costs, and why it was not chosen."""

    name: str
    domains: list[str]
    cost: dict[str, float]
    reasons: list[ReasonEntry]


class ExplanationEntry(FileModel):
    """Why the learned policy chose as it did."""

    taken: str
    runner_up: str | None
    in_use: str | None
    lead: float | None
    state: dict[str, float]
    tipped: dict[str, float]
    keeping_costs: dict[str, float]
    value_ahead: dict[str, float]
    reasons: list[ReasonEntry]


class PolicyEntry(FileModel):
    """The learned policy that chose."""

    file: str
    trained_at: str | None
    seed: int | None
    explanation: ExplanationEntry | None


class AssumedEntry(FileModel):
    """An input of the best plan that is not measured: what was taken for it, and how to measure it."""

    input: Name
    value: str
    trust: Trust
    measure: str


class KneeEntry(FileModel):
    """The cheapest plan within 10 % of the best time: its time and money over those of the best plan."""

    step_time_ratio: Positive
    cost_ratio: Amount
    plan: RankedPlanEntry


class GivenPlanEntry(FileModel):
    """The user's own plan: what is wrong with it, its step time over that of the best plan and of the bound."""

    source: Name
    name: Name
    faults: list[ReasonEntry]
    notes: list[ReasonEntry]
    ratio: Positive | None
    bound_ratio: Positive | None
    plan: RankedPlanEntry | None


class TrainingPlanFile(FileModel):
    """`kind: TrainingPlan`: plans, best first. Without plans: nothing fits, and `reasons` say why.

    `inputs` names the files it came from, `fleet` and `job`; `request` is what else was asked.
    """

    api_version: Literal["strata/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["TrainingPlan"]
    name: Name
    objective: Objective
    plans: list[RankedPlanEntry]
    baselines: dict[str, BaselineEntry]
    proof: ProofEntry
    search_s: Amount
    reasons: list[ReasonEntry]
    alternatives: list[AlternativeEntry]
    trust: Trust
    assumed: list[AssumedEntry] = Field(default=[])
    inputs_digest: Name
    seed: int
    fleet: PlannedFleet
    job: PlannedJob
    inputs: dict[str, str]
    request: PlanRequest
    digests: InputDigests
    policy: PolicyEntry | None = None
    front: list[RankedPlanEntry] | None = None
    knee: KneeEntry | None = None
    given: GivenPlanEntry | None = None
    _source: str = PrivateAttr("")

    @property
    def source(self) -> str:
        """The file it was read from, or its own name."""
        return self._source or self.name

    def read_from(self, source: str) -> None:
        """Remember the file it was read from: what is wrong with it is said of that file."""
        self._source = source
