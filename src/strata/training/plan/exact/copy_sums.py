"""What the copies of a pipeline exchange and update at least after its microbatches (`simulate.copies`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from strata.arrays import Floats, Ints
from strata.fleet.fleet import Domain
from strata.simulate.copies import shared_weights
from strata.training.plan.exact.config import ParallelConfig
from strata.training.plan.exact.memory_fit import zero_stages
from strata.training.plan.exact.problem import Problem
from strata.workload.job import Recompute, TrainingJob
from strata.workload.plan import Stage, TrainingPlan


def gradients_s(problem: Problem, domain: Domain, config: ParallelConfig) -> Floats:
    """Return what sums of all layers' gradients between copies take at least in a domain [4].

    What moves the bytes of a whole sum; the latency of half of one, layer by layer; that of one in one piece, of
    each stage; and half of the sum of the least layer.
    """
    copy_devices = problem.stage_devices(domain, config) * problem.stages(domain, config)
    key = domain.name, copy_devices, config.tensor_parallel, config.copies
    if key not in problem.gradient_sums:
        problem.gradient_sums[key] = _gradients_s(problem, domain, config, copy_devices)
    return problem.gradient_sums[key]


def _gradients_s(problem: Problem, domain: Domain, config: ParallelConfig, copy_devices: int) -> Floats:
    stage = Stage(domain.name, 0, len(problem.job.layers), config.tensor_parallel, 0, config.context_parallel)
    total, each = np.zeros(3), np.zeros(len(problem.job.layers))
    for part in shared_weights(
        problem.job, domain, stage, replicas=config.data_parallel, copy_devices=copy_devices,
        expert_parallel=config.expert_parallel,
    ):  # fmt: skip
        if part.members > 1:
            bandwidth, latency_s = part.wire(domain)
            waited_s, is_there = (part.members - 1) * latency_s, part.size_bytes > 0
            moved_s = 2 * (part.members - 1) / part.members * float(part.size_bytes.sum()) / bandwidth
            total += [moved_s, waited_s * is_there.sum(), 2 * waited_s * is_there.all()]
            each += part.half_rings_s(domain, None)
    return np.array([*total, each.min()])


def after_s(
    job: TrainingJob, sums_s: Floats, *, stages: Ints, shards: Ints | int, ways_s: tuple[Floats, Floats],
    update_s: Floats, is_apart: bool,
) -> Floats:  # fmt: skip
    """Return what follows the microbatches at least, all stages together [N]: updates and sums (`gradients_s`).

    Under stage 0 of ZeRO a sum hides behind the backward of a microbatch; under stage 1 half of it does, and half
    behind the forward, but for a layer of each stage. Higher stages exchange in every microbatch. `ways_s` are
    forward and backward of one. `shards` are the copies that share an update under ZeRO, and where it `is_apart`
    without.
    """
    if max(job.zero_stages) >= 2:
        return np.asarray(update_s / shards)
    moved_s, pieces_s, ring_s, least_s = sums_s
    forward_s, backward_s = ways_s
    ratio, half_s, ways = job.gradient_bytes / job.element_bytes, moved_s / 2 + pieces_s, []
    if 0 in job.zero_stages:
        exposed_s = np.maximum(0.0, ratio * (moved_s + stages * ring_s) - backward_s)
        ways.append(exposed_s + update_s / (shards if is_apart else 1))
    if 1 in job.zero_stages:
        exposed_s = np.maximum(0.0, min(1.0, ratio) * half_s - backward_s)
        ways.append(exposed_s + np.maximum(half_s - forward_s, stages * least_s) + update_s / shards)
    return np.asarray(np.min(ways, axis=0) * (1 - 1e-12))


def ends_s(
    problem: Problem, plan: TrainingPlan, times: tuple[Floats, Floats], *, most_s: float
) -> tuple[Floats, Floats]:
    """Return what follows the microbatches of a pipeline at least where its first, and its last stage has so many
    layers [L + 1]: embedding and head are more to sum than their work hides.

    `times` are those of the two, from a row to a column [L + 1, L + 1]; inf where they take more than `most_s`.
    """
    layers, stages = len(problem.job.layers), plan.pipelines[0].stages
    ends: list[Floats] = []
    for stage, own in zip((stages[0], stages[-1]), times, strict=True):
        runs = [(layers - count, layers) if ends else (0, count) for count in range(1, layers + 1)]
        known = (end_s(problem, plan, stage, run, own) if own[run] <= most_s else np.inf for run in runs)
        ends.append(np.array([np.inf, *known]))
    return ends[0], ends[1]


def end_s(problem: Problem, plan: TrainingPlan, stage: Stage, run: tuple[int, int], times: Floats) -> float:
    """Return what follows the microbatches of a stage of these layers under the best ZeRO stage."""
    model, [pipeline], (a, z) = problem.model, plan.pipelines, run
    layers, copies = model.stage_layers(plan, stage), pipeline.replicas
    if problem.is_partial and times[run] > (layers.work[z] - layers.work[a]) * (1 + 1e-12):
        # Of what is recomputed all may hide the sums.
        plan = replace(plan, recompute=Recompute.FULL)
    held = replace(stage, first_layer=a, num_layers=z - a, recompute_layers=None)
    ways = []
    for zero in zero_stages(problem, plan):
        under = replace(plan, zero_stage=zero)
        done = model.exchange(
            under, held, replicas=copies, copy_devices=pipeline.devices()[stage.domain] // copies
        )  # fmt: skip
        ways.append(done.sum_s + done.gather_s + model.update_s(under, held, pipeline))
    return min(ways)
