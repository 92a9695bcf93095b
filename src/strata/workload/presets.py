"""The jobs that come with strata, by name: training (files in `jobs/`) and serving (in `serving_jobs/`)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from strata.files import bundled, bundled_names

_FOLDER: Final = Path(__file__).parent / "jobs"
_SERVING: Final = Path(__file__).parent / "serving_jobs"


def job_names() -> list[str]:
    """Return the names of the bundled training jobs, sorted."""
    return bundled_names(_FOLDER)


def job_path(name: str) -> Path:
    """Return the file of a bundled training job. Raises UsageError naming the ones there are."""
    return bundled(_FOLDER, name, what="job")


def serving_job_path(name: str) -> Path:
    """Return the file of a bundled serving job. Raises UsageError naming the ones there are."""
    return bundled(_SERVING, name, what="serving job")
