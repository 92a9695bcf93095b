"""Which layers each node of a serving plan holds: a row a pipeline, like rows once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from strata.pictures.svg import COLOURS, fitting, ink_on, picture, rect, text
from strata.units import show_time

_LEFT: Final = 150.0
_WIDTH: Final = 900.0
_ROW: Final = 30.0
_MOST: Final = 40


def layer_ranges(pipelines: Sequence[Mapping[str, Any]], *, num_layers: int, standalone: bool = False) -> str:
    """Draw pipelines by their `stages` (`node`, `first`, `end`, `stage_s`) over the model's layers.

    Pipelines whose stages are of the same domains with the same layers are one row.
    """
    alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for pipeline in pipelines:
        key = tuple((s["node"].split("/")[0], s["first"], s["end"]) for s in pipeline["stages"])
        alike.setdefault(key, []).append(pipeline)
    rows = sorted(alike.values(), key=len, reverse=True)
    scale = (_WIDTH - _LEFT - 10) / max(num_layers, 1)
    colours: dict[str, str] = {}
    body, y = [], 6.0
    for like in rows[:_MOST]:
        first = like[0]
        count = f"{len(like)} pipelines" if len(like) > 1 else "1 pipeline"
        body.append(text(_LEFT - 8, y + 17, count, "end"))
        for stage in first["stages"]:
            domain = stage["node"].split("/")[0]
            colour = colours.setdefault(domain, COLOURS[len(colours) % len(COLOURS)])
            x, width = _LEFT + stage["first"] * scale, (stage["end"] - stage["first"]) * scale
            node = stage["node"] if len(like) == 1 else domain
            layers = f"layers {stage['first']} to {stage['end'] - 1}"
            title = f"{node}: {layers}, {show_time(stage['stage_s'])} a step"
            body.append(rect(x, y, width, _ROW - 6, fill=colour, css="edge", title=title))
            words = fitting(f"{node} {stage['first']}-{stage['end'] - 1}", width - 6)
            body.append(f'<g color="{ink_on(colour)}">{text(x + width / 2, y + 16, words, "mid")}</g>')
        y += _ROW
    if len(rows) > _MOST:
        body.append(text(_LEFT, y + 12, f"and {len(rows) - _MOST} other kinds of pipelines", "small"))
        y += 18
    title = f"{len(pipelines)} pipelines of {num_layers} layers"
    return picture(body, width=_WIDTH, height=y + 6, title=title, standalone=standalone)
