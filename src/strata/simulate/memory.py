"""Memory of one worker: weights, gradients, optimizer state, activations in flight, and a fixed part.

Sources: parameter state and ZeRO stages from arXiv 1910.02054 §3 and §5; activations in flight as the order of
work holds them (`order.most_in_flight`); full recomputation keeps each layer's input and one layer's activations
at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.simulate.order import most_in_flight
from strata.workload.job import Recompute, TrainingJob
from strata.workload.layers import LayerTable
from strata.workload.plan import Pipeline, TrainingPlan

FIXED_BYTES: Final = 2e9
"""Context, communication buffers and fragmentation per device: the 2 GB that Sailor measured for TP = 1
(arXiv 2504.17096 and its simulator); assumed for other software stacks."""

OUTER_BYTES: Final = 8.0
"""DiLoCo's outer state per parameter: the parameters of the last sum and the outer momentum, both in fp32 (arXiv
2311.08105, algorithm 1, with Nesterov momentum)."""


@dataclass(frozen=True, slots=True)
class StageShape:
    """What the memory of a stage depends on beside its layers.

    shards: copies between which ZeRO shards what it shards. in_flight: microbatches whose activations the stage
    holds at its peak; a chunk of v is one v-th of one.
    holds_outer: the stage keeps what DiLoCo's outer optimizer needs. The rest is as in `TrainingPlan`.
    """

    tensor_parallel: int
    shards: int
    microbatch_size: int
    recompute: Recompute
    zero_stage: int
    in_flight: float
    holds_outer: bool = False
    context_parallel: int = 1
    expert_parallel: int = 1
    recompute_layers: int | None = None
    activation_offload: float = 0.0

    @classmethod
    def of(cls, plan: TrainingPlan, pipeline: Pipeline, position: int) -> StageShape:
        """Return the shape of the stage at a position of one of the plan's pipelines."""
        stage = pipeline.stages[position]
        return cls(
            tensor_parallel=stage.tensor_parallel,
            shards=plan.state_shards(pipeline),
            microbatch_size=plan.microbatch_size,
            recompute=plan.recompute,
            zero_stage=plan.zero_stage,
            in_flight=most_in_flight(plan, pipeline, position),
            holds_outer=plan.local_steps > 1,
            context_parallel=stage.context_parallel,
            expert_parallel=plan.expert_parallel,
            recompute_layers=plan.recompute_layers,
            activation_offload=plan.activation_offload,
        )

    @property
    def samples(self) -> float:
        """Samples of a microbatch whose activations one device holds."""
        return self.microbatch_size / (self.tensor_parallel * self.context_parallel)


def kept_bytes(
    layers: LayerTable, recompute: Recompute, recompute_layers: int | None = None, first_layer: int = 0
) -> Floats:
    """Return per layer [L] what a sample leaves for the backward; a stage that begins at `first_layer` may
    recompute its first layers alone."""
    if recompute is Recompute.NONE:
        return layers.activation_bytes
    if recompute is Recompute.SELECTIVE:
        return layers.activation_bytes - layers.exchanges.recomputed_bytes
    if recompute_layers is None:
        return layers.checkpoint_bytes
    plain = np.arange(len(layers)) >= first_layer + recompute_layers
    return np.where(plain, layers.activation_bytes, layers.checkpoint_bytes)


def state_bytes(
    job: TrainingJob, params: float, *, shards: int, zero_stage: int, holds_outer: bool = False
) -> float:
    """Return bytes of weights, gradients and optimizer state for `params` parameters on one device.

    ZeRO shards DiLoCo's outer state as it does the optimizer's: both are read in updates alone.
    """
    element, optimizer = job.element_bytes, job.optimizer_bytes + (OUTER_BYTES if holds_outer else 0.0)
    weights = element / (shards if zero_stage >= 3 else 1)
    gradients = element / (shards if zero_stage >= 2 else 1)
    return params * (weights + gradients + optimizer / (shards if zero_stage >= 1 else 1))


def stage_bytes(job: TrainingJob, first_layer: int, num_layers: int, *, shape: StageShape) -> float:
    """Return the bytes one device of a stage needs.

    Activations are sharded by tensor parallelism (sequence parallelism, arXiv 2205.05198 §4.2.2).
    """
    part = slice(first_layer, first_layer + num_layers)
    kept = kept_bytes(job.layers, shape.recompute, shape.recompute_layers, first_layer)[part]
    stays = shape.in_flight * shape.samples * (1 - shape.activation_offload)
    total = FIXED_BYTES + float(_state_bytes(job, shape)[part].sum()) + stays * float(kept.sum())
    return total + float(_transient_bytes(job, shape)[part].max())


def _transient_bytes(job: TrainingJob, shape: StageShape) -> Floats:
    """Return per layer [L] what is there only while a stage works on it.

    Recomputation has one layer's activations; ZeRO-3 has its weights and gradients whole, and the weights of the
    next one, which is fetched meanwhile; of activations that wait elsewhere one layer's leave and one's come.
    """
    layers, size = job.layers, shape.samples
    again = layers.params * 0.0
    if shape.recompute is not Recompute.NONE:
        again = (layers.activation_bytes - kept_bytes(layers, Recompute.SELECTIVE)) * size
    if shape.recompute is Recompute.FULL:
        again = layers.activation_bytes * size
    if shape.activation_offload:
        again = again + 2 * shape.activation_offload * size * layers.activation_bytes
    if shape.zero_stage >= 3 and shape.shards > 1:
        again = again + _here(layers, shape) * (3 * job.element_bytes / shape.tensor_parallel)
    return np.asarray(again)


def _here(layers: LayerTable, shape: StageShape) -> Floats:
    """Return per layer [L] the parameters whose experts are not all elsewhere, tensor parallelism left out."""
    if shape.expert_parallel == 1:
        return layers.params
    return layers.params - layers.exchanges.expert_params * (1 - 1 / shape.expert_parallel)


def _state_bytes(job: TrainingJob, shape: StageShape) -> Floats:
    """Return per layer [L] the bytes of weights, gradients and optimizer state on one device."""
    layers, experts = job.layers, shape.expert_parallel

    def each(shards: int) -> float:
        return state_bytes(
            job, 1 / shape.tensor_parallel,
            shards=shards, zero_stage=shape.zero_stage, holds_outer=shape.holds_outer,
        )  # fmt: skip

    if experts == 1:
        return layers.params * each(shape.shards)
    routed = layers.exchanges.expert_params
    # So many fewer copies of an expert share its state.
    apart = each(max(1, shape.shards // experts)) / experts
    return (layers.params - routed) * each(shape.shards) + routed * apart


class StageRoom:
    """How many layers one stage can hold: the inverse of `stage_bytes`, asked thousands of times a search."""

    def __init__(self, job: TrainingJob, shape: StageShape, *, limit_bytes: float) -> None:
        assert shape.recompute_layers is None, "which layers are recomputed depends on where a stage begins"
        kept = kept_bytes(job.layers, shape.recompute) * (1 - shape.activation_offload)
        held = _state_bytes(job, shape) + kept * (shape.in_flight * shape.samples)
        self._before: list[float] = [0.0, *np.cumsum(held).tolist()]
        self._again: list[float] = _transient_bytes(job, shape).tolist()
        self._room = limit_bytes - FIXED_BYTES

    def layers(self, first: int) -> int:
        """Return the most layers from `first` on that fit."""
        if first >= len(self._again):
            return 0
        before, again = self._before, self._again
        last = bisect_right(before, before[first] + self._room - again[first]) - 1
        while last > first and before[last] - before[first] + max(again[first:last]) > self._room:
            last -= 1
        return max(0, last - first)
