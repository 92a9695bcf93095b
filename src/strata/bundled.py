"""Texts and tables that come with the package, each beside the code that reads it."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any


def bundled_text(package: str, name: str) -> str:
    """Return a text file of a package, such as `strata.fleet` and `accelerators.csv`."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def bundled_table(package: str, name: str) -> dict[str, Any]:
    """Return a TOML file of a package."""
    return tomllib.loads(bundled_text(package, name))
