"""Templates into pages."""

from __future__ import annotations

import time
from functools import cache, partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from strata import __version__
from strata.pictures.page import fragment, prepare
from strata.pictures.svg import STYLE

STATIC: Final = Path(__file__).parent / "static"
PLACES: Final = (
    ("/", "Now"), ("/fleet", "Fleet"), ("/plans", "Plans"), ("/serving", "Serving"), ("/slices", "Slices"),
    ("/host", "Host"), ("/decisions", "Decisions"),
)  # fmt: skip


def render(template: str, **values: Any) -> str:
    """Return a rendered template; `values` are what it shows."""
    return _environment().get_template(template).render(**values)


@cache
def style() -> str:
    """Return the pages' rules and the pictures'."""
    return (STATIC / "strata.css").read_text() + STYLE


@cache
def _environment() -> Environment:
    env = Environment(
        loader=ChoiceLoader([PackageLoader("strata.web"), PackageLoader("strata.pictures")]), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    prepare(env)
    env.globals |= {"places": PLACES, "version": __version__, "fragment": _fragment, "zone": _zone}
    env.filters |= {"at": _at, "quoted": partial(quote, safe="")}
    return env


def _fragment(data: Any) -> Markup:
    return Markup(fragment(data, is_styled=False))


def _zone() -> str:
    """Return the time zone that moments are written in."""
    return time.strftime("%Z")


def _at(seconds: float) -> str:
    """Write a moment in the local time of the machine that serves."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
