"""How long each layer computes on one stage's devices.

A measured profile goes before all else, then the efficiency that a job states: time = FLOPs / (devices × peak ×
efficiency); else the kernels of `kernels.py`, one by one. Both of the latter go by a job's own `calibration` of
the accelerator; to both come the tensor-parallel all-reduces of Megatron-LM (arXiv 1909.08053 §3: two per layer
forward, two backward), inside the node (`tensor_parallel_s`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.decision import Trust, worst
from strata.fleet.fleet import Domain
from strata.simulate.collective import tensor_parallel_s
from strata.simulate.copies import CONTENTION
from strata.simulate.kernel_rates import kernel_rates
from strata.simulate.kernels import KernelShape, Scores, again_seconds, kernel_seconds
from strata.workload.job import Recompute, TrainingJob
from strata.workload.layer_kinds import LONE_KINDS

REDUCTIONS: Final = {"embedding": 1.0, "head": 1.0, **dict.fromkeys(LONE_KINDS, 1.0), "double-moe": 4.0}
REDUCTIONS_OF_A_BLOCK: Final = 2.0
"""Tensor-parallel all-reduces per direction: every other kind of layer has one for attention, one for its MLP."""


BESIDE_SUMS: Final = 0.25
"""Of a backward, the weight gradients of products that a sum follows: of a block 7 in 12 of its weights (those
before attention, and the MLP's first), a half of each one's backward, less what attention takes."""

FLAT_EFFICIENCY: Final = 0.45
"""Share of peak where neither the job states one nor the layers say what they compute: assumed."""


@dataclass(frozen=True)
class LayerSums:
    """Prefix sums over layers, shape [L + 1], of one microbatch on one stage's devices [s].

    `forward` and `backward` include tensor-parallel communication, `backward` also recomputation;
    `useful` is what the same work takes without either: what utilisation counts.
    """

    forward: Floats
    backward: Floats
    useful: Floats
    update: Floats
    trust: Trust

    @cached_property
    def work(self) -> Floats:
        """Forward and backward together."""
        return self.forward + self.backward


def peak_flops(domain: Domain, job: TrainingJob) -> float | None:
    """Return the dense peak of one device in the job's precision, or None where it is not known [FLOP/s]."""
    return domain.accelerator.peak_flops(job.precision)


def layer_times(
    job: TrainingJob,
    domain: Domain,
    *,
    tensor_parallel: int,
    microbatch_size: float,
    recompute: Recompute,
    expert_parallel: int = 1,
) -> LayerSums | None:
    """Return per-layer times of a stage in `domain`; None where neither profile nor peak is known.

    A sequence in c pieces is a c-th of a microbatch on each device, that attends to all of it.
    """
    measured = None
    if job.profile is not None:
        measured = job.profile.lookup(domain.accelerator.name, microbatch_size, tensor_parallel)
    if measured is not None:
        # A profile already holds the tensor-parallel communication of the machine it was read on.
        forward, backward = measured.forward_s, measured.backward_s
        useful, update, trust = forward + backward, measured.update_s, Trust.MEASURED
        if (tied := job.layers.tied_params) is not None:
            # A head is measured by itself; beside the embedding it updates no table of its own.
            update = update * (1 - tied / np.maximum(job.layers.params + tied, 1.0))
    else:
        computed = _computed(job, domain, tensor_parallel, microbatch_size, recompute, expert_parallel)
        if computed is None:
            return None
        forward, backward, again, sums_factor, trust = computed
        own = job.calibration.get(domain.accelerator.name)
        if own is not None:
            forward, backward, again, trust = forward / own, backward / own, again / own, Trust.CALIBRATED
        useful, update = forward + backward, _update_s(job, domain, tensor_parallel)
        reduction = sums_factor * _reductions_s(job, domain, tensor_parallel, microbatch_size)
        shown = reduction
        if job.software.hides_backward_sums:
            hidden = np.minimum(reduction, BESIDE_SUMS * backward)
            shown = reduction - (1 - CONTENTION) * hidden
        forward, backward = forward + reduction, backward + again + shown
    if recompute is Recompute.FULL:
        backward = backward + forward * _is_block(job)
    return LayerSums(prefix_sums(forward), prefix_sums(backward), prefix_sums(useful), prefix_sums(update), trust)


def _computed(
    job: TrainingJob, domain: Domain, ranks: int, microbatch_size: float, recompute: Recompute, experts: int
) -> tuple[Floats, Floats, Floats, float, Trust] | None:
    """Return forward and backward of each layer without communication, what `selective_op` computes again, how
    much longer than its ring a sum takes, and how far to trust them; None where the card's speed is not known."""
    card, layers = domain.accelerator, job.layers
    peak = peak_flops(domain, job)
    if peak is None:
        return None
    rates = kernel_rates(card, job.precision, job.software)
    if job.flops_efficiency is not None or not layers.kernels or rates is None:
        efficiency = job.flops_efficiency or FLAT_EFFICIENCY
        forward = layers.forward_flops * (microbatch_size / (ranks * peak * efficiency))
        again = forward * (_is_block(job) / 2 if recompute is Recompute.SELECTIVE_OP else 0.0)
        return forward, 2 * forward, again, 1.0, worst(card.trust, Trust.ASSUMED)
    scores: Scores = "fused"
    if not job.software.fused_attention:
        scores = "kept" if recompute is Recompute.FULL else "recomputed"
    shape = KernelShape(
        microbatch_size * job.sequence_length, job.sequence_length, ranks, experts, scores, job.software
    )
    unlike, each = layers.unlike_kernels
    forward, backward = np.array([kernel_seconds(kernels, shape, rates) for kernels in unlike])[each].T
    again = np.zeros(len(layers))
    if recompute is Recompute.SELECTIVE_OP:
        again = np.array([again_seconds(kernels, shape, rates) for kernels in unlike])[each]
    return forward, backward, again, rates.sums_factor, worst(card.trust, rates.trust)


def _is_block(job: TrainingJob) -> Floats:
    """Return 1 for blocks and 0 for embedding and head, which are never recomputed (Megatron-LM, arXiv
    1909.08053)."""
    return np.array([0.0 if kind in ("embedding", "head") else 1.0 for kind in job.layers.kinds])


def _reductions_s(job: TrainingJob, domain: Domain, ranks: int, microbatch_size: float) -> Floats:
    count = np.array([REDUCTIONS.get(kind, REDUCTIONS_OF_A_BLOCK) for kind in job.layers.kinds])
    once = tensor_parallel_s(
        job.layers.hidden_bytes.min() * microbatch_size,
        ranks=ranks,
        bandwidth_bytes_per_s=domain.intra_bandwidth_bytes_per_s,
        latency_s=domain.intra_latency_s,
    )
    return np.asarray(count * once)


def _update_s(job: TrainingJob, domain: Domain, tensor_parallel: int) -> Floats:
    """Return the optimizer's time per layer: it streams weights, gradients and state once, read and write."""
    bandwidth = domain.accelerator.memory_bandwidth_bytes_per_s
    if bandwidth is None:
        return np.zeros(len(job.layers))
    return np.asarray(job.layers.params * (2 * job.state_bytes_per_param / tensor_parallel / bandwidth))


def prefix_sums(values: Floats) -> Floats:
    """Return the sums [n + 1] of the first 0, 1, … n values."""
    return np.concatenate([[0.0], np.cumsum(values)])
