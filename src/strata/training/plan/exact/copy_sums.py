"""What the copies of a pipeline exchange and update at least after its microbatches (`simulate.copies`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from strata.arrays import Floats, Ints
from strata.fleet.fleet import Domain
from strata.simulate.copies import shared_weights
from strata.simulate.run_ends import exposed_s
from strata.simulate.stage_model import StageModel
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


def ends_s(problem: Problem, plan: TrainingPlan, stage: Stage, times: Floats) -> Floats:
    """Return what follows the microbatches of a stage that holds the layers from a row to a column, under the best
    ZeRO stage [L + 1, L + 1].

    `times` are those of the runs; where they are longer than their layers take, all of what is recomputed may hide
    the sums.
    """
    layers = problem.model.stage_layers(plan, stage)
    plain_s = _ends_s(problem, plan, stage)
    if not problem.is_partial:
        return plain_s
    is_longer = times > (layers.work[None, :] - layers.work[:, None]) * (1 + 1e-12)
    longest_s = _ends_s(problem, replace(plan, recompute=Recompute.FULL), stage)
    return np.where(is_longer, longest_s, plain_s)


def _ends_s(problem: Problem, plan: TrainingPlan, stage: Stage) -> Floats:
    [pipeline] = plan.pipelines
    copy_devices = pipeline.devices()[stage.domain] // pipeline.replicas
    zeros = zero_stages(problem, plan)
    key = (
        stage.domain, stage.tensor_parallel, stage.context_parallel, pipeline.replicas, copy_devices, zeros,
        plan.microbatch_size, plan.recompute, plan.context_exchange, plan.expert_parallel,
    )  # fmt: skip
    if key not in problem.run_ends:
        each = (_under(problem, replace(plan, zero_stage=zero), stage, copy_devices) for zero in zeros)
        problem.run_ends[key] = np.min(list(each), axis=0)
    return problem.run_ends[key]


def _under(problem: Problem, plan: TrainingPlan, stage: Stage, copy_devices: int) -> Floats:
    """Return what follows under the plan's ZeRO stage: sums, gathering and updates of each run of layers."""
    whole = _of_layers(problem.fleet.domain(stage.domain), problem.model, plan, stage, copy_devices)
    if (apart := problem.model.untied) is problem.model:
        return whole
    each = _of_layers(problem.fleet.domain(stage.domain), apart, plan, stage, copy_devices)
    each[0] = whole[0]
    return each


def _of_layers(
    domain: Domain, model: StageModel, plan: TrainingPlan, stage: Stage, copy_devices: int
) -> Floats:  # fmt: skip
    job, layers, [pipeline] = model.job, model.stage_layers(plan, stage), plan.pipelines
    whole = replace(stage, first_layer=0, num_layers=len(job.layers), recompute_layers=None)
    weights = shared_weights(
        job, domain, whole, replicas=pipeline.replicas, copy_devices=copy_devices,
        expert_parallel=plan.expert_parallel,
    )  # fmt: skip
    after_s = exposed_s(
        domain, np.diff(layers.forward), np.diff(layers.backward), weights, zero_stage=plan.zero_stage,
        prefetched=job.software.prefetched_shards, hidden=job.software.hides_gradients,
        gradient_ratio=job.gradient_bytes / job.element_bytes,
    )  # fmt: skip
    update_s = layers.update[None, :] - layers.update[:, None]
    if plan.expert_parallel > 1 and not plan.zero_stage:
        # Experts that lie elsewhere are not updated here (`analytic`).
        held, away = (np.concatenate([[0.0], np.cumsum(each)]) for each in (
            job.layers.params, job.layers.exchanges.expert_params * (1 - 1 / plan.expert_parallel)
        ))  # fmt: skip
        held, away = (each[None, :] - each[:, None] for each in (held, away))
        update_s = update_s * np.maximum(held - away, 1.0) / np.maximum(held, 1.0)
    return np.asarray(np.maximum(0.0, np.triu(after_s + update_s / plan.state_shards(pipeline))))
