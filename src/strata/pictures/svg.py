"""The parts of which pictures are made."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

COLOURS: Final = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#0072B2", "#D55E00", "#F0E442")
"""Okabe and Ito's, told apart by the colour-blind."""

STYLE: Final = """
.picture text{font:12px system-ui,"DejaVu Sans",sans-serif;fill:currentColor}
.picture .mid{text-anchor:middle}
.picture .end{text-anchor:end}
.picture .small{font-size:11px;opacity:.8}
.picture .line{stroke:currentColor;fill:none;stroke-opacity:.35}
.picture .edge{stroke:currentColor;stroke-width:.6;stroke-opacity:.6}
.picture .strong{stroke:currentColor;stroke-width:2.5;fill:none}
.picture .lane{fill:currentColor;fill-opacity:.07}
.picture .pin{fill:currentColor;fill-opacity:.18}
.strata .figures{display:flex;flex-wrap:wrap;gap:0 2rem}
.strata .figures figcaption{width:0;min-width:100%}
"""
"""Both modes: everything that is no data has the colour of the text around the picture."""


def picture(body: Iterable[str], *, width: float, height: float, title: str, standalone: bool = False) -> str:
    """Return an SVG element of its parts; `title` is read aloud. standalone: a document that has its own style."""
    style = (
        f"<style>{STYLE}svg{{color:#1a1a1a;background:#fff}}"
        "@media (prefers-color-scheme:dark){svg{color:#e8e8e8;background:#15171a}}</style>"
        if standalone
        else ""
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" role="img" viewBox="0 0 {n(width)} {n(height)}" '
        f'width="{n(width)}" height="{n(height)}"><title>{safe(title)}</title>{style}{"".join(body)}</svg>'
    )


def ink_on(fill: str) -> str:
    """Return the colour of words on one of ours: black, but on the dark blue."""
    return "#fff" if fill == COLOURS[4] else "#000"


def text(x: float, y: float, words: str, css: str = "") -> str:
    """Return a line of text."""
    return f'<text x="{n(x)}" y="{n(y)}" class="{css}">{safe(words)}</text>'


def rect(
    x: float, y: float, width: float, height: float, *, fill: str = "", css: str = "", title: str = ""
) -> str:
    """Return a rectangle; `title` is shown where a pointer rests on it."""
    look = f' fill="{fill}"' if fill else ""
    inside = f"<title>{safe(title)}</title>" if title else ""
    return (
        f'<rect x="{n(x)}" y="{n(y)}" width="{n(max(width, 0.0))}" height="{n(height)}" class="{css}"{look}>'
        f"{inside}</rect>"
    )


def fitting(words: str, room: float) -> str:
    """Return a text cut to a room [px], by seven pixels a letter."""
    most = max(1, int(room / 7))
    return words if len(words) <= most else f"{words[: most - 1]}…"


def n(value: float) -> str:
    """Write a coordinate: a tenth of a pixel is enough."""
    return f"{value:.1f}".removesuffix(".0")


def safe(words: str) -> str:
    """Return a text for HTML and SVG, without what is not printable."""
    return escape("".join(letter if letter.isprintable() else "?" for letter in words))
