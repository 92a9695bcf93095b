"""Text of launch scripts: comments, and names that are safe wherever a script puts them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from strata.tables import printable


def slugs(names: Iterable[str]) -> list[str]:
    """Return names that are safe in a file name, a label and a shell, and different where the names are."""
    unique: list[str] = []
    for name in names:
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:24].strip("-") or "domain"
        number, other = 1, slug
        while other in unique:
            number += 1
            other = f"{slug}-{number}"
        unique.append(other)
    return unique


def comment(lines: Iterable[str]) -> str:
    """Return lines as comments of a shell script or a YAML file; line breaks inside become spaces.

    Control characters are escaped: YAML allows none, and takes U+0085 and U+2028 for ends of lines.
    """
    return "".join(f"# {printable(' '.join(line.splitlines()))}".rstrip() + "\n" for line in lines)
