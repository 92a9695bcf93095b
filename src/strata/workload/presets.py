"""The training jobs that come with strata, by name (files in `jobs/`)."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Final

from strata.errors import UsageError

_FOLDER: Final = Path(__file__).parent / "jobs"


def job_names() -> list[str]:
    """Return the names of the bundled jobs, sorted."""
    return sorted(file.stem for file in _FOLDER.glob("*.yaml"))


def job_path(name: str) -> Path:
    """Return the file of a bundled job. Raises UsageError naming the ones there are."""
    names = job_names()
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        raise UsageError(
            f"{name}: no such file, and no bundled job (there are: {', '.join(names)})",
            hint=close[0] if close else None,
        )
    return _FOLDER / f"{name}.yaml"
