"""Two plans of a what-if side by side, as people read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from strata.tables import Shown, rows
from strata.units import show_count, show_time, show_usd

NONE: Final = "-"

_FIGURES: Final[tuple[tuple[str, str, Callable[[Any], str]], ...]] = (
    ("tokens/s", "tokens_per_s", show_count),
    ("requests/s", "requests_per_s", "{:.3g}".format),
    ("within the goals", "goodput_per_s", "{:.3g}".format),
    ("decode", "decode_s", show_time),
    ("TTFT", "ttft_s", show_time),
    ("$/Mtoken", "cost_usd_per_mtoken", show_usd),
    ("$/Mtoken in goals", "goodput_usd_per_mtoken", show_usd),
)


def show_changes(data: dict[str, Any], figures: list[list[str]]) -> Shown:
    """Print what `strata whatif` says, in 80 columns: the settings, rows of figures, domains and reasons."""
    for change in data["changes"]:
        yield f"what if {change['path']}: {change['old']} -> {change['new']}"
    if not data["changes"]:
        yield "these settings change nothing: all is set to what it is"
    yield ""
    yield rows(["", "now", "what if", "change"], [*figures, *_domains(data)], right=(1, 2, 3))
    yield ""
    moved = data["difference"]
    for reason in moved["reasons_gone"]:
        yield f"- {reason['token']}: {reason['text']}"
    for reason in data["new"]["reasons"]:
        sign = "+" if reason in moved["reasons_appeared"] else " "
        yield f"{sign} {reason['token']}: {reason['text']}"
    yield data["text"]


def serving_figures(data: dict[str, Any]) -> list[list[str]]:
    """Return a row a figure of two serving plans: its name, how it is now, how it would be, and the change."""
    old, new = data["old"]["plan"], data["new"]["plan"]
    body = [["pipelines", *(str(len(side["pipelines"])) if side else NONE for side in (old, new)), ""]]
    for label, key, show in _FIGURES:
        values = [side and side["figures"][key] for side in (old, new)]
        ratio = data["difference"][f"{key}_ratio"]
        shown = [NONE if value is None else show(value) for value in values]
        body.append([label, *shown, "" if ratio is None else f"{ratio:.2f}x"])
    return body


def points(difference: float | None) -> str:
    """Write a difference of two shares; "" where it would read zero."""
    return f"{100 * difference:+.1f} points" if difference and abs(difference) >= 0.0005 else ""


def _domains(data: dict[str, Any]) -> list[list[str]]:
    """Return a row a domain that either plan uses: its share of the work, and its devices."""
    body = []
    for name, sides in data["difference"]["domains"].items():
        old, new = sides["old"], sides["new"]
        if old is None or new is None:
            change = "joins" if old is None else "leaves"
        else:
            change = points(new["share"] - old["share"])
        body.append([name, _work(old), _work(new), change])
    return body


def _work(side: dict[str, Any] | None) -> str:
    if side is None:
        return NONE
    return f"{side['share']:.0%} on {side['num_devices']} GPU{'s' if side['num_devices'] > 1 else ''}"
