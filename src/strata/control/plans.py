"""The plans of each kind of job, made once: jobs that differ by name alone share them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from strata.control.candidates import Candidates
from strata.decision import digest
from strata.fleet.fleet import Fleet
from strata.workload.job import TrainingJob

MOST_KINDS: Final = 256
MOST_JOBS: Final = 16_384
"""What is kept, at most, while a daemon runs for months; what was forgotten is made again if it is asked for."""


def planner() -> Callable[[Fleet, TrainingJob], Candidates]:
    """Return a planner that remembers, for the fleet it was asked about last."""
    planned_for: Fleet | None = None
    # By identity first: a digest reads all layers. The job is kept, so that its id stays its own.
    by_id: dict[int, tuple[TrainingJob, Candidates]] = {}
    kinds: dict[str, Candidates] = {}

    def plans(fleet: Fleet, job: TrainingJob) -> Candidates:
        nonlocal planned_for
        if fleet is not planned_for:
            planned_for = fleet
            by_id.clear()
            kinds.clear()
        if (known := by_id.get(id(job))) is not None:
            return known[1]
        kind = digest(replace(job, name="", profile=None, spec=None), repr(job.profile))
        candidates = kinds.get(kind)
        if candidates is None:
            if len(kinds) >= MOST_KINDS:
                kinds.clear()
            kinds[kind] = candidates = Candidates.of(fleet, job)
        if len(by_id) >= MOST_JOBS:
            by_id.clear()
        by_id[id(job)] = job, candidates
        return candidates

    return plans
