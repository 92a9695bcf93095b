"""Devices of a fleet as a heat map: a row a node, a square a device, its colour the ACU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from strata.pictures.svg import fitting, n, picture, safe, text

_SQUARE: Final = 14.0
_LEFT: Final = 200.0
_COLUMNS: Final = 64
_MOST_ROWS: Final = 120


def acu_map(domains: Sequence[Mapping[str, Any]], *, standalone: bool = False) -> str:
    """Draw domains by `name`, `accelerator`, `acu`, `num_devices`, `devices_per_node` and `num_free` (or None).

    Whole nodes stand side by side in rows of 64 devices; devices in use are drawn hollow. 120 rows at most: of a
    larger domain the rest is said in words.
    """
    most = max((domain["acu"] or 0.0 for domain in domains), default=1.0) or 1.0
    body, y, rows = [], 8.0, 0
    for domain in domains:
        body.append(text(0, y + 12, fitting(domain["name"], _LEFT - 8)))
        acu = "ACU not known" if domain["acu"] is None else f"{domain['acu']:.0f} ACU each"
        words = f"{acu}, {domain['accelerator']}"
        body.append(text(0, y + 25, fitting(words, _LEFT - 8), "small"))
        per_node = min(domain["devices_per_node"], _COLUMNS)
        columns = max(1, _COLUMNS // per_node) * per_node
        used = 0 if domain.get("num_free") is None else domain["num_devices"] - domain["num_free"]
        fill = _colour((domain["acu"] or 0.0) / most)
        needed = -(-domain["num_devices"] // columns)
        shown = min(domain["num_devices"], max(1, min(needed, _MOST_ROWS - rows)) * columns)
        free_path: list[str] = []
        used_path: list[str] = []
        for i in range(shown):
            column, row = i % columns, i // columns
            x = _LEFT + column * _SQUARE + 3 * (column // per_node)
            (used_path if i < used else free_path).append(f"M{n(x)} {n(y + row * _SQUARE)}h12v12h-12z")
        title = f"{domain['name']}: {domain['num_devices']} devices, {acu}"
        title += f", {used} in use" if used else ""
        body.append(f'<path d="{"".join(free_path)}" fill="{fill}"><title>{safe(title)}</title></path>')
        body.append(f'<path d="{"".join(used_path)}" fill="none" stroke="{fill}" stroke-width="1.5"/>')
        height = -(-shown // columns) * _SQUARE
        rows += -(-shown // columns)
        if shown < domain["num_devices"]:
            body.append(text(_LEFT, y + height + 11, f"and {domain['num_devices'] - shown} more", "small"))
            height += 14
        y += max(height, 2 * _SQUARE) + 8
    title = f"devices of {len(domains)} domains by ACU; hollow ones are in use"
    width = _LEFT + _COLUMNS * _SQUARE + 3 * _COLUMNS
    return picture(body, width=width, height=y + 4, title=title, standalone=standalone)


def _colour(share: float) -> str:
    """Return a colour of one hue that is darker for more: it is read without telling hues apart."""
    return f"hsl(202 70% {round(82 - 47 * min(max(share, 0.0), 1.0))}%)"
