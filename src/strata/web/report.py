"""One file with the same pictures: no script, nothing loaded, so that it can be mailed and opened anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from strata import __version__
from strata.api.explain import explain
from strata.api.fleets import fleet_data
from strata.errors import UsageError
from strata.files import read_document
from strata.pictures.page import KINDS, fragment
from strata.web.pages import render, style


def report(paths: Sequence[Path], *, title: str) -> str:
    """Return an HTML document of plan files and fleet files.

    Raises BadFile for files with faults, UsageError for files of another kind.
    """
    return document([(path.name, _data(path)) for path in paths], title=title)


def document(parts: Sequence[tuple[str, dict[str, Any]]], *, title: str) -> str:
    """Return an HTML document of answers, each with its name."""
    sections = [(name, Markup(fragment(data, is_styled=False))) for name, data in parts]
    return render("report.html", title=title, sections=sections, style=Markup(style()), version=__version__)


def _data(path: Path) -> dict[str, Any]:
    data = read_document(path).data
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind in ("TrainingPlan", "ServingPlan"):
        return explain(path)
    if kind == "Fleet" or (isinstance(data, dict) and "topology" in data):
        return fleet_data(path)
    raise UsageError(
        f"{path}: a report is of plans and fleets" + (f", and this is a {kind}" if kind else ""),
        hint=f"files of kind {', '.join(KINDS)}",
    )
