"""Everything that is wrong with a plan somebody else made: its shape, its memory, its batch, what the job asks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from strata.decision import Reason
from strata.simulate.analytic import StepModel
from strata.units import show_bytes
from strata.workload.job import ContextExchange, Schedule, TrainingJob
from strata.workload.plan import Pipeline, Stage, TrainingPlan


def misfits(model: StepModel, plan: TrainingPlan) -> list[Reason]:
    """Return what keeps a plan from being evaluated at all: domains, layers, links, speeds, its schedule."""
    reasons = [*_missing(model, plan), *_unfolded(plan)]
    if not reasons:
        reasons += [*_unlinked(model, plan)]
    return reasons


def shortfalls(model: StepModel, plan: TrainingPlan) -> list[Reason]:
    """Return what is wrong with a plan that can be evaluated: devices, nodes, heads, memory, batch, pins."""
    return [
        *_devices(model, plan), *_splitting(model.job, plan), *_memory(model, plan),
        *_batch(model.job, plan), *_job_limits(model.job, plan),
    ]  # fmt: skip


def _places(plan: TrainingPlan) -> Iterator[tuple[str, Pipeline, Stage]]:
    """Yield every stage with how people call it."""
    for p, pipeline in enumerate(plan.pipelines):
        for s, stage in enumerate(pipeline.stages):
            of = f"pipeline {p}, " if len(plan.pipelines) > 1 else ""
            yield f"{of}stage {s} in {stage.domain}", pipeline, stage


def _missing(model: StepModel, plan: TrainingPlan) -> Iterator[Reason]:
    names, count = {domain.name for domain in model.fleet.domains}, len(model.job.layers)
    for name in plan.domains:
        if name not in names:
            yield Reason("no-such-domain", "", {"domain": name, "known": ", ".join(sorted(names))})
    for p, pipeline in enumerate(plan.pipelines):
        ends = [0, *(stage.first_layer + stage.num_layers for stage in pipeline.stages)]
        if any(s.first_layer != end for s, end in zip(pipeline.stages, ends, strict=False)) or ends[-1] != count:
            held = ", ".join(f"{s.first_layer}-{s.first_layer + s.num_layers - 1}" for s in pipeline.stages)
            yield Reason("layers-not-covered", f"pipeline {p}", {"held": held, "last": count - 1})
        depth = [min(stage.warmup, pipeline.microbatches - 1) for stage in pipeline.stages]
        if any(a <= b < pipeline.microbatches - 1 for a, b in pairwise(depth)):
            yield Reason("warmup-rises", f"pipeline {p}", {"warmup": depth})
    for place, _, stage in _places(plan):
        if stage.domain in names:
            domain = model.fleet.domain(stage.domain)
            if model.layers(domain, stage.tensor_parallel, plan.microbatch_size, plan.recompute) is None:
                figure = (
                    f"layer times for microbatch {plan.microbatch_size}, tensor parallel {stage.tensor_parallel}"
                )
                yield Reason("figure-missing", place, {"figure": figure, "accelerator": domain.accelerator.name})


def _unfolded(plan: TrainingPlan) -> Iterator[Reason]:
    """Yield what DualPipeV needs and a plan does not have."""
    if plan.schedule is not Schedule.DUAL_PIPE_V:
        return
    needs = {f"two chunks a stage, and the plan has {plan.virtual_stages}": plan.virtual_stages == 2}
    for pipeline in plan.pipelines:
        stages, count = pipeline.stages, pipeline.microbatches
        needs |= {
            f"stages in one domain, and the plan's lie in {', '.join(pipeline.domains)}": len(pipeline.domains)
            < 2,
            "two stages or more": len(stages) > 1,
            f"two microbatches a stage, and {len(stages)} stages have {count}": count >= 2 * len(stages),
            "two layers on each stage": all(stage.num_layers > 1 for stage in stages),
        }
    yield from (Reason("dualpipev-needs", "", {"what": what}) for what, is_there in needs.items() if not is_there)


def _unlinked(model: StepModel, plan: TrainingPlan) -> Iterator[Reason]:
    pairs = [pair for p in plan.pipelines for a, b in pairwise(p.domains) for pair in ((a, b), (b, a))]
    missing = [pair for pair in dict.fromkeys(pairs) if pair not in model.fleet.links]
    for source, dest in missing:
        yield Reason("link-missing", "", {"source": source, "dest": dest})
    if not missing and not np.isfinite(model.reports([plan])[0].step_time_s):
        yield Reason("no-sum-between", "", {"count": len(plan.pipelines)})


def _devices(model: StepModel, plan: TrainingPlan) -> Iterator[Reason]:
    for name, used in plan.devices().items():
        domain = model.fleet.domain(name)
        if used > domain.num_devices:
            yield Reason("devices-short", name, {"used": used, "have": domain.num_devices})
    widths = {(stage.domain, stage.tensor_parallel) for _, _, stage in _places(plan)}
    for name, ranks in sorted(widths):
        node = model.fleet.domain(name).devices_per_node
        if ranks > node:
            yield Reason("tensor-across-nodes", name, {"ranks": ranks, "devices": node})
    for ranks in sorted({ranks for _, ranks in widths}):
        yield from _heads(model.job, ranks)


def _heads(job: TrainingJob, ranks: int) -> Iterator[Reason]:
    """Yield the heads, and the groups of heads, that so many ranks do not divide."""
    counts = {"attention heads": job.num_heads} if job.spec is None else job.spec.divided
    for what, count in counts.items():
        if count % ranks and what == "attention heads":
            yield Reason("heads-not-divided", "", {"ranks": ranks, "heads": count})
        elif count % ranks:
            nearest = max(few for few in range(1, ranks) if job.divides(few))
            data = {"ranks": ranks, "count": count, "what": what if count > 1 else what.removesuffix("s")}
            yield Reason("linear-heads-not-divided", "", data | {"nearest": nearest})
    if not job.num_heads % ranks and not job.divides(ranks) and job.spec is not None:
        data = {"ranks": ranks, "heads": " or ".join(map(str, job.spec.kv_heads))}
        nearest = max(few for few in range(1, ranks) if job.divides(few))
        yield Reason("kv-heads-not-divided", "", data | {"nearest": nearest})


def _splitting(job: TrainingJob, plan: TrainingPlan) -> Iterator[Reason]:
    """Yield what cannot be shared evenly: sequences, heads, experts, and the copies that hold them."""
    for ranks in sorted({stage.context_parallel for _, _, stage in _places(plan)}):
        if job.sequence_length % ranks:
            data = {"ranks": ranks, "count": job.sequence_length, "what": "tokens of a sequence"}
            yield Reason("context-not-divided", "", data)
    if plan.context_exchange is ContextExchange.ALL_TO_ALL:
        for _, _, stage in _places(plan):
            heads = job.num_heads // stage.tensor_parallel
            if heads % stage.context_parallel:
                data = {"ranks": stage.context_parallel, "count": heads, "what": "heads of a tensor rank"}
                yield Reason("context-not-divided", "", data)
                break
    if plan.expert_parallel == 1:
        return
    counts = {"experts": job.spec.experts.num_experts if job.spec and job.spec.experts else 0}
    counts["copies"] = min(p.replicas * s.context_parallel for p in plan.pipelines for s in p.stages)
    for what, count in counts.items():
        if count < plan.expert_parallel or count % plan.expert_parallel:
            yield Reason("experts-not-divided", "", {"ranks": plan.expert_parallel, "count": count, "what": what})


def _memory(model: StepModel, plan: TrainingPlan) -> Iterator[Reason]:
    for place, pipeline, stage in _places(plan):
        need = model.stage_memory_bytes(plan, pipeline, stage)
        have = model.memory_limit_bytes(model.fleet.domain(stage.domain))
        if need > have:
            figures = {"need": show_bytes(need), "have": show_bytes(have), "need_bytes": need, "have_bytes": have}
            yield Reason("memory-exceeded", place, figures)


def _batch(job: TrainingJob, plan: TrainingPlan) -> Iterator[Reason]:
    """Yield that a plan does not work through the job's batch, or a pipeline through more than it has room for."""
    room = [pipeline.replicas * pipeline.microbatches * plan.microbatch_size for pipeline in plan.pipelines]
    samples = sum(min(plan.samples(p), most) for p, most in zip(plan.pipelines, room, strict=True))
    if samples != job.global_batch:
        yield Reason("batch-differs", "", {"samples": samples, "batch": job.global_batch})


def _job_limits(job: TrainingJob, plan: TrainingPlan) -> Iterator[Reason]:
    if job.limits.domains is not None:
        for name in plan.domains:
            if name not in job.limits.domains:
                yield Reason("domain-not-allowed", name, {"domain": name})
    if not plan.keeps(job.pins):
        yield Reason("pins-not-kept", "", {"pins": str(job.pins)})


def outside(job: TrainingJob, plan: TrainingPlan) -> list[Reason]:
    """Return the choices of a plan that the job does not ask to be tried: with them it may beat the best plan."""
    choices = {
        f"zero {plan.zero_stage}": plan.zero_stage in job.zero_stages,
        f"recompute {plan.recompute}": plan.recompute in job.recompute,
        f"schedule {plan.schedule}": plan.schedule in job.schedules,
        f"gradient compression {plan.gradient_compression:g}": plan.gradient_compression
        in job.gradient_compression,
        f"local steps {plan.local_steps}": plan.local_steps in (1, *job.local_steps),
    }
    return [Reason("not-asked", "", {"choice": name}) for name, is_tried in choices.items() if not is_tried]
