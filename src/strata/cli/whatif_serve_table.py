"""Two serving plans side by side, as people read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from strata.tables import Shown, rows
from strata.units import show_count, show_time, show_usd

_FIGURES: Final[tuple[tuple[str, str, Callable[[Any], str]], ...]] = (
    ("tokens/s", "tokens_per_s", show_count),
    ("requests/s", "requests_per_s", "{:.3g}".format),
    ("within the goals", "goodput_per_s", "{:.3g}".format),
    ("decode", "decode_s", show_time),
    ("TTFT", "ttft_s", show_time),
    ("$/Mtoken", "cost_usd_per_mtoken", show_usd),
    ("$/Mtoken in goals", "goodput_usd_per_mtoken", show_usd),
)


def serving_changes(data: dict[str, Any]) -> Shown:
    """Print what `strata whatif` says of a serving job, in 80 columns."""
    for change in data["changes"]:
        yield f"what if {change['path']}: {change['old']} -> {change['new']}"
    if not data["changes"]:
        yield "these settings change nothing: all is set to what it is"
    yield ""
    old, new = data["old"]["plan"], data["new"]["plan"]
    body = [["pipelines", *(str(len(side["pipelines"])) if side else "-" for side in (old, new)), ""]]
    for label, key, show in _FIGURES:
        values = [side and side["figures"][key] for side in (old, new)]
        ratio = data["difference"][f"{key}_ratio"]
        shown = ["-" if value is None else show(value) for value in values]
        body.append([label, *shown, "" if ratio is None else f"{ratio:.2f}x"])
    for name, sides in data["difference"]["domains"].items():
        moved = "" if all(sides.values()) else "leaves" if sides["new"] is None else "joins"
        body.append([name, *(_share(sides[side]) for side in ("old", "new")), moved])
    yield rows(["", "now", "what if", "change"], body, right=(1, 2, 3))
    yield ""
    for reason in data["difference"]["reasons_gone"]:
        yield f"- {reason['token']}: {reason['text']}"
    for reason in data["new"]["reasons"]:
        sign = "+" if reason in data["difference"]["reasons_appeared"] else " "
        yield f"{sign} {reason['token']}: {reason['text']}"
    yield data["text"]


def _share(side: dict[str, Any] | None) -> str:
    if side is None:
        return "-"
    return f"{side['share']:.0%} on {side['num_devices']} GPU{'s' if side['num_devices'] > 1 else ''}"
