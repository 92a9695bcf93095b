"""A replay as a picture: requests on each pipeline over time, stacked, and those that wait, as a line above."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from strata.pictures.svg import COLOURS, n, safe, text
from strata.pictures.svg import picture as drawn
from strata.serving.replay.record import QueueSample
from strata.units import show_time

_WIDTH: Final = 1200
_HEIGHT: Final = 420
_LEFT: Final = 70
_TOP: Final = 60
_BOTTOM: Final = 40


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
        return [f"{n(x(g.at_s))},{n(y(count))}" for g, count in zip(queue_samples, counts, strict=True)]

    body = [
        text(_LEFT, 24, title),
        text(_LEFT, 44, f"requests on {len(pipelines)} pipelines (areas) and waiting (line above)", "small"),
    ]
    below = [0.0] * len(queue_samples)
    for number, stages in enumerate(pipelines):
        above = [low + glance.running.get(stages, 0) for low, glance in zip(below, queue_samples, strict=True)]
        edge = points(above) + points(below)[::-1]
        name, colour = safe(" > ".join(stage.node_id for stage in stages)), COLOURS[number % len(COLOURS)]
        body.append(
            f'<polygon class="edge" fill="{colour}" points="{" ".join(edge)}"><title>{name}</title></polygon>'
        )
        below = above
    line = points([low + glance.waiting for low, glance in zip(below, queue_samples, strict=True)])
    body.append(f'<polyline class="strong" points="{" ".join(line)}"/>')
    body.append(f'<path class="line" d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - 20}"/>')
    for part in range(5):
        count, at_s = most * part / 4, end_s * part / 4
        body.append(text(_LEFT - 6, y(count) + 4, f"{count:g}", "end"))
        body.append(text(x(at_s), _HEIGHT - _BOTTOM + 18, show_time(at_s), "mid"))
    return drawn(body, width=_WIDTH, height=_HEIGHT, title=title, standalone=True)
