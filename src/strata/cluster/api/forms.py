"""Forms of what ends up in other people's containers, whether a profile or an annotation says it."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final

IMAGE: Final = re.compile(
    r"[a-z0-9][A-Za-z0-9._:/-]{0,254}(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127}|@sha256:[0-9a-f]{64})"
)
"""An image with a tag or a digest."""
MOST_CHARACTERS: Final = 4096

_BARE: Final = re.compile(r"[A-Za-z0-9._@+=,/-]+")


def is_plain_path(text: str) -> bool:
    """Return whether a path is absolute and only a path: nothing climbs, nothing is a variable or a list."""
    path = PurePosixPath(text)
    is_plain = text.isprintable() and len(text) < MOST_CHARACTERS and ":" not in text and "$" not in text
    return is_plain and path.is_absolute() and ".." not in path.parts


def is_bare_path(text: str) -> bool:
    """Return whether a path is plain, and the same without quotes in any shell."""
    return is_plain_path(text) and _BARE.fullmatch(text) is not None
