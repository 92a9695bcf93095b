"""What each stage does in turn: forwards and backwards of microbatches, of chunks where stages interleave."""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from strata.errors import UsageError
from strata.simulate.timeline import SpanKind
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, TrainingPlan

KINDS: Final = (SpanKind.FORWARD, SpanKind.BACKWARD, SpanKind.WEIGHT)
"""What a stage does with a microbatch."""


ORDERED: Final = (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE, Schedule.DUAL_PIPE_V)
"""Schedules whose orders depend on the numbers of stages, microbatches and chunks alone."""

CHUNKED: Final = (Schedule.INTERLEAVED, Schedule.DUAL_PIPE_V)
"""Schedules whose stages hold several chunks of layers."""


class StageWork(NamedTuple):
    """One operation on a microbatch by one chunk of a stage's layers (0 unless interleaved).

    A backward is the gradients of inputs and weights, or of inputs alone where the order has weights apart and it
    is not `is_whole`. is_beside: a forward that is done together with the backward that follows it in the order.
    """

    kind: SpanKind
    microbatch: int
    chunk: int = 0
    is_whole: bool = False
    is_beside: bool = False

    @property
    def bare(self) -> StageWork:
        """What is done, however."""
        return StageWork(self.kind, self.microbatch, self.chunk)


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
    if schedule is Schedule.DUAL_PIPE_V:
        return tuple(tuple(dual_pipe_v(i, stages, microbatches)) for i in range(stages))
    return tuple(tuple(zero_bubble(i, stages, microbatches)) for i in range(stages))


def target(
    stage: int, work: StageWork, *, stages: int, chunks: int, is_folded: bool = False
) -> tuple[int, StageWork] | None:
    """Return which stage waits for the result of `work`, and for what (`bare`); None at either end of the model.

    is_folded: the second chunks lie in the stages' reverse order, the last stage's next to its first one.
    """
    if work.kind is SpanKind.WEIGHT:
        return None
    forward = work.kind is SpanKind.FORWARD
    work = work.bare
    if is_folded:
        place = (stage if work.chunk == 0 else 2 * stages - 1 - stage) + (1 if forward else -1)
        if not 0 <= place < 2 * stages:
            return None
        chunk = int(place >= stages)
        return 2 * stages - 1 - place if chunk else place, work._replace(chunk=chunk)
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


def dual_pipe_v(stage: int, stages: int, microbatches: int) -> list[StageWork]:
    """Return the order of a stage under DualPipeV: a forward of one chunk beside a backward of the other.

    DualPipe (DeepSeek-V3, arXiv 2412.19437 §3.2.1) cut in half, so that each stage has its own parameters alone:
    the eight steps of `dualpipev.py` in github.com/deepseek-ai/DualPipe. Raises UsageError for fewer microbatches
    than two a stage.
    """
    if microbatches < 2 * stages:
        raise UsageError(
            f"dualpipev takes two microbatches a stage: {microbatches} are fewer than {2 * stages}",
            hint="fewer stages or copies, or smaller microbatches",
        )
    order, apart = list[StageWork](), deque[StageWork]()
    forwards, backwards = [0, 0], [0, 0]

    def forward(chunk: int, *, is_beside: bool = False) -> None:
        order.append(StageWork(SpanKind.FORWARD, forwards[chunk], chunk, is_beside=is_beside))
        forwards[chunk] += 1

    def backward(chunk: int, *, is_whole: bool = True) -> None:
        order.append(StageWork(SpanKind.BACKWARD, backwards[chunk], chunk, is_whole=is_whole))
        if not is_whole:
            apart.append(StageWork(SpanKind.WEIGHT, backwards[chunk], chunk))
        backwards[chunk] += 1

    after = stages - 1 - stage
    for _ in range(2 * after):
        forward(0)
    for _ in range(stage + 1):
        forward(0)
        forward(1)
    for _ in range(after):
        backward(1, is_whole=False)
        order.append(apart.popleft())
        forward(1)
    for pair in range(microbatches - 2 * stages + stage + 1):
        # The last stage's first two are apart, as there: together they would end later than the backward must.
        forward(0, is_beside=pair > 0 or after > 0)
        backward(1)
        forward(1, is_beside=True)
        backward(0)
    for _ in range(after):
        backward(1)
        forward(1, is_beside=True)
        backward(0)
    for place in range(2 * (stage + 1)):
        backward(1 - place % 2, is_whole=place <= stage)
    for _ in range(after):
        order.append(apart.popleft())
        backward(0, is_whole=False)
    return [*order, *apart]


def most_in_flight(plan: TrainingPlan, pipeline: Pipeline, position: int) -> float:
    """Return the microbatches whose activations a stage holds at its peak, a chunk of v being one v-th of one.

    All schedules begin with some forwards and then take one forward and one backward in turn, so the peak is what
    they begin with and one more, as far as there are so many (arXiv 2104.04473 §2.2). Weight gradients that come
    later keep activations longer: all stages of ZB-H1 hold what the first one does (arXiv 2401.10241 §2.1). Under
    DualPipeV all hold 2 S + 1 chunks of one half (the table in its repository).
    """
    if plan.schedule is Schedule.DUAL_PIPE_V:
        return len(pipeline.stages) + 0.5
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
