"""Lanes of threads that wait for a CPU, one a pool, on one time axis; findings stand where they were worst."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from strata.pictures.svg import COLOURS, fitting, n, picture, rect, text
from strata.units import show_count, show_time

_CAUSES: Final = {
    "woken": ("after a wakeup", COLOURS[1]),
    "preempted": ("after preemption", COLOURS[5]),
    "yielded": ("after a yield", COLOURS[3]),
}
_LEFT: Final = 200.0
_WIDTH: Final = 1100.0
_SPAN: Final = _WIDTH - _LEFT - 10
_LANE: Final = 46.0
_GAP: Final = 10.0
_TOP: Final = 62.0
_NUMBER_ROWS: Final = 2
_TICKS: Final = 5


def delay_lanes(report: Mapping[str, Any], *, standalone: bool = False) -> str:
    """Draw a host report by its `lanes`, `findings` and `wall_ms`.

    A lane is full where all that ever waited at once wait, and at least one thread; the label says how many.
    """
    lanes, wall_ms = report["lanes"], report["wall_ms"]
    body, floor = [*_legend()], _TOP + len(lanes) * (_LANE + _GAP)
    for number, lane in enumerate(lanes):
        body += _lane(lane, _TOP + number * (_LANE + _GAP))
    body += _pins(report, floor)
    for tick in range(_TICKS + 1):
        x = _LEFT + _SPAN * tick / _TICKS
        css = "end" if tick == _TICKS else "mid" if tick else ""
        body.append(text(x, floor + 14, show_time(wall_ms / 1e3 * tick / _TICKS), css))
    title = f"threads of {len(lanes)} pools that wait for a CPU, over {show_time(wall_ms / 1e3)}"
    return picture(body, width=_WIDTH, height=floor + 22, title=title, standalone=standalone)


def _legend() -> Iterator[str]:
    yield text(0, 14, "threads that wait")
    x = _LEFT
    for words, colour in _CAUSES.values():
        yield rect(x, 4, 12, 12, fill=colour, css="edge")
        yield text(x + 17, 14, words, "small")
        x += 40 + 7 * len(words)
    yield text(x, 14, "▼ a finding, where it was worst", "small")


def _lane(lane: Mapping[str, Any], top: float) -> Iterator[str]:
    layers = [lane[cause] for cause in _CAUSES]
    most = max(map(sum, zip(*layers, strict=True)), default=0.0)
    yield text(0, top + 11, fitting(lane["pool"], _LEFT - 8))
    threads = f"{show_count(lane['threads'])} thread{'s' if lane['threads'] > 1 else ''}"
    yield text(0, top + 26, f"{threads} waited {show_time(lane['waited_ms'] / 1e3)}", "small")
    yield text(0, top + 40, f"{_many(most)} at once, longest {show_time(lane['longest_ms'] / 1e3)}", "small")
    yield rect(_LEFT, top, _SPAN, _LANE, css="lane")
    low = [0.0] * len(layers[0])
    for (words, colour), layer in zip(_CAUSES.values(), layers, strict=True):
        high = [below + value / max(most, 1.0) for below, value in zip(low, layer, strict=True)]
        if path := _area(low, high, top):
            yield f'<path fill="{colour}" d="{path}"><title>{words}</title></path>'
        low = high


def _area(low: Sequence[float], high: Sequence[float], top: float) -> str:
    """Return bars from low to high, shares of a lane's height; like neighbours are one."""
    step, column, path = _SPAN / len(low), 0, ""
    bars = [(round(_LANE * below, 1), round(_LANE * above, 1)) for below, above in zip(low, high, strict=True)]
    for (below, above), same in groupby(bars):
        count = len(list(same))
        if above > below:
            x = _LEFT + column * step
            path += f"M{n(x)} {n(top + _LANE - above)}h{n(count * step)}v{n(above - below)}H{n(x)}z"
        column += count
    return path


def _many(count: float) -> str:
    return f"{count:.1f}".removesuffix(".0") if count < 10 else show_count(count)


def _pins(report: Mapping[str, Any], floor: float) -> Iterator[str]:
    """Mark findings by number, those of one moment together; in a second row where the first has no room."""
    numbers: dict[tuple[float, float], list[int]] = {}
    for number, finding in enumerate(report["findings"], 1):
        if finding["worst_ms"] is not None:
            begin_ms, end_ms = finding["worst_ms"]
            numbers.setdefault((begin_ms, end_ms), []).append(number)
    scale, ends = _SPAN / max(report["wall_ms"], 1e-9), [0.0] * _NUMBER_ROWS
    for (begin_ms, end_ms), here in sorted(numbers.items()):
        x, width = _LEFT + begin_ms * scale, max((end_ms - begin_ms) * scale, 2.0)
        tokens = ", ".join(f"{number} {report['findings'][number - 1]['token']}" for number in here)
        shown = "▼" + ",".join(map(str, here))
        row = next((row for row, end in enumerate(ends) if end <= x), min(range(len(ends)), key=ends.__getitem__))
        ends[row] = x + 8 * len(shown)
        yield rect(x, _TOP - 4, width, floor - _TOP, css="pin", title=tokens)
        yield text(min(x - 4, _WIDTH - 8 * len(shown)), _TOP - 10 - 14 * row, shown, "small")
