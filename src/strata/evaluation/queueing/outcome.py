"""What a run gives: utilisation, goodput, waits and deadlines inside the window of its trace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from strata.evaluation.queueing.grid import Grid
from strata.evaluation.queueing.trace import QueueTrace


@dataclass(frozen=True, slots=True)
class QueueOutcome:
    """One run of one trace under one scheduler; everything is counted inside the trace's window.

    utilization: useful node-seconds / node-seconds of all domains; waits for links and restarts are not useful.
    held: node-seconds given to jobs that make progress, slow or not, / node-seconds of all domains.
    goodput: work of jobs that ended in the window and by their deadline / node-seconds of all domains.
    mean_wait_s, p95_wait_s: of jobs that arrived in the window; who never started waited until its end.
    deadline_misses: share of the jobs with a deadline in the window that had not ended by then, nan without any.
    started, ended: [J] times, inf where it did not happen. order: numbers of jobs in order of start.
    """

    utilization: float
    held: float
    goodput: float
    mean_wait_s: float
    p95_wait_s: float
    deadline_misses: float
    useful_node_s: float
    spans: int
    moves: int
    events: int
    started: tuple[float, ...]
    ended: tuple[float, ...]
    order: tuple[int, ...]


def summary(
    grid: Grid,
    trace: QueueTrace,
    *,
    starts_s: Sequence[float],
    ends_s: Sequence[float],
    useful_node_s: float,
    held_node_s: float,
    spans: int,
    moves: int,
    events: int,
    order: tuple[int, ...],
) -> QueueOutcome:
    """Return the figures of a run from its books."""
    capacity = sum(grid.nodes) * (trace.end_s - trace.start_s)
    good, waits, missed, due = 0.0, [], 0, 0
    for job, start_s, end_s in zip(trace.jobs, starts_s, ends_s, strict=True):
        if trace.start_s <= end_s <= min(trace.end_s, job.deadline_s):
            good += job.work_node_s
        if job.arrival_s >= trace.start_s:
            waits.append(min(start_s, trace.end_s) - job.arrival_s)
        if trace.start_s <= job.deadline_s <= trace.end_s:
            due += 1
            missed += end_s > job.deadline_s
    return QueueOutcome(
        utilization=useful_node_s / capacity,
        held=held_node_s / capacity,
        goodput=good / capacity,
        mean_wait_s=float(np.mean(waits)) if waits else 0.0,
        p95_wait_s=float(np.quantile(waits, 0.95)) if waits else 0.0,
        deadline_misses=missed / due if due else math.nan,
        useful_node_s=useful_node_s,
        spans=spans,
        moves=moves,
        events=events,
        started=tuple(starts_s),
        ended=tuple(ends_s),
        order=order,
    )
