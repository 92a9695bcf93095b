"""What a plan was made for: facts of fleet, job and request. The planner fills them, the file holds them, and
`export/` reads them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal, Self

from pydantic import Field

from strata.files import FileModel
from strata.fleet.fleet import Domain, Fleet
from strata.workload.job import Objective, TrainingJob
from strata.workload.linear_attention import GatedDelta
from strata.workload.model import ModelSpec
from strata.workload.software_schema import SoftwareEntry, software_entry

Name = Annotated[str, Field(min_length=1)]
Index = Annotated[int, Field(strict=True, ge=0)]
Count = Annotated[int, Field(strict=True, gt=0)]
Amount = Annotated[float, Field(ge=0)]


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
    index_heads: Index = 0
    index_head_dim: Index = 0


class PlannedLinearAttention(FileModel):
    """Gated DeltaNet in the blocks `layers`; 0 is the first block, after the embedding."""

    key_heads: Count
    value_heads: Count
    key_head_dim: Count
    value_head_dim: Count
    kernel: Count
    layers: list[Index]

    @classmethod
    def of(cls, linear: GatedDelta) -> Self:
        """Return the same of a model's."""
        sizes = {name: size for name, size in asdict(linear).items() if name in cls.model_fields}
        return cls(**sizes | {"layers": sorted(linear.layers)})


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
    gated_attention: bool = False
    linear: PlannedLinearAttention | None = None

    @classmethod
    def of(cls, spec: ModelSpec) -> Self:
        """Return the facts of a model."""
        moe, latent, linear = spec.experts, spec.latent, spec.linear
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
            gated_attention=spec.gated_attention,
            linear=PlannedLinearAttention.of(linear) if type(linear) is GatedDelta else None,
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
    software: SoftwareEntry = SoftwareEntry()
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
            num_heads=spec.num_heads if spec else job.num_heads,
            num_kv_heads=spec.num_kv_heads if spec else None,
            hidden_size=spec.hidden_size if spec else None,
            ffn_hidden_size=spec.intermediate_size if spec else None,
            architecture=PlannedModel.of(spec) if spec else None,
            software=software_entry(job.software),
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
