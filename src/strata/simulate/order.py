"""What each stage does in turn: forwards and backwards of microbatches, of chunks where stages interleave."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from strata.simulate.timeline import SpanKind
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, TrainingPlan

KINDS: Final = (SpanKind.FORWARD, SpanKind.BACKWARD, SpanKind.WEIGHT)
"""What a stage does with a microbatch."""


ORDERED: Final = (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE)
"""Schedules whose orders depend on the numbers of stages, microbatches and chunks alone."""


class StageWork(NamedTuple):
    """One operation on a microbatch by one chunk of a stage's layers (0 unless interleaved).

    A backward is the gradients of inputs and weights, or of inputs alone where the order has weights apart.
    """

    kind: SpanKind
    microbatch: int
    chunk: int = 0


def orders(plan: TrainingPlan, pipeline: Pipeline) -> list[list[StageWork]]:
    """Return what each stage of a pipeline of the plan does in turn."""
    if plan.schedule in ORDERED:
        every = fixed_orders(plan.schedule, len(pipeline.stages), pipeline.microbatches, plan.virtual_stages)
        return [list(order) for order in every]
    return [in_turn(stage.warmup, pipeline.microbatches) for stage in pipeline.stages]


@lru_cache(maxsize=64)
def fixed_orders(
    schedule: Schedule, stages: int, microbatches: int, chunks: int
) -> tuple[tuple[StageWork, ...], ...]:
    """Return what each stage does in turn under a schedule that leaves no choice (`ORDERED`)."""
    if schedule is Schedule.INTERLEAVED:
        return tuple(tuple(interleaved(i, stages, microbatches, chunks)) for i in range(stages))
    return tuple(tuple(zero_bubble(i, stages, microbatches)) for i in range(stages))


def target(stage: int, work: StageWork, *, stages: int, chunks: int) -> tuple[int, StageWork] | None:
    """Return which stage waits for the result of `work`, and for what; None at either end of the model."""
    if work.kind is SpanKind.WEIGHT:
        return None
    forward = work.kind is SpanKind.FORWARD
    to, chunk = stage + (1 if forward else -1), work.chunk
    if not 0 <= to < stages:
        to, chunk = to % stages, chunk + (1 if forward else -1)
    return (to, work._replace(chunk=chunk)) if 0 <= chunk < chunks else None


def in_turn(warmup: int, microbatches: int) -> list[StageWork]:
    """Return `warmup` forwards, then one forward and one backward in turn, then the backwards that are left."""
    forwards = [StageWork(SpanKind.FORWARD, m) for m in range(microbatches)]
    backwards = [StageWork(SpanKind.BACKWARD, m) for m in range(microbatches)]
    return _merge(forwards, backwards, warmup)


def interleaved(stage: int, stages: int, microbatches: int, chunks: int) -> list[StageWork]:
    """Return the order of a stage whose layers are `chunks` pieces, far apart in the model.

    Narayanan et al. 2021 (arXiv 2104.04473), §2.2: microbatches go through the chunks in groups of S, and a stage
    starts with 2 (S - s - 1) + (v - 1) G forwards, G the largest group. What is left joins the last group: a group
    of fewer than S would have stages wait for each other in a circle.
    """
    starts = range(0, max(1, microbatches - stages + 1), stages)
    groups = [range(first, last) for first, last in pairwise([*starts, microbatches])]
    forwards = [StageWork(SpanKind.FORWARD, m, c) for group in groups for c in range(chunks) for m in group]
    backwards = [
        StageWork(SpanKind.BACKWARD, m, c) for group in groups for c in reversed(range(chunks)) for m in group
    ]
    return _merge(forwards, backwards, _interleaved_warmup(stage, stages, microbatches, chunks))


def _interleaved_warmup(stage: int, stages: int, microbatches: int, chunks: int) -> int:
    largest = stages + (microbatches % stages if microbatches > stages else 0)
    return 2 * (stages - stage - 1) + (chunks - 1) * largest


def zero_bubble(stage: int, stages: int, microbatches: int) -> list[StageWork]:
    """Return the order of a stage under ZB-H1: 1F1B whose stage s computes weight gradients s microbatches late.

    Qi et al. 2024 (arXiv 2401.10241), §2.1: gradients of inputs go up the pipeline without waiting for those of
    weights, which fill the end, and no stage holds more activations than the first of 1F1B.
    """
    order = in_turn(stages - 1 - stage, microbatches)
    last = [StageWork(SpanKind.WEIGHT, m) for m in range(microbatches)]
    late = min(stage, microbatches)
    split: list[StageWork] = []
    for work in order:
        split.append(work)
        if work.kind is SpanKind.BACKWARD and work.microbatch >= late:
            split.append(last[work.microbatch - late])
    return split + last[microbatches - late :]


def most_in_flight(plan: TrainingPlan, pipeline: Pipeline, position: int) -> float:
    """Return the microbatches whose activations a stage holds at its peak, a chunk of v being one v-th of one.

    All schedules begin with some forwards and then take one forward and one backward in turn, so the peak is what
    they begin with and one more, as far as there are so many (arXiv 2104.04473 §2.2). Weight gradients that come
    later keep activations longer: all stages of ZB-H1 hold what the first one does (arXiv 2401.10241 §2.1).
    """
    if plan.schedule is Schedule.ZERO_BUBBLE:
        return min(len(pipeline.stages), pipeline.microbatches)
    if plan.schedule is not Schedule.INTERLEAVED:
        return min(pipeline.stages[position].warmup + 1, pipeline.microbatches)
    chunks = plan.virtual_stages
    warmup = _interleaved_warmup(position, len(pipeline.stages), pipeline.microbatches, chunks)
    return min(warmup + 1, pipeline.microbatches * chunks) / chunks


def _merge(forwards: list[StageWork], backwards: list[StageWork], warmup: int) -> list[StageWork]:
    order = forwards[:warmup]
    for m, backward in enumerate(backwards):
        order += forwards[warmup + m : warmup + m + 1]
        order.append(backward)
    return order
