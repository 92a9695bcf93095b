"""One pipeline made concrete: stages in their domains, layers split exactly, warm-ups that fit memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from strata.arrays import Floats
from strata.decision import Reason
from strata.fleet.fleet import Domain
from strata.simulate.analytic import stack
from strata.simulate.memory import StageRoom, StageShape
from strata.simulate.pipeline import classic_warmup, latency_aware_warmup
from strata.training.plan.exact.problem import ParallelConfig, Problem
from strata.training.plan.exact.split import split
from strata.units import show_bytes
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, Stage, TrainingPlan

Layout = list[tuple[Domain, int]]
"""Domain and tensor-parallel degree of each stage, in pipeline order."""


def build_chain(
    problem: Problem,
    config: ParallelConfig,
    order: tuple[int, ...],
    *,
    microbatches: int | None = None,
    schedules: tuple[Schedule, ...] | None = None,
) -> Iterator[TrainingPlan | Reason]:
    """Yield one plan per allowed schedule for domains (positions in the fleet) in this order.

    A schedule that does not fit memory yields its Reason instead. `microbatches` per copy is the whole
    batch's unless given (a pipeline of several, which share the batch); `schedules` are the job's, in its order.
    """
    count = microbatches or problem.microbatches(config)
    layout: Layout = []
    for domain in (problem.fleet.domains[i] for i in order):
        ranks = problem.ranks(domain, config)
        if problem.model.layers(domain, ranks, config.microbatch_size, config.recompute) is None:
            kind = f"layer times for microbatch {config.microbatch_size}, tensor parallel {ranks}"
            yield Reason("figure-missing", domain.name, {"figure": kind, "accelerator": domain.accelerator.name})
            return
        layout += [(domain, ranks)] * problem.stages(domain, config)
    stages = len(layout)
    if not 1 <= stages <= len(problem.job.layers):
        return
    crosses = len(order) > 1
    for schedule in (schedules or problem.job.schedules) if stages > 1 else (Schedule.ONE_F_ONE_B,):
        if schedule is Schedule.LATENCY_AWARE and not crosses:
            continue
        if schedule is Schedule.GPIPE and not crosses and Schedule.ONE_F_ONE_B in problem.job.schedules:
            continue  # without a slow link GPipe only costs memory
        if schedule is Schedule.INTERLEAVED and (
            crosses or count % stages or 2 * stages > len(problem.job.layers)
        ):
            continue
        yield _scheduled(problem, config, layout, schedule, count)


def _scheduled(
    problem: Problem, config: ParallelConfig, layout: Layout, schedule: Schedule, count: int
) -> TrainingPlan | Reason:
    free = _split(problem, config, layout)
    warmup = [min(w, count - 1) for w in classic_warmup(len(layout))]
    virtual = 2 if schedule is Schedule.INTERLEAVED else 1
    plan = _plan(config, layout, free, warmup, schedule, count, virtual)
    if schedule is Schedule.GPIPE:
        plan = _with_warmup(plan, [count - 1] * len(layout))
    elif schedule is Schedule.LATENCY_AWARE:
        times = stack([problem.model.times(plan, plan.pipelines[0])])
        deeper = np.minimum(latency_aware_warmup(times, count)[0], count - 1)
        plan = _with_warmup(plan, [int(w) for w in deeper])
    stages = problem.job.zero_stages if config.data_parallel > 1 else problem.job.zero_stages[:1]
    fitting = problem.model.fastest_zero(plan, stages)
    if fitting is not None:
        return fitting
    return _fit(problem, config, layout, replace(plan, zero_stage=max(stages)))


def _fit(problem: Problem, config: ParallelConfig, layout: Layout, plan: TrainingPlan) -> TrainingPlan | Reason:
    """Return the plan with layers moved so that every stage fits, or why none does."""
    model, pipeline = problem.model, plan.pipelines[0]
    shapes = tuple(StageShape.of(plan, pipeline, i) for i in range(len(layout)))
    key = (*_kinds(problem, config, layout), shapes)
    if key not in problem.splits:
        rooms = [
            StageRoom(problem.job, shape, limit_bytes=model.memory_limit_bytes(domain))
            for (domain, _), shape in zip(layout, shapes, strict=True)
        ]
        problem.splits[key] = split(_prefixes(problem, config, layout), lambda i, first: rooms[i].layers(first))
    counts = problem.splits[key]
    if counts is not None:
        stages, first = [], 0
        for stage, layers in zip(pipeline.stages, counts, strict=True):
            stages.append(replace(stage, first_layer=first, num_layers=layers))
            first += layers
        return replace(plan, pipelines=(replace(pipeline, stages=tuple(stages)),))
    needs = [
        (
            model.stage_memory_bytes(plan, pipeline, stage),
            model.memory_limit_bytes(problem.fleet.domain(stage.domain)),
            stage,
        )
        for stage in pipeline.stages
    ]
    need, have, stage = max(needs, key=lambda item: item[0] / item[1])
    return Reason(
        "memory-exceeded", stage.domain,
        {"need": show_bytes(need), "have": show_bytes(have), "need_bytes": need, "have_bytes": have},
    )  # fmt: skip


def _prefixes(problem: Problem, config: ParallelConfig, layout: Layout) -> list[Floats]:
    prefixes = []
    for domain, ranks in layout:
        layers = problem.model.layers(domain, ranks, config.microbatch_size, config.recompute)
        assert layers is not None, "domains of unknown speed are excluded before"
        prefixes.append(layers.work)
    return prefixes


def _split(problem: Problem, config: ParallelConfig, layout: Layout) -> tuple[int, ...]:
    """Return the split that ignores memory; the same for every order of like stages."""
    key = _kinds(problem, config, layout)
    if key not in problem.splits:
        problem.splits[key] = split(_prefixes(problem, config, layout))
    counts = problem.splits[key]
    assert counts is not None, "no more stages than layers"
    return counts


def _kinds(problem: Problem, config: ParallelConfig, layout: Layout) -> tuple[object, ...]:
    """Return what a split depends on beside memory: the same for every order of like stages."""
    kinds = tuple((problem.kinds[domain.name], ranks) for domain, ranks in layout)
    return kinds, config.microbatch_size, config.recompute


def _plan(
    config: ParallelConfig, layout: Layout, counts: tuple[int, ...], warmup: list[int],
    schedule: Schedule, microbatches: int, virtual: int,
) -> TrainingPlan:  # fmt: skip
    stages, first = [], 0
    for (domain, ranks), layers, depth in zip(layout, counts, warmup, strict=True):
        stages.append(Stage(domain.name, first, layers, ranks, depth))
        first += layers
    return TrainingPlan(
        pipelines=(Pipeline(tuple(stages), config.data_parallel, microbatches),),
        microbatch_size=config.microbatch_size, schedule=schedule, recompute=config.recompute,
        virtual_stages=virtual,
    )  # fmt: skip


def _with_warmup(plan: TrainingPlan, warmup: list[int]) -> TrainingPlan:
    pipeline = plan.pipelines[0]
    stages = tuple(replace(stage, warmup=w) for stage, w in zip(pipeline.stages, warmup, strict=True))
    return replace(plan, pipelines=(replace(pipeline, stages=stages),))
