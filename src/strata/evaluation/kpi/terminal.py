"""The answer of `strata kpi` on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from strata.evaluation.kpi.kpi import OF_THE_POLICY
from strata.tables import Shown, rows


def show(data: Mapping[str, Any]) -> Shown:
    """Yield the table of an answer and its guards, for people."""
    body = [
        (
            row["name"],
            _shown(row["value"], row["name"]),
            f"{_SIGNS[row['sense']]} {_shown(row['target'], row['name'])}".strip(),
            _met(row),
            _interval(row),
            str(row["instances"]),
        )
        for row in data["kpis"]
    ]
    yield rows(("row", "value", "target", "met", "95 % interval", "n"), body, right=(1, 2, 4, 5))
    beside = [(row["name"], *_beside(row)) for row in data["kpis"] if row["beside"]]
    if beside:
        headers = ("the same figure of", "hi_ppo", "untrained", "never", "no network", "strongest")
        yield rows(headers, beside, right=range(1, 6))
    for row in data["kpis"]:
        weak = row["guards"].get("passes_only_against")
        if weak:
            missed = ", ".join(row["guards"].get("misses_against", ())) or "stronger ones"
            yield f"{row['name']}: met against {', '.join(weak)}; not against {missed}"
    policy = data["policy"]["file"] or "none: the safe rule stands in"
    yield f"policy {policy}; {data['elapsed_s']:.0f} s; guards of every row: -o json, docs/kpi.md"


_SIGNS: Final = {"at least": ">=", "at most": "<=", "below": "<", "is": ""}


def _met(row: Mapping[str, Any]) -> str:
    return ("yes, without, too" if row["met_without"] else "yes") if row["met"] else "NO"


def _beside(row: Mapping[str, Any]) -> list[str]:
    """Return the figure of the policy, of what it is without something, and of the strongest baseline by name."""
    beside, strongest = row["beside"], row["strongest"]
    own = [row["value"], *(beside.get(name) for name in OF_THE_POLICY)]
    last = f"{_shown(beside[strongest], row['name'])} {strongest}" if strongest else "-"
    return [*(_shown(value, row["name"]) for value in own), last]


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
