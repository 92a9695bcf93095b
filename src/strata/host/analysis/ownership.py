"""Whose threads those of a trace are: their processes where a census saw them, and which belong to the job."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strata.arrays import Bools
from strata.host.analysis.task_instances import TaskInstances
from strata.host.threads.processes import Census
from strata.host.trace.events import EventKind, Trace

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Ownership:
    """pid: the process of each thread, -1 where no census saw it. in_job: whether it is of the job, none: no job.

    parent: the thread that started it within the trace, -1 where that was before.
    """

    pid: NDArray[np.int32]
    parent: NDArray[np.int32]
    in_job: Bools | None


def ownership_of(trace: Trace, tasks: TaskInstances, census: Census, *, job: int | None) -> Ownership:
    """Return the processes of a trace's threads, and those that are process `job` or descend from it.

    A number is given again after its thread has ended, so a census speaks for the life that was there when it was
    taken. What was started within the trace belongs to where its parent belongs.
    """
    tids = tasks.tid.tolist()
    pid = np.full(len(tasks), UNKNOWN, np.int32)
    for index, tid in enumerate(tids):
        if tid in census.pids:
            at_ns = census.taken_ns[tid]
            if tasks.start_ns[index] <= at_ns <= tasks.end_ns[index] or not _has_other_life(tids, index):
                pid[index] = census.pids[tid]
    parent = np.full(len(tasks), UNKNOWN, np.int32)
    forks = trace.events.of(EventKind.FORK)
    children = tasks.at(trace.events.tid[forks], forks)
    parents = tasks.at(trace.events.other[forks], forks)
    is_known = children >= 0
    parent[children[is_known]] = parents[is_known]
    if job is None:
        return Ownership(pid, parent, None)
    in_job = np.isin(pid, list(census.tree(job))) | ((pid == UNKNOWN) & (tasks.tid == job))
    for child, its_parent in zip(children[is_known].tolist(), parents[is_known].tolist(), strict=True):
        # In the order of time: whoever starts something was started before.
        in_job[child] |= its_parent >= 0 and bool(in_job[its_parent])
    return Ownership(pid, parent, in_job)


def _has_other_life(tids: list[int], index: int) -> bool:
    return tids[index - 1 : index] == [tids[index]] or tids[index + 1 : index + 2] == [tids[index]]
