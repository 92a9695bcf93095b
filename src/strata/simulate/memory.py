"""Memory of one worker: weights, gradients, optimizer state, activations in flight, and a fixed part.

Sources: parameter state and ZeRO stages from arXiv 1910.02054 §3 and §5; activations in flight as the order of
work holds them (`order.most_in_flight`); full recomputation keeps each layer's input and one layer's activations
at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats
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
        return cls._at(plan, pipeline, position, plan.state_shards(pipeline))

    @classmethod
    def each_of(cls, plan: TrainingPlan, pipeline: Pipeline) -> Iterator[StageShape]:
        """Yield the shapes of all stages of one of the plan's pipelines."""
        shards = plan.state_shards(pipeline)
        return (cls._at(plan, pipeline, position, shards) for position in range(len(pipeline.stages)))

    @classmethod
    def _at(cls, plan: TrainingPlan, pipeline: Pipeline, position: int, shards: int) -> StageShape:
        stage = pipeline.stages[position]
        return cls(
            stage.tensor_parallel, shards, plan.microbatch_size, plan.recompute, plan.zero_stage,
            most_in_flight(plan, pipeline, position), plan.local_steps > 1, stage.context_parallel,
            plan.expert_parallel, stage.recompute_layers, plan.activation_offload,
        )  # fmt: skip

    @property
    def whatever_in_flight(self) -> tuple[object, ...]:
        """All but `in_flight`."""
        return (
            self.tensor_parallel, self.shards, self.microbatch_size, self.recompute, self.zero_stage,
            self.holds_outer, self.context_parallel, self.expert_parallel, self.recompute_layers,
            self.activation_offload,
        )  # fmt: skip

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
    if recompute is Recompute.SELECTIVE_OP:
        # A block's input, attention's output, and what the 1st, 3rd, ... product writes: queries, values, the
        # first half of the MLP, its output (torchtitan counts products as they run: q, k, v, o, w1, w3, w2).
        exchanges = layers.exchanges
        halved = 2 * exchanges.query_bytes + exchanges.kv_bytes / 2 + exchanges.recomputed_bytes
        halved = np.minimum(halved, layers.activation_bytes)
        return np.where(exchanges.recomputed_bytes > 0, halved, layers.activation_bytes)
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
    gradients = job.gradient_bytes / (shards if zero_stage >= 2 else 1)
    return params * (weights + gradients + optimizer / (shards if zero_stage >= 1 else 1))


def stage_bytes(job: TrainingJob, first_layer: int, num_layers: int, *, shape: StageShape) -> float:
    """Return the bytes one device of a stage needs.

    Activations are sharded by tensor parallelism (sequence parallelism, arXiv 2205.05198 §4.2.2).
    """
    return held_bytes(job, (range(first_layer, first_layer + num_layers),), shape=shape)


LayerBytes = Callable[[TrainingJob, StageShape], tuple[Floats, Floats]]
"""`layer_state_bytes` and `transient_bytes`, which do not depend on what is in flight."""


def held_bytes(
    job: TrainingJob, chunks: Sequence[range], *, shape: StageShape, each: LayerBytes | None = None
) -> float:
    """Return the same of a stage whose layers lie in several places; `each`: what knows its layers' bytes."""
    if len(chunks) == 1:
        part: slice | list[int] = slice(chunks[0].start, chunks[0].stop)
    else:
        part = list(chain.from_iterable(chunks))
    job = job.held(min(chunk.start for chunk in chunks if chunk), max(chunk.stop for chunk in chunks))
    kept = kept_bytes(job.layers, shape.recompute, shape.recompute_layers, chunks[0].start)[part]
    stays = shape.in_flight * shape.samples * (1 - shape.activation_offload)
    states, transients = each(job, shape) if each else (layer_state_bytes(job, shape), transient_bytes(job, shape))
    return FIXED_BYTES + float(states[part].sum()) + stays * float(kept.sum()) + float(transients[part].max())


def gathered_inputs(job: TrainingJob) -> int:
    """Return how many whole sequences of hidden states are there at once where tensor parallelism gathers them."""
    return 2 if job.transformer_engine else 4


def transient_bytes(job: TrainingJob, shape: StageShape) -> Floats:
    """Return per layer [L] what is there only while a stage works on it.

    Recomputation has one layer's activations; ZeRO-3 has its weights and gradients whole, and the weights of the
    next one, which is fetched meanwhile; of activations that wait elsewhere one layer's leave and one's come. The
    head has its logits in 16 bit and their gradient in both widths beside what it keeps (fp32, as PyTorch's
    cross entropy has them): two bytes for each it keeps, its inputs left out; one where the gradient takes the
    place of what was kept (Megatron-Core), none where the loss is one kernel. Tensor parallelism gathers whole
    sequences for the products of a block: PyTorch keeps the inputs of both for the backward and has a gradient of
    each, Megatron-Core gathers them again and has one of either.
    """
    layers, size = job.layers, shape.samples
    logits = np.maximum(0.0, layers.activation_bytes - 2 * layers.hidden_bytes)
    twice = 0 if job.software.fused_loss else 1 if job.transformer_engine else 2
    loss = np.where(layers.is_head, twice * logits * size, 0.0)
    whole = layers.hidden_bytes * size * (shape.tensor_parallel - 1) * gathered_inputs(job)
    again = layers.params * 0.0
    if shape.recompute is not Recompute.NONE:
        again = (layers.activation_bytes - kept_bytes(layers, shape.recompute)) * size
    if shape.recompute is Recompute.FULL:
        again = layers.activation_bytes * (size if shape.recompute_layers != 0 else 0.0)
    if shape.activation_offload:
        again = again + 2 * shape.activation_offload * size * layers.activation_bytes
    if shape.zero_stage >= 3 and shape.shards > 1:
        again = again + _here(layers, shape) * (3 * job.element_bytes / shape.tensor_parallel)
    return np.asarray(again + loss + whole)


def _here(layers: LayerTable, shape: StageShape) -> Floats:
    """Return per layer [L] the parameters whose experts are not all elsewhere, tensor parallelism left out."""
    if shape.expert_parallel == 1:
        return layers.params
    return layers.params - layers.exchanges.expert_params * (1 - 1 / shape.expert_parallel)


def layer_state_bytes(job: TrainingJob, shape: StageShape) -> Floats:
    """Return per layer [L] the bytes of weights, gradients and optimizer state on one device."""
    layers, experts = job.layers, shape.expert_parallel

    def each(shards: int) -> float:
        return state_bytes(
            job, 1 / shape.tensor_parallel,
            shards=shards, zero_stage=shape.zero_stage, holds_outer=shape.holds_outer,
        )  # fmt: skip

    routed = layers.exchanges.expert_params if experts > 1 else layers.params * 0.0
    # So many fewer copies of an expert share its state.
    apart = each(max(1, shape.shards // experts)) / experts
    held = (layers.params - routed) * each(shape.shards) + routed * apart
    if shape.zero_stage >= 3:
        # The root of FSDP, embedding and head, stays whole from forward to backward (arXiv 2304.11277 §4).
        is_root = np.array([kind == "embedding" for kind in layers.kinds])
        whole = job.element_bytes / shape.tensor_parallel * (1 - 1 / shape.shards)
        held = held + np.where(is_root, layers.params * whole, 0.0)
    return np.asarray(held)


class LayerRuns:
    """Whether a stage could hold the layers from a row to a column [L + 1, L + 1], whatever it has in flight.

    `stage_bytes` of all runs of layers at once: stages of a search differ in little but what is in flight.
    """

    def __init__(self, job: TrainingJob, shape: StageShape) -> None:
        assert shape.recompute_layers is None, "which layers are recomputed depends on where a stage begins"
        kept = kept_bytes(job.layers, shape.recompute) * (1 - shape.activation_offload) * shape.samples
        self.most = _most_bytes(job.untied, shape)
        self.most[0] = _most_bytes(job, shape)[0]
        self.kept = _runs(kept)

    def fit(self, in_flight: float, limit_bytes: float) -> Bools:
        """Return which runs fit with so many microbatches in flight."""
        return np.asarray(self.most + in_flight * self.kept <= limit_bytes - FIXED_BYTES)


def _most_bytes(job: TrainingJob, shape: StageShape) -> Floats:
    """Return what runs of layers hold beside what microbatches in flight leave there [L + 1, L + 1]."""
    count = len(job.layers)
    again = np.triu(np.broadcast_to(transient_bytes(job, shape), (count, count)))
    most = _runs(layer_state_bytes(job, shape))
    most[:-1, 1:] += np.maximum.accumulate(again, axis=1)
    return most


def _runs(values: Floats) -> Floats:
    before = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(before[None, :] - before[:, None])
