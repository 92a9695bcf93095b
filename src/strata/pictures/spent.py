"""Where the step of each plan goes: computing, bubbles, the WAN, gradients; one bar a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from strata.pictures.svg import COLOURS, fitting, picture, rect, text
from strata.units import show_time

_PARTS: Final = {
    "compute": ("computing", COLOURS[0]),
    "bubble": ("pipeline bubble", "#8886"),
    "wan": ("waiting for the WAN", COLOURS[5]),
    "sync": ("gradient exchange", COLOURS[3]),
}
_LEFT: Final = 300.0
_WIDTH: Final = 900.0
_ROW: Final = 26.0


def spent_bars(plans: Sequence[Mapping[str, Any]], *, standalone: bool = False) -> str:
    """Draw plans by their `rank`, `name`, `step_time_s` and `breakdown_s`; without one a bar is grey."""
    longest = max((plan["step_time_s"] for plan in plans), default=1.0)
    scale = (_WIDTH - _LEFT - 90) / longest
    body, y = [], 8.0
    x = _LEFT
    for words, colour in _PARTS.values():
        body += [rect(x, y, 12, 12, fill=colour, css="edge"), text(x + 17, y + 10, words, "small")]
        x += 40 + 7 * len(words)
    y += 24
    for plan in plans:
        body.append(text(_LEFT - 8, y + 15, fitting(f"{plan['rank']}: {plan['name']}", _LEFT - 16), "end"))
        x = _LEFT
        for part, (words, colour) in _PARTS.items():
            time_s = plan.get("breakdown_s", {}).get(part, 0.0)
            share = time_s / plan["step_time_s"]
            title = f"{words}: {show_time(time_s)}, {share:.0%} of the step"
            if time_s > 0:
                body.append(rect(x, y, time_s * scale, _ROW - 6, fill=colour, css="edge", title=title))
            if time_s * scale > 40:
                body.append(f'<g color="#000">{text(x + time_s * scale / 2, y + 14, f"{share:.0%}", "mid")}</g>')
            x += time_s * scale
        if not plan.get("breakdown_s"):
            body.append(rect(_LEFT, y, plan["step_time_s"] * scale, _ROW - 6, css="lane"))
        body.append(text(_LEFT + plan["step_time_s"] * scale + 6, y + 14, show_time(plan["step_time_s"])))
        y += _ROW
    title = "; ".join(f"{plan['name']}: a step of {show_time(plan['step_time_s'])}" for plan in plans)
    return picture(body, width=_WIDTH, height=y + 6, title=title, standalone=standalone)
