"""The training jobs that come with strata, by name (files in `jobs/`)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from strata.files import bundled, bundled_names

_FOLDER: Final = Path(__file__).parent / "jobs"


def job_names() -> list[str]:
    """Return the names of the bundled jobs, sorted."""
    return bundled_names(_FOLDER)


def job_path(name: str) -> Path:
    """Return the file of a bundled job. Raises UsageError naming the ones there are."""
    return bundled(_FOLDER, name, what="job")
