"""A training job: what is to be trained, how it may be trained, and what counts as good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Final

from strata.workload.heads import shares_evenly
from strata.workload.layers import LayerTable
from strata.workload.model import ModelSpec
from strata.workload.pins import Pins
from strata.workload.precision import ELEMENT_BYTES, MEMORY_HEADROOM
from strata.workload.profile import LayerProfile
from strata.workload.software import Software


class Objective(StrEnum):
    """What a planner minimises: step time, money per token, the briefs' linear reward, or Tchebycheff.

    The reward's cost is all money of a step; of `reward-egress` it is the briefs' C_comm, what links are paid for.
    """

    TIME = "time"
    COST = "cost"
    REWARD = "reward"
    REWARD_EGRESS = "reward-egress"
    TCHEBYCHEFF = "tchebycheff"


class Recompute(StrEnum):
    """Which activations are dropped in the forward pass and computed again in the backward pass.

    Attention scores never stay (flash attention); `selective` drops the results of norms and activation
    functions too (and what latent attention's up-projections write), `full` all but each layer's input (arXiv
    2205.05198 §5). `selective_op` keeps every second matrix product and attention (torchtitan's selective
    activation checkpointing by operations, arXiv 2410.06511 §2.2).
    """

    NONE = "none"
    FULL = "full"
    SELECTIVE = "selective"
    SELECTIVE_OP = "selective_op"


ANY_RECOMPUTE: Final = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
"""What `recompute: auto` tries, the least work first."""


class ContextExchange(StrEnum):
    """How attention sees the rest of a sequence under context parallelism."""

    RING = "ring"
    ALL_TO_ALL = "all-to-all"


class Schedule(StrEnum):
    """Order of forwards and backwards in a pipeline.

    `1f1b-la` hides link latency by deeper warm-up, `zb-h1` computes weight gradients apart from those of inputs,
    `dualpipev` sends microbatches down all stages and back up through a second chunk of each.
    """

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    LATENCY_AWARE = "1f1b-la"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE = "zb-h1"
    DUAL_PIPE_V = "dualpipev"


SEARCHED: Final = tuple(schedule for schedule in Schedule if schedule is not Schedule.DUAL_PIPE_V)
"""What is tried where a job does not say: DualPipeV, which few programs run, must be asked for."""


PRECISION_BYTES: Final = {
    precision: ELEMENT_BYTES[stored]
    for precision, stored in {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "bf16"}.items()
}
"""Bytes of a stored element. `fp8` multiplies the matrices of the blocks in 8 bit and keeps the rest in bf16:
weights, gradients, activations, attention, embedding and head (Micikevicius et al. 2022, arXiv 2209.05433; what
Transformer Engine does with a bf16 model)."""

OPTIMIZER_BYTES: Final = {"adamw": 12.0, "adam": 12.0, "sgd": 4.0}
"""fp32 master copy and moments per parameter: Adam 4 + 4 + 4, plain SGD 4 (ZeRO, arXiv 1910.02054, §3.1)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds a plan must keep; None means no bound. `memory_headroom` is the share of memory left free."""

    cost_usd_per_step: float | None = None
    tokens_per_s: float | None = None
    domains: frozenset[str] | None = None
    memory_headroom: float = MEMORY_HEADROOM


@dataclass(frozen=True)
class TrainingJob:
    """A training run. `global_batch` counts sequences of `sequence_length` tokens.

    weights: of (efficiency, utilisation, communication cost) in the briefs' reward and in Tchebycheff.
    flops_efficiency: reached share of an accelerator's dense peak while a kernel runs, bubbles excluded; None:
        what its kernels reach, one by one.
    calibration: by accelerator, what kernels reach over what either of these says, fitted to the user's own runs.
    expert_imbalance: tokens of the fullest expert-parallel rank over the mean.
    local_steps: the H values DiLoCo may use; empty allows synchronous training only.
    gradient_compression: factors by which gradients between domains may shrink (1 = none).
    software: what runs the job, beyond what its layout says.
    model_name: what the layers are of, for people. profile: measured layer times, which go before FLOPs.
    num_heads: what tensor parallelism divides (`ModelSpec.divided_heads`).
    spec: the model's shape, for launch files; the planner reads the layers alone.
    pins: what every plan's layout must be.
    """

    name: str
    layers: LayerTable
    sequence_length: int
    num_heads: int
    global_batch: int
    precision: str = "bf16"
    expert_imbalance: float = 1.0
    optimizer: str = "adamw"
    recompute: tuple[Recompute, ...] = ANY_RECOMPUTE
    schedules: tuple[Schedule, ...] = SEARCHED
    zero_stages: tuple[int, ...] = (0, 1)
    local_steps: tuple[int, ...] = ()
    gradient_compression: tuple[float, ...] = (1.0,)
    home: str | None = None
    objective: Objective = Objective.TIME
    weights: tuple[float, float, float] = (0.4, 0.3, 0.3)
    limits: Limits = field(default_factory=Limits)
    flops_efficiency: float | None = None
    calibration: Mapping[str, float] = field(default_factory=dict)
    software: Software = field(default_factory=Software)
    model_name: str = ""
    profile: LayerProfile | None = None
    spec: ModelSpec | None = field(default=None, compare=False, repr=False)
    pins: Pins = field(default_factory=Pins)

    @cached_property
    def untied(self) -> TrainingJob:
        """The job where embedding and head lie apart (`LayerTable.untied`)."""
        return replace(self, layers=self.layers.untied) if self.layers.tied_params is not None else self

    def held(self, first: int, last: int) -> TrainingJob:
        """Return the job as a stage sees it that holds the layer `first` and others, all of them before `last`."""
        return self.untied if first > 0 and last == len(self.layers) else self

    def divides(self, ranks: int) -> bool:
        """Return whether so many ranks of tensor parallelism have whole heads each."""
        kv_heads = self.spec.kv_heads if self.spec is not None else ()
        return self.num_heads % ranks == 0 and shares_evenly(ranks, kv_heads)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one global batch."""
        return self.global_batch * self.sequence_length

    @property
    def transformer_engine(self) -> bool:
        """Whether the software is Transformer Engine's: what multiplies in 8 bit is, unless stated otherwise."""
        stated = self.software.transformer_engine
        return self.precision == "fp8" if stated is None else stated

    @property
    def element_bytes(self) -> float:
        """Bytes of one parameter, gradient or activation element in compute precision."""
        return PRECISION_BYTES[self.precision]

    @property
    def gradient_bytes(self) -> float:
        """Bytes of one gradient as a device keeps it between microbatches."""
        return 4.0 if self.software.wide_gradients else self.element_bytes

    @property
    def optimizer_bytes(self) -> float:
        """Bytes of optimizer state per parameter, the fp32 master copy included where compute is 16-bit."""
        state = OPTIMIZER_BYTES[self.optimizer]
        return state if self.precision != "fp32" else state - 4.0

    @property
    def state_bytes_per_param(self) -> float:
        """Bytes of weight, gradient and optimizer state per parameter."""
        return self.element_bytes + self.gradient_bytes + self.optimizer_bytes
