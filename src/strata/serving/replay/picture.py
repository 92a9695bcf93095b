"""A replay as a picture: requests on each pipeline over time, stacked, and those that wait, as a line above."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from strata.files import write_text
from strata.serving.replay.record import QueueSample
from strata.units import show_time

_WIDTH: Final = 1200
_HEIGHT: Final = 420
_LEFT: Final = 70
_TOP: Final = 60
_BOTTOM: Final = 40
_COLOURS: Final = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#0072B2", "#D55E00", "#F0E442")
"""Okabe and Ito's, told apart by the colour-blind; repeated, with white lines between neighbours."""
_STYLE: Final = """
.strata text{font-family:system-ui,"DejaVu Sans",sans-serif;font-size:12px;fill:#1a1a1a}
.strata .title{font-size:16px;font-weight:bold}
.strata .end{text-anchor:end}
.strata .mid{text-anchor:middle}
.strata .paper{fill:#fff}
.strata .area{stroke:#fff;stroke-width:.6}
.strata .wait{fill:none;stroke:#000;stroke-width:2}
.strata .axis{stroke:#888;fill:none}
@media (prefers-color-scheme:dark){
.strata text{fill:#e8e8e8}
.strata .paper{fill:#15171a}
.strata .wait{stroke:#fff}
}
"""


def write_picture(queue_samples: Sequence[QueueSample], path: str | Path, *, title: str) -> None:
    """Write the picture as SVG; a path that ends in `.gz` is compressed."""
    write_text(path, picture(queue_samples, title=title))


def picture(queue_samples: Sequence[QueueSample], *, title: str) -> str:
    """Return the picture as an SVG document."""
    pipelines = sorted({stages for glance in queue_samples for stages in glance.running})
    most = max([1, *(glance.waiting + sum(glance.running.values()) for glance in queue_samples)])
    end_s = max([1e-9, *(glance.at_s for glance in queue_samples)])

    def x(at_s: float) -> float:
        return _LEFT + at_s / end_s * (_WIDTH - _LEFT - 20)

    def y(count: float) -> float:
        return _HEIGHT - _BOTTOM - count / most * (_HEIGHT - _TOP - _BOTTOM)

    def points(counts: list[float]) -> list[str]:
        return [f"{x(g.at_s):.1f},{y(count):.1f}" for g, count in zip(queue_samples, counts, strict=True)]

    body = [
        f'<rect class="paper" width="{_WIDTH}" height="{_HEIGHT}"/>',
        f'<text class="title" x="{_LEFT}" y="24">{escape(title)}</text>',
        f'<text x="{_LEFT}" y="44">requests on {len(pipelines)} pipelines (areas) and waiting (line above)</text>',
    ]
    below = [0.0] * len(queue_samples)
    for number, stages in enumerate(pipelines):
        above = [low + glance.running.get(stages, 0) for low, glance in zip(below, queue_samples, strict=True)]
        edge = points(above) + points(below)[::-1]
        name = escape(" > ".join(stage.node_id for stage in stages))
        colour = _COLOURS[number % len(_COLOURS)]
        body.append(
            f'<polygon class="area" fill="{colour}" points="{" ".join(edge)}"><title>{name}</title></polygon>'
        )
        below = above
    line = points([low + glance.waiting for low, glance in zip(below, queue_samples, strict=True)])
    body.append(f'<polyline class="wait" points="{" ".join(line)}"/>')
    body.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - 20}"/>')
    for part in range(5):
        count, at_s = most * part / 4, end_s * part / 4
        body.append(f'<text class="end" x="{_LEFT - 6}" y="{y(count) + 4:.1f}">{count:g}</text>')
        body.append(
            f'<text class="mid" x="{x(at_s):.1f}" y="{_HEIGHT - _BOTTOM + 18}">{escape(show_time(at_s))}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" class="strata" role="img">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>{''.join(body)}</svg>\n"
    )
