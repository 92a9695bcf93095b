"""One file with the same pictures: no script, nothing loaded, so that it can be mailed and opened anywhere."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from strata import __version__
from strata.api.backends import by_events
from strata.api.explain import explain
from strata.api.fleets import fleet_data
from strata.api.loaded import of_plan
from strata.errors import StrataError, UsageError
from strata.files import Document, read_document
from strata.pictures.page import KINDS, fragment
from strata.simulate.svg import svg
from strata.training.plan.planfile import best_plan
from strata.web.pages import render, style


def report(paths: Sequence[Path], *, title: str) -> str:
    """Return an HTML document of plan files, fleet files and host reports.

    Raises BadFile for files with faults, UsageError for files of another kind.
    """
    return document([(path.name, _data(path)) for path in paths], title=title)


def document(parts: Sequence[tuple[str, dict[str, Any]]], *, title: str) -> str:
    """Return an HTML document of answers, each with its name."""
    sections = [(name, Markup(_section(data))) for name, data in parts]
    return render("report.html", title=title, sections=sections, style=Markup(style()), version=__version__)


def _section(data: dict[str, Any]) -> str:
    if "lanes" in data:
        return render("host_section.html", d=data)
    shown = fragment(data, is_styled=False)
    if data["kind"] == "TrainingPlan" and data["plans"]:
        shown += render("step.html", step=_step(data))
    return shown


def _step(data: dict[str, Any]) -> str:
    """Return one step of the best plan as an image; "" where what it was made of has changed since."""
    try:
        job = of_plan(best_plan(Document(data["name"], data, {})))
    except StrataError:
        return ""
    timeline = by_events([job]).timeline
    assert timeline is not None
    drawn = svg(timeline, title=f"{job.name}: one step")
    return f"data:image/svg+xml;base64,{b64encode(drawn.encode()).decode()}"  # its rules are not the page's


def _data(path: Path) -> dict[str, Any]:
    data = read_document(path).data
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind in ("TrainingPlan", "ServingPlan"):
        return explain(path)
    if kind == "Fleet" or (isinstance(data, dict) and "topology" in data):
        return fleet_data(path)
    if isinstance(data, dict) and {"verdict", "findings", "lanes", "wall_ms"} <= data.keys():
        return data
    raise UsageError(
        f"{path}: a report is of plans, fleets and host reports" + (f", and this is a {kind}" if kind else ""),
        hint=f"files of kind {', '.join(KINDS)}, or what strata host report -o json wrote",
    )
