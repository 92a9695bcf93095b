"""Plan files, `kind: TrainingPlan`: what `strata plan train` prints as JSON and saves.

What one value may be is said here; what values mean together is checked in `planfile.py`. The facts of fleet, job
and request (`PlannedFleet`, `PlannedJob`, `PlanRequest`) are declared here alone: the planner fills them, the file
holds them, and `export/` reads them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from strata.decision import Trust
from strata.files import FileModel
from strata.fleet.fleet import Domain, Fleet
from strata.workload.job import ContextExchange, Objective, Recompute, Schedule, TrainingJob
from strata.workload.model import ModelSpec
from strata.workload.plan import TrainingPlan

Name = Annotated[str, Field(min_length=1)]
Index = Annotated[int, Field(strict=True, ge=0)]
Count = Annotated[int, Field(strict=True, gt=0)]
Amount = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


class PlannedDomain(FileModel):
    """What launching needs to know of a domain."""

    name: Name
    accelerator: Name
    num_devices: Index
    devices_per_node: Count

    @classmethod
    def of(cls, domain: Domain) -> Self:
        """Return the facts of a domain."""
        return cls(
            name=domain.name,
            accelerator=domain.accelerator.name,
            num_devices=domain.num_devices,
            devices_per_node=domain.devices_per_node,
        )


class PlannedFleet(FileModel):
    """The domains a plan could use."""

    name: Name
    domains: list[PlannedDomain]

    @classmethod
    def of(cls, fleet: Fleet) -> Self:
        """Return the facts of a fleet."""
        return cls(name=fleet.name, domains=[PlannedDomain.of(domain) for domain in fleet.domains])


class PlannedExperts(FileModel):
    """The mixture of experts in every layer but `dense_layers` (0: the first after the embedding)."""

    num_experts: Count
    experts_per_token: Count
    ffn_hidden_size: Count
    shared_ffn_hidden_size: Index
    shared_gate: bool
    dense_layers: list[Index]


class PlannedLatentAttention(FileModel):
    """Multi-head latent attention; `q_lora_rank` null: queries are not compressed."""

    q_lora_rank: Count | None
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Count
    v_head_dim: Count


class PlannedModel(FileModel):
    """What a launcher must know of a model beside its sizes. `max_positions`: of a learned table; null: rotary."""

    model_type: Name
    vocab_size: Count
    head_dim: Count
    gated_mlp: bool
    tied_embeddings: bool
    max_positions: Count | None
    norms_per_layer: Count
    norm_bias: bool
    qk_norm: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    latent: PlannedLatentAttention | None
    experts: PlannedExperts | None

    @classmethod
    def of(cls, spec: ModelSpec) -> Self:
        """Return the facts of a model."""
        moe, latent = spec.experts, spec.latent
        return cls(
            model_type=spec.model_type,
            vocab_size=spec.vocab_size,
            head_dim=spec.head_dim,
            gated_mlp=spec.gated_mlp,
            tied_embeddings=spec.tied_embeddings,
            max_positions=spec.max_sequence_length,
            norms_per_layer=spec.norms_per_layer,
            norm_bias=spec.norm_bias,
            qk_norm=spec.qk_norm_params > 0,
            qkv_bias=spec.qkv_bias,
            output_bias=spec.output_bias,
            mlp_bias=spec.mlp_bias,
            latent=PlannedLatentAttention(**asdict(latent)) if latent else None,
            experts=PlannedExperts(
                num_experts=moe.num_experts,
                experts_per_token=moe.experts_per_token,
                ffn_hidden_size=moe.intermediate_size,
                shared_ffn_hidden_size=moe.shared_intermediate_size,
                shared_gate=moe.shared_gate,
                dense_layers=sorted(moe.dense_layers),
            )
            if moe
            else None,
        )


class PlannedJob(FileModel):
    """The job a plan is for. `num_layers` counts the embedding and the head; null where not known.

    notes: what a reader of the figures should know of how the model was read.
    """

    name: Name
    model: str = ""
    num_layers: Count
    sequence_length: Count
    global_batch: Count
    precision: str = "bf16"
    optimizer: str = "adamw"
    num_heads: Count | None = None
    num_kv_heads: Count | None = None
    hidden_size: Count | None = None
    ffn_hidden_size: Count | None = None
    architecture: PlannedModel | None = None
    notes: list[str] = Field(default=[])

    @classmethod
    def of(cls, job: TrainingJob) -> Self:
        """Return the facts of a job."""
        spec = job.spec
        return cls(
            name=job.name,
            model=job.model_name,
            num_layers=len(job.layers),
            sequence_length=job.sequence_length,
            global_batch=job.global_batch,
            precision=job.precision,
            optimizer=job.optimizer,
            num_heads=job.num_heads,
            num_kv_heads=spec.num_kv_heads if spec else None,
            hidden_size=spec.hidden_size if spec else None,
            ffn_hidden_size=spec.intermediate_size if spec else None,
            architecture=PlannedModel.of(spec) if spec else None,
            notes=list(spec.notes) if spec else [],
        )


class PlanRequest(FileModel):
    """What was asked beside fleet and job: null is what the job file says. `policy`, `in_use`: files of hi-ppo."""

    planner: Literal["exact", "hi-ppo"] = "exact"
    minimize: Objective | None = None
    weights: tuple[Amount, Amount, Amount] | None = None
    time_limit_s: Amount = 30.0
    top: Count = 5
    seed: int = 0
    baselines: bool = True
    pareto: bool = False
    policy: str | None = None
    in_use: str | None = None
    given: str | None = None


class InputDigests(FileModel):
    """Hashes of the fleet, and of the job with the request applied, that a plan was made for."""

    fleet: Name
    job: Name


class StageEntry(FileModel):
    """One stage of a pipeline."""

    domain: Name
    first_layer: Index
    num_layers: Count
    tensor_parallel: Count
    warmup: Index = 0
    context_parallel: Count = 1


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
    """One stage as evaluated: times of one microbatch, memory of one device."""

    domain: Name
    accelerator: Name
    first_layer: Index
    num_layers: Count
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
