"""What the functions take: files and names of bundled ones, or what was loaded from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from strata.fleet.fleet import Fleet
from strata.fleet.schema import load_fleet
from strata.workload.job import TrainingJob
from strata.workload.schema import load_job
from strata.workload.serving_job import ServingJob
from strata.workload.serving_schema import load_serving_job

Loaded = TypeVar("Loaded", Fleet, TrainingJob, ServingJob)

FleetLike = Fleet | str | Path
JobLike = TrainingJob | str | Path
ServingJobLike = ServingJob | str | Path


def fleet_of(fleet: FleetLike) -> Fleet:
    """Return a fleet, read where it is a file or a bundled one. Raises as `load_fleet` does."""
    return _loaded(fleet, load_fleet)


def job_of(job: JobLike) -> TrainingJob:
    """Return a training job, read where it is a file or a bundled one. Raises as `load_job` does."""
    return _loaded(job, load_job)


def serving_job_of(job: ServingJobLike) -> ServingJob:
    """Return a serving job, read where it is a file or a bundled one. Raises as `load_serving_job` does."""
    return _loaded(job, load_serving_job)


def names_of(**given: Any) -> Mapping[str, str]:
    """Return where inputs came from: a plan file keeps it, so that it can be planned again."""
    return {key: str(value) for key, value in given.items() if isinstance(value, (str, Path))}


def _loaded(given: Loaded | str | Path, load: Callable[[str | Path], Loaded]) -> Loaded:
    return load(given) if isinstance(given, (str, Path)) else given
