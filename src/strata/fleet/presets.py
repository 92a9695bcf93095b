"""The fleets that come with strata, by name: `seed`, `hub` and `aws10` (files in `presets/`)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from strata.files import bundled

_FOLDER: Final = Path(__file__).parent / "presets"


def preset_path(name: str) -> Path:
    """Return the file of a bundled fleet. Raises UsageError naming the ones there are."""
    return bundled(_FOLDER, name, what="fleet")
