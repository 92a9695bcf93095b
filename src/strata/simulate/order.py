"""What each stage does in turn: forwards and backwards of microbatches, and of chunks where stages interleave."""

from __future__ import annotations

from typing import NamedTuple

from strata.simulate.timeline import SpanKind
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, TrainingPlan


class StageWork(NamedTuple):
    """One forward or backward of a microbatch on one chunk of a stage's layers (0 unless interleaved)."""

    kind: SpanKind
    microbatch: int
    chunk: int = 0


def orders(plan: TrainingPlan, pipeline: Pipeline) -> list[list[StageWork]]:
    """Return what each stage of a pipeline of the plan does in turn."""
    count, stages = pipeline.microbatches, len(pipeline.stages)
    if plan.schedule is Schedule.INTERLEAVED:
        return [interleaved(i, stages, count, plan.virtual_stages) for i in range(stages)]
    return [in_turn(stage.warmup, count) for stage in pipeline.stages]


def in_turn(warmup: int, microbatches: int) -> list[StageWork]:
    """Return `warmup` forwards, then one forward and one backward in turn, then the backwards that are left."""
    forwards = [StageWork(SpanKind.FORWARD, m) for m in range(microbatches)]
    backwards = [StageWork(SpanKind.BACKWARD, m) for m in range(microbatches)]
    return _merge(forwards, backwards, warmup)


def interleaved(stage: int, stages: int, microbatches: int, chunks: int) -> list[StageWork]:
    """Return the order of a stage whose layers are `chunks` pieces, far apart in the model.

    Narayanan et al. 2021 (arXiv 2104.04473), §2.2: microbatches go through the chunks in groups of S, and a stage
    starts with 2 (S - s - 1) + (v - 1) S forwards.
    """
    groups = [range(first, min(first + stages, microbatches)) for first in range(0, microbatches, stages)]
    forwards = [StageWork(SpanKind.FORWARD, m, c) for group in groups for c in range(chunks) for m in group]
    backwards = [
        StageWork(SpanKind.BACKWARD, m, c) for group in groups for c in reversed(range(chunks)) for m in group
    ]
    return _merge(forwards, backwards, _interleaved_warmup(stage, stages, chunks))


def _interleaved_warmup(stage: int, stages: int, chunks: int) -> int:
    return 2 * (stages - stage - 1) + (chunks - 1) * stages


def most_in_flight(plan: TrainingPlan, pipeline: Pipeline, position: int) -> float:
    """Return the microbatches whose activations a stage holds at its peak, a chunk of v being one v-th of one.

    All schedules begin with some forwards and then take one forward and one backward in turn, so the peak is what
    they begin with and one more, as far as there are so many (arXiv 2104.04473 §2.2).
    """
    if plan.schedule is not Schedule.INTERLEAVED:
        return min(pipeline.stages[position].warmup + 1, pipeline.microbatches)
    chunks = plan.virtual_stages
    warmup = _interleaved_warmup(position, len(pipeline.stages), chunks)
    return min(warmup + 1, pipeline.microbatches * chunks) / chunks


def _merge(forwards: list[StageWork], backwards: list[StageWork], warmup: int) -> list[StageWork]:
    order = forwards[:warmup]
    for m, backward in enumerate(backwards):
        order += forwards[warmup + m : warmup + m + 1]
        order.append(backward)
    return order
