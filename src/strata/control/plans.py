"""The plans of each kind of job, made once: jobs that differ by name alone share them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from strata.control.candidates import Candidates
from strata.decision import Reason, digest
from strata.fleet.fleet import Fleet, Pair
from strata.workload.job import TrainingJob

MOST_KINDS: Final = 256
MOST_JOBS: Final = 16_384
"""What is kept, at most, while a daemon runs for months; what was forgotten is made again if it is asked for."""


def planner(
    apart: Callable[[], Mapping[Pair, Reason]] = dict,
) -> Callable[[Fleet, TrainingJob], Candidates]:
    """Return a planner that remembers, for the fleet it was asked about last.

    apart: the pairs of domains that cannot meet (`meeting.apart`), asked for when there is another fleet.
    """
    planned_for: Fleet | None = None
    cannot_meet: Mapping[Pair, Reason] = {}
    # By identity first: a digest reads all layers. The job is kept, so that its id stays its own.
    by_id: dict[int, tuple[TrainingJob, Candidates]] = {}
    kinds: dict[str, Candidates] = {}

    def plans(fleet: Fleet, job: TrainingJob) -> Candidates:
        nonlocal planned_for, cannot_meet
        if fleet is not planned_for:
            planned_for, cannot_meet = fleet, apart()
            by_id.clear()
            kinds.clear()
        if (known := by_id.get(id(job))) is not None:
            return known[1]
        kind = digest(replace(job, name="", profile=None, spec=None), repr(job.profile))
        candidates = kinds.get(kind)
        if candidates is None:
            if len(kinds) >= MOST_KINDS:
                kinds.clear()
            kinds[kind] = candidates = Candidates.of(fleet, job, apart=cannot_meet)
        if len(by_id) >= MOST_JOBS:
            by_id.clear()
        by_id[id(job)] = job, candidates
        return candidates

    return plans
