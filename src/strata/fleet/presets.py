"""The fleets that come with strata, by name: `seed`, `hub` and `aws10` (files in `presets/`)."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Final

from strata.errors import UsageError

_FOLDER: Final = Path(__file__).parent / "presets"


def preset_names() -> list[str]:
    """Return the names of the bundled fleets, sorted."""
    return sorted(file.stem for file in _FOLDER.glob("*.yaml"))


def preset_path(name: str) -> Path:
    """Return the file of a bundled fleet. Raises UsageError naming the ones there are."""
    names = preset_names()
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        raise UsageError(
            f"{name}: no such file, and no bundled fleet (there are: {', '.join(names)})",
            hint=close[0] if close else None,
        )
    return _FOLDER / f"{name}.yaml"
