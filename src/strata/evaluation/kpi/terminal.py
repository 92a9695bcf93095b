"""The answer of `strata kpi` on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from strata.tables import Shown, rows


def show(data: Mapping[str, Any]) -> Shown:
    """Yield the table of an answer and its guards, for people."""
    body = [
        (
            row["name"],
            _shown(row["value"], row["name"]),
            f"{_SIGNS[row['sense']]} {_shown(row['target'], row['name'])}".strip(),
            "yes" if row["met"] else "NO",
            _interval(row),
            str(row["instances"]),
        )
        for row in data["kpis"]
    ]
    yield rows(("row", "value", "target", "met", "95 % interval", "n"), body, right=(1, 2, 4, 5))
    for row in data["kpis"]:
        weak = row["guards"].get("passes_only_against")
        if weak:
            missed = ", ".join(row["guards"].get("misses_against", ())) or "stronger ones"
            yield f"{row['name']}: met against {', '.join(weak)}; not against {missed}"
    policy = data["policy"]["file"] or "none: the safe rule stands in"
    yield f"policy {policy}; {data['elapsed_s']:.0f} s; guards of every row: -o json, docs/kpi.md"


_SIGNS: Final = {"at least": ">=", "at most": "<=", "below": "<", "is": ""}


def _shown(value: float | str | None, name: str) -> str:
    """Return a value as people read it: seconds for names in _s, else a share."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if name.endswith("_s"):
        return f"{value:.3g} s"
    return f"{100 * value:.1f}%"


def _interval(row: Mapping[str, Any]) -> str:
    low, high = row["ci95"]
    if low is None and high is None:
        return "-"
    return f"{_shown(low, row['name'])}..{_shown(high, row['name'])}"
