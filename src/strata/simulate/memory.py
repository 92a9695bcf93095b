"""Memory of one worker: weights, gradients, optimizer state, activations in flight, and a fixed part.

Sources: parameter state and ZeRO stages from arXiv 1910.02054 §3 and §5; activations in flight of a 1F1B
stage from arXiv 2104.04473 §2.2 (`warmup + 1` microbatches); full recomputation keeps each layer's input and
one layer's activations at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from strata.workload.job import Recompute, TrainingJob

FIXED_BYTES: Final = 2e9
"""Context, communication buffers and fragmentation per device: the 2 GB that Sailor measured for TP = 1
(arXiv 2504.17096 and its simulator); assumed for other software stacks."""


def state_bytes(job: TrainingJob, params: float, *, replicas: int, zero_stage: int) -> float:
    """Return bytes of weights, gradients and optimizer state for `params` parameters on one device."""
    element, optimizer = job.element_bytes, job.optimizer_bytes
    weights = element / (replicas if zero_stage >= 3 else 1)
    gradients = element / (replicas if zero_stage >= 2 else 1)
    return params * (weights + gradients + optimizer / (replicas if zero_stage >= 1 else 1))


def stage_bytes(
    job: TrainingJob,
    first_layer: int,
    num_layers: int,
    *,
    tensor_parallel: int,
    replicas: int,
    microbatch_size: int,
    recompute: Recompute,
    zero_stage: int,
    in_flight: int,
) -> float:
    """Return the bytes one device of a stage needs.

    `in_flight` is the number of microbatches whose activations the stage holds at its peak. Activations are
    sharded by tensor parallelism (sequence parallelism, arXiv 2205.05198 §4.2.2).
    """
    layers, last = job.layers, first_layer + num_layers
    params = float(layers.params_before[last] - layers.params_before[first_layer]) / tensor_parallel
    total = FIXED_BYTES + state_bytes(job, params, replicas=replicas, zero_stage=zero_stage)
    kept = layers.activation_before if recompute is Recompute.NONE else layers.checkpoint_before
    per_microbatch = microbatch_size / tensor_parallel
    total += in_flight * per_microbatch * float(kept[last] - kept[first_layer])
    if recompute is Recompute.FULL:
        total += per_microbatch * float(layers.activation_bytes[first_layer:last].max())
    return total


class StageRoom:
    """How many layers one stage can hold: the inverse of `stage_bytes`, asked thousands of times a search."""

    def __init__(
        self,
        job: TrainingJob,
        *,
        tensor_parallel: int,
        replicas: int,
        microbatch_size: int,
        recompute: Recompute,
        zero_stage: int,
        in_flight: int,
        limit_bytes: float,
    ) -> None:
        layers, size = job.layers, microbatch_size / tensor_parallel
        full = recompute is Recompute.FULL
        kept = layers.checkpoint_before if full else layers.activation_before
        state = state_bytes(job, 1 / tensor_parallel, replicas=replicas, zero_stage=zero_stage)
        self._before: list[float] = (layers.params_before * state + kept * (in_flight * size)).tolist()
        self._again: list[float] = (layers.activation_bytes * size if full else layers.params * 0.0).tolist()
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
