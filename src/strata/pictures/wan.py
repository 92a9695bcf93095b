"""Domains and the links between them, as a ring; what a plan uses is drawn strongly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from strata.pictures.svg import COLOURS, fitting, n, picture, safe, text
from strata.units import show_bandwidth, show_time

_WIDTH: Final = 860.0
_NARROW: Final = 340.0
"""Of one or two domains, which stand below each other: it fits a phone."""
_HEIGHT: Final = 460.0
_LOW: Final = 260.0
"""Of one or two domains."""
IDLE: Final = "#9aa3ad"
"""Of a domain of which nothing is used."""
_MOST_LINKS: Final = 400
"""Drawn, the fastest first: of 32 domains all would be a black disc."""

Point = tuple[float, float]


def wan_map(
    domains: Sequence[Mapping[str, Any]],
    links: Sequence[Mapping[str, Any]],
    *,
    used: Mapping[str, int] = {},
    hops: Sequence[tuple[str, str]] = (),
    standalone: bool = False,
) -> str:
    """Draw domains and links.

    domains: `name`, `accelerator`, `num_devices`. links: `source`, `dest`, `bandwidth_bytes_per_s`, `latency_s`
    and, where it was measured, `factor`: its level as a share of nominal; of a scheduler also `load`, the share of
    it that jobs fill, and `expected_factor`. used: devices of a plan by domain; hops:
    the pairs between which its pipelines pass activations.
    """
    width, height = (_WIDTH, _HEIGHT) if len(domains) > 2 else (_NARROW, _LOW)
    places = _ring([domain["name"] for domain in domains], width, height)
    fastest = max((link["bandwidth_bytes_per_s"] for link in links), default=1.0)
    shown = sorted(links, key=lambda link: -link["bandwidth_bytes_per_s"])[:_MOST_LINKS]
    middle = width / 2, height / 2
    body = [*_links(shown, places, fastest), *_hops(hops, places), *_domains(domains, places, used, middle)]
    if len(shown) < len(links):
        body.append(text(8, height - 8, f"{len(links) - len(shown)} slower links are not drawn", "small"))
    title = f"{len(domains)} domains and {len(links)} links"
    if used:
        title += "; used: " + ", ".join(f"{name} ({count} devices)" for name, count in used.items())
    return picture(body, width=width, height=height, title=title, standalone=standalone)


def live_map(
    domains: Sequence[Mapping[str, Any]], links: Sequence[Mapping[str, Any]], *, standalone: bool = False
) -> str:
    """Draw domains and links as the scheduler's API has them now: what is in use is filled."""
    places = [{**domain, "accelerator": "devices"} for domain in domains]
    used = {domain["name"]: domain["num_used"] for domain in domains if domain["num_used"]}
    return wan_map(places, links, used=used, standalone=standalone)


def _ring(names: Sequence[str], width: float, height: float) -> dict[str, Point]:
    places = {}
    for i, name in enumerate(names):
        angle = 2 * math.pi * i / len(names) - math.pi / 2
        places[name] = (width / 2 + 215 * math.cos(angle), height / 2 + (height / 2 - 65) * math.sin(angle))
    return places


def _links(links: Sequence[Mapping[str, Any]], places: Mapping[str, Point], fastest: float) -> Iterator[str]:
    for link in links:
        source, dest = places.get(link["source"]), places.get(link["dest"])
        if source is None or dest is None:
            continue
        share = link["bandwidth_bytes_per_s"] / fastest
        factor = link.get("factor")
        words = (
            f"{link['source']} to {link['dest']}: {show_bandwidth(link['bandwidth_bytes_per_s'])}, "
            f"{show_time(link['latency_s'])} one way"
        )
        look = 'stroke="currentColor"'
        if factor is not None:
            words += f", {factor:.0%} of nominal"
            if link.get("load"):
                words += f", {link['load']:.0%} in use"
                look = f'stroke="{COLOURS[4]}"'
            if factor < 0.7:
                look = f'stroke="{COLOURS[5]}" stroke-dasharray="5 3"'
            if "expected_factor" in link:
                words += f", {link['expected_factor']:.0%} expected in {show_time(link['expected_in_s'])}"
        yield (
            f'<path d="{_arc(source, dest)}" fill="none" {look} stroke-opacity="{0.2 + 0.5 * share:.2f}" '
            f'stroke-width="{n(0.6 + 3 * math.sqrt(share))}"><title>{safe(words)}</title></path>'
        )


def _arc(source: Point, dest: Point) -> str:
    """Return a curve that bends to one side, so that both directions of a pair are seen."""
    (x0, y0), (x1, y1) = source, dest
    bend = 0.08
    x, y = (x0 + x1) / 2 - bend * (y1 - y0), (y0 + y1) / 2 + bend * (x1 - x0)
    return f"M{n(x0)} {n(y0)}Q{n(x)} {n(y)} {n(x1)} {n(y1)}"


def _hops(hops: Sequence[tuple[str, str]], places: Mapping[str, Point]) -> Iterator[str]:
    for source, dest in hops:
        if source in places and dest in places:
            words = f"activations go from {source} to {dest}, gradients back"
            yield (
                f'<path d="{_arc(places[source], places[dest])}" fill="none" stroke="{COLOURS[4]}" '
                f'stroke-width="4" stroke-opacity=".75"><title>{safe(words)}</title></path>'
            )


def _domains(
    domains: Sequence[Mapping[str, Any]], places: Mapping[str, Point], used: Mapping[str, int], middle: Point
) -> Iterator[str]:
    most = max((domain["num_devices"] for domain in domains), default=1)
    for domain in domains:
        name = domain["name"]
        x, y = places[name]
        radius = 7 + 13 * math.sqrt(domain["num_devices"] / most)
        devices = used.get(name, 0)
        fill = COLOURS[1] if devices else IDLE
        words = f"{name}: {domain['num_devices']} {domain['accelerator']}"
        words += f", {devices} used" if devices else ""
        yield (
            f'<circle cx="{n(x)}" cy="{n(y)}" r="{n(radius)}" fill="{fill}" class="edge">'
            f"<title>{safe(words)}</title></circle>"
        )
        if abs(x - middle[0]) > 100:  # beside it, where labels of neighbours and links leave room
            is_left = x < middle[0]
            x, first, anchor = x + (-1 if is_left else 1) * (radius + 6), y - 2, "end" if is_left else ""
        else:
            first = y - radius - 18 if y < middle[1] else y + radius + 14
            anchor = "mid"
        yield text(x, first, fitting(name, 170), anchor)
        count = f"{devices} of {domain['num_devices']}" if devices else str(domain["num_devices"])
        yield text(x, first + 13, fitting(f"{count} {domain['accelerator']}", 170), f"{anchor} small")
