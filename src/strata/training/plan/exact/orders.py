"""The orders of work that a pipeline may follow: schedules, and the chunks of layers that a stage has in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from strata.workload.job import Schedule, TrainingJob

CHUNKS: Final = (8, 4, 2)
"""Chunks of an interleaved stage that are tried."""

UNEVEN: Final = 1.25
"""The largest chunk has at most so many times the layers of the mean."""


def chunk_counts(job: TrainingJob, stages: int) -> tuple[int, ...]:
    """Return how many chunks so many interleaved stages may have, most first: some of CHUNKS, or what is fixed.

    The model takes chunks as equal, so the largest has hardly more layers than the mean, embedding and head
    counted or left out.
    """
    fixed, layers = job.pins.virtual_stages, len(job.layers)
    if fixed is not None:
        return (fixed,) if 1 < fixed <= layers // stages else ()
    return tuple(v for v in CHUNKS if v * stages <= layers and _is_even(layers, v * stages))


def _is_even(layers: int, pieces: int) -> bool:
    return any(-(-count // pieces) * pieces <= UNEVEN * count for count in (layers, layers - 2) if count > 0)


def schedules_of(
    job: TrainingJob, stages: int, microbatches: int, *, crosses: bool, among: Sequence[Schedule]
) -> Iterator[tuple[Schedule, int]]:
    """Yield the schedules `among` some, and their chunks a stage, that a pipeline may follow."""
    fixed = job.pins.virtual_stages or 1
    if stages == 1 or fixed > 1:
        among = (Schedule.ONE_F_ONE_B,) if fixed == 1 else fixed_chunks(job)
    for schedule in among:
        if schedule is Schedule.DUAL_PIPE_V:
            if not crosses and folds(job, stages, microbatches):
                yield schedule, 2
            continue
        if schedule is Schedule.LATENCY_AWARE and not crosses:
            continue
        if schedule is Schedule.GPIPE and not crosses and Schedule.ONE_F_ONE_B in job.schedules:
            continue  # without a slow link GPipe only costs memory
        if schedule is not Schedule.INTERLEAVED:
            yield schedule, 1
        elif not crosses and stages > 1 and not microbatches % stages:
            yield from ((schedule, chunks) for chunks in chunk_counts(job, stages))


def fixed_chunks(job: TrainingJob) -> tuple[Schedule, ...]:
    """Return the schedules of a job whose stages have several chunks."""
    return tuple(each for each in job.schedules if each is Schedule.DUAL_PIPE_V) + (
        (Schedule.INTERLEAVED,) if job.schedules != (Schedule.DUAL_PIPE_V,) else ()
    )


def folds(job: TrainingJob, stages: int, microbatches: int) -> bool:
    """Whether so many stages of one domain may follow DualPipeV: each has a layer for both its chunks."""
    is_free = job.pins.virtual_stages in (None, 2)
    return is_free and 1 < stages <= min(microbatches, len(job.layers)) // 2
