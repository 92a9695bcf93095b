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
    holds_outer: the stage keeps what DiLoCo's outer optimizer needs.
    """

    tensor_parallel: int
    shards: int
    microbatch_size: int
    recompute: Recompute
    zero_stage: int
    in_flight: float
    holds_outer: bool = False

    @classmethod
    def of(cls, plan: TrainingPlan, pipeline: Pipeline, position: int) -> StageShape:
        """Return the shape of the stage at a position of one of the plan's pipelines."""
        return cls(
            tensor_parallel=pipeline.stages[position].tensor_parallel,
            shards=plan.state_shards(pipeline),
            microbatch_size=plan.microbatch_size,
            recompute=plan.recompute,
            zero_stage=plan.zero_stage,
            in_flight=most_in_flight(plan, pipeline, position),
            holds_outer=plan.local_steps > 1,
        )


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
    layers, last = job.layers, first_layer + num_layers
    params = float(layers.params_before[last] - layers.params_before[first_layer])
    kept = layers.activation_before if shape.recompute is Recompute.NONE else layers.checkpoint_before
    per_microbatch = shape.microbatch_size / shape.tensor_parallel
    total = FIXED_BYTES + params * _state_per_param(job, shape)
    total += shape.in_flight * per_microbatch * float(kept[last] - kept[first_layer])
    return total + float(_transient_bytes(job, shape)[first_layer:last].max())


def _transient_bytes(job: TrainingJob, shape: StageShape) -> Floats:
    """Return per layer [L] what is there only while a stage works on it.

    Full recomputation has one layer's activations; ZeRO-3 has its weights and gradients whole, and the weights of
    the next one, which is fetched meanwhile.
    """
    layers, size = job.layers, shape.microbatch_size / shape.tensor_parallel
    again = layers.activation_bytes * size if shape.recompute is Recompute.FULL else layers.params * 0.0
    if shape.zero_stage >= 3 and shape.shards > 1:
        again = again + layers.params * (3 * job.element_bytes / shape.tensor_parallel)
    return np.asarray(again)


def _state_per_param(job: TrainingJob, shape: StageShape) -> float:
    return state_bytes(
        job, 1 / shape.tensor_parallel,
        shards=shape.shards, zero_stage=shape.zero_stage, holds_outer=shape.holds_outer,
    )  # fmt: skip


class StageRoom:
    """How many layers one stage can hold: the inverse of `stage_bytes`, asked thousands of times a search."""

    def __init__(self, job: TrainingJob, shape: StageShape, *, limit_bytes: float) -> None:
        layers, size = job.layers, shape.microbatch_size / shape.tensor_parallel
        full = shape.recompute is Recompute.FULL
        kept = layers.checkpoint_before if full else layers.activation_before
        state = _state_per_param(job, shape)
        self._before: list[float] = (layers.params_before * state + kept * (shape.in_flight * size)).tolist()
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
