"""Devices of a fleet as a heat map: a square a device, or a node in a large fleet; its colour is the ACU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from strata.pictures.svg import fitting, n, picture, safe, text

_LEFT: Final = 220.0
_WIDTH: Final = 1100.0
_MOST_DEVICES: Final = 5000
"""Drawn one by one; of a larger fleet nodes are."""
_MOST_ROWS: Final = 160


@dataclass(frozen=True, slots=True)
class _Grid:
    """Squares in rows. devices: of a square; group: squares that stand together, as the devices of a node do."""

    square: float
    devices: int
    group: int

    @property
    def columns(self) -> int:
        group = self.group * self.square + 3
        return max(1, int((_WIDTH - _LEFT) / group)) * self.group

    def x(self, column: int) -> float:
        return _LEFT + column * self.square + 3 * (column // self.group)


def acu_map(domains: Sequence[Mapping[str, Any]], *, standalone: bool = False) -> str:
    """Draw domains by `name`, `accelerator`, `acu`, `num_devices`, `devices_per_node` and `num_free` (or None).

    What is in use is drawn hollow: of a large fleet, nodes none of whose devices is free. 160 rows at most: of a
    larger fleet the rest is said in words.
    """
    has_nodes = sum(domain["num_devices"] for domain in domains) > _MOST_DEVICES
    most = max((domain["acu"] or 0.0 for domain in domains), default=1.0) or 1.0
    body, y, rows = [], 8.0, 0
    for domain in domains:
        per_node = domain["devices_per_node"]
        grid = _Grid(8.0, per_node, 10) if has_nodes else _Grid(14.0, 1, min(per_node, 32))
        acu = "ACU not known" if domain["acu"] is None else f"{domain['acu']:.0f} ACU each"
        body.append(text(0, y + 12, fitting(domain["name"], _LEFT - 8)))
        body.append(text(0, y + 25, fitting(f"{acu}, {domain['accelerator']}", _LEFT - 8), "small"))
        used = 0 if domain.get("num_free") is None else domain["num_devices"] - domain["num_free"]
        count = -(-domain["num_devices"] // grid.devices)
        shown = min(count, max(1, _MOST_ROWS - rows) * grid.columns)
        full = used // grid.devices
        title = f"{domain['name']}: {domain['num_devices']} devices, {acu}" + (f", {used} in use" if used else "")
        fill = _colour((domain["acu"] or 0.0) / most)
        body.append(
            f'<path d="{_squares(grid, min(full, shown), shown, y)}" fill="{fill}" class="edge">'
            f"<title>{safe(title)}</title></path>"
        )
        body.append(f'<path d="{_squares(grid, 0, min(full, shown), y)}" fill="none" class="edge"/>')
        height = -(-shown // grid.columns) * grid.square
        rows += -(-shown // grid.columns)
        if shown < count:
            left = domain["num_devices"] - shown * grid.devices
            body.append(text(_LEFT, y + height + 11, f"and {left} more devices", "small"))
            height += 14
        y += max(height, 28.0) + 8
    what = "nodes" if has_nodes else "devices"
    title = f"{what} of {len(domains)} domains, a square each, by ACU; hollow ones are in use"
    return picture(body, width=_WIDTH, height=y + 4, title=title, standalone=standalone)


def _squares(grid: _Grid, first: int, end: int, y: float) -> str:
    side = n(grid.square - 2)
    return "".join(
        f"M{n(grid.x(i % grid.columns))} {n(y + i // grid.columns * grid.square)}h{side}v{side}h-{side}z"
        for i in range(first, end)
    )


def _colour(share: float) -> str:
    """Return a colour of one hue that is darker for more: it is read without telling hues apart."""
    return f"hsl(202 70% {round(82 - 47 * min(max(share, 0.0), 1.0))}%)"
