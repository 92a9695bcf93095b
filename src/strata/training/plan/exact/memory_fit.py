"""What makes a plan fit memory: its ZeRO stage and, where the job leaves recomputation open, the least of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from strata.decision import Reason
from strata.simulate.least_recomputed import NEVER
from strata.simulate.memory import StageShape
from strata.training.plan.exact.problem import Problem
from strata.units import show_bytes
from strata.workload.job import Recompute
from strata.workload.plan import Pipeline, TrainingPlan


def fitting(problem: Problem, plan: TrainingPlan, zero_stages: Sequence[int]) -> list[TrainingPlan]:
    """Return the plan under each of some ZeRO stages that could be the fastest of those that fit memory.

    A higher stage may leave less to recompute, or exchange more: which is faster, their times say.
    """
    plain = without_recomputation(problem, plan)
    if plain is None:
        fastest = problem.model.fastest_zero(plan, zero_stages)
        return [] if fastest is None else [fastest]
    alike: dict[tuple[Recompute, tuple[Pipeline, ...]], list[TrainingPlan]] = {}
    for zero in sorted(zero_stages):
        least = _recomputing_least(problem, replace(plain, zero_stage=zero))
        if least is not None:
            # Stages that say nothing recompute all of their layers in one plan and none in another.
            alike.setdefault((least.recompute, least.pipelines), []).append(least)
    return [problem.model.fastest_of(plans) for plans in alike.values()]


def without_recomputation(problem: Problem, plan: TrainingPlan) -> TrainingPlan | None:
    """Return the plan with nothing recomputed; None where it is not the search that says what is."""
    if not problem.is_partial or plan.recompute not in (Recompute.NONE, Recompute.FULL):
        return None
    pipelines = tuple(
        replace(pipeline, stages=tuple(replace(stage, recompute_layers=None) for stage in pipeline.stages))
        if any(stage.recompute_layers is not None for stage in pipeline.stages)
        else pipeline
        for pipeline in plan.pipelines
    )
    return replace(plan, recompute=Recompute.NONE, pipelines=pipelines)


def recomputing_least(problem: Problem, plan: TrainingPlan) -> TrainingPlan:
    """Return a plan that fits, or whose fewer microbatches might, with the least that makes each stage fit."""
    bare = without_recomputation(problem, plan)
    least = fitting(problem, bare, (plan.zero_stage,)) if bare is not None else []
    return least[0] if least else bare or plan


def _recomputing_least(problem: Problem, plan: TrainingPlan) -> TrainingPlan | None:
    """Return a plan that recomputes nothing with the least that makes each stage fit, None where nothing does.

    Interleaved stages recompute all or nothing: their layers do not lie together.
    """
    model, every, is_any = problem.model, list[list[int | None]](), False
    for pipeline in plan.pipelines:
        counts: list[int | None] = []
        for stage, shape in zip(pipeline.stages, StageShape.each_of(plan, pipeline), strict=True):
            limit_bytes = model.memory_limit_bytes(problem.fleet.domain(stage.domain))
            last = stage.first_layer + stage.num_layers
            least = problem.recomputing(shape).count(stage.first_layer, last, shape.in_flight, limit_bytes)
            if least == NEVER:
                return None
            is_all = least == stage.num_layers or (least > 0 and plan.virtual_stages > 1)
            counts.append(None if is_all else least)
            is_any |= least > 0
        every.append(counts)
    if not is_any:
        return plan if plan.virtual_stages == 1 or model.fits(plan) else None
    pipelines = []
    for pipeline, counts in zip(plan.pipelines, every, strict=True):
        stages = zip(pipeline.stages, counts, strict=True)
        pipelines.append(
            replace(pipeline, stages=tuple(replace(stage, recompute_layers=count) for stage, count in stages))
        )
    least_plan = replace(plan, recompute=Recompute.FULL, pipelines=tuple(pipelines))
    return least_plan if plan.virtual_stages == 1 or model.fits(least_plan) else None


def zero_stages(problem: Problem, plan: TrainingPlan) -> tuple[int, ...]:
    """Return the ZeRO stages that the job leaves to a plan: of a single copy the first alone."""
    stages = problem.job.zero_stages
    pipeline = plan.pipelines[0]
    return stages if pipeline.replicas * pipeline.stages[0].context_parallel > 1 else stages[:1]


def too_large(problem: Problem, plan: TrainingPlan) -> Reason:
    """Return which stage lacks most memory in the split that ignores it."""
    model, pipeline = problem.model, plan.pipelines[0]
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
