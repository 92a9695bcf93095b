"""Plans as points: the time of a step against what it costs, or how busy it keeps the devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from strata.pictures.svg import COLOURS, n, picture, rect, safe, text
from strata.units import show_time, show_usd

_WIDTH: Final = 560.0
_HEIGHT: Final = 340.0
_LEFT: Final = 70.0
_BOTTOM: Final = 46.0

Axis = Literal["cost_usd_per_mtoken", "utilization"]
_AXES: Final = {"cost_usd_per_mtoken": "money [$/Mtoken]", "utilization": "utilisation"}


def plan_points(
    plans: Sequence[Mapping[str, Any]],
    *,
    axis: Axis,
    chosen: str = "",
    reasons: Mapping[str, str] = {},
    standalone: bool = False,
) -> str:
    """Draw plans that have both figures, `step_time_s` across and `axis` up; the chosen one is filled.

    reasons: why plans were not chosen, by name.
    """
    known = [plan for plan in plans if plan.get(axis) is not None and plan.get("step_time_s")]
    xs: list[float] = [plan["step_time_s"] for plan in known]
    ys: list[float] = [plan[axis] for plan in known]
    if not known:
        words = f"no plan has a figure for {_AXES[axis]}"
        return picture([text(12, 20, words)], width=_WIDTH, height=32, title=words, standalone=standalone)
    x_start, x_end = _ends(xs, 1.08)
    y_start, y_end = (0.0, 1.0) if axis == "utilization" else _ends([*ys, 1e-12], 1.15)
    body = [rect(_LEFT, 22, _WIDTH - _LEFT - 12, _HEIGHT - _BOTTOM - 22, css="lane")]

    def x(time_s: float) -> float:
        return _LEFT + (time_s - x_start) / (x_end - x_start) * (_WIDTH - _LEFT - 12)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - y_start) / (y_end - y_start) * (_HEIGHT - _BOTTOM - 22)

    for i in range(5):
        time_s, value = (start + (end - start) * i / 4 for start, end in ((x_start, x_end), (y_start, y_end)))
        anchor = "end" if i == 4 else "mid"
        shown = f"{value:.0%}" if axis == "utilization" else show_usd(value)
        body += [
            text(x(time_s), _HEIGHT - _BOTTOM + 16, show_time(time_s) if time_s else "0", anchor),
            text(_LEFT - 6, y(value) + 4, shown, "end"),
        ]
    body += [text(_WIDTH / 2, _HEIGHT - 8, "time of a step", "mid"), text(4, 12, _AXES[axis], "small")]
    for plan in sorted(known, key=lambda plan: plan["name"] == chosen):
        is_chosen = plan["name"] == chosen
        shown = f"{plan[axis]:.0%} busy" if axis == "utilization" else f"{show_usd(plan[axis])}/Mtoken"
        words = f"{plan['name']}: {show_time(plan['step_time_s'])}, {shown}"
        words += f"; not chosen: {reasons[plan['name']]}" if plan["name"] in reasons and not is_chosen else ""
        fill = COLOURS[1] if is_chosen else COLOURS[0]
        body.append(
            f'<circle cx="{n(x(plan["step_time_s"]))}" cy="{n(y(plan[axis]))}" r="{8 if is_chosen else 5}" '
            f'fill="{fill}" class="{"strong" if is_chosen else "edge"}" style="fill:{fill}">'
            f"<title>{safe(words)}</title></circle>"
        )
        if is_chosen:
            at = x(plan["step_time_s"])
            left, css = (-12, "small end") if at > _WIDTH - 70 else (12, "small")
            body.append(text(at + left, y(plan[axis]) - 9, "chosen", css))
    title = f"{len(known)} plans, the time of a step against {_AXES[axis]}"
    return picture(body, width=_WIDTH, height=_HEIGHT, title=title, standalone=standalone)


def _ends(values: Sequence[float], room: float) -> tuple[float, float]:
    """Return where an axis starts and ends: at zero, but where that would leave all plans on one spot."""
    low, high = min(values), max(values)
    if low < 0.75 * high or low == high:
        return 0.0, room * high
    return low - 0.5 * (high - low), high + 0.5 * (high - low)
