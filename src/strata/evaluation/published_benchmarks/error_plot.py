"""The errors of predicted step times as a picture: one point a run, over the number of its accelerators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from strata.files import write_text

_WIDTH, _HEIGHT, _LEFT, _TOP, _LINE = 720, 360, 60, 40, 20
_LARGEST_ERROR: Final = 0.6
"""Errors beyond it are drawn at the edge."""

_SHAPES: Final = (
    ("#0072B2", '<circle r="5"/>'), ("#D55E00", '<path d="M-5 5L0 -5L5 5Z"/>'),
    ("#009E73", '<path d="M-5 -5H5V5H-5Z"/>'), ("#CC79A7", '<path d="M0 -6L6 0L0 6L-6 0Z"/>'),
    ("#E69F00", '<path d="M-5 -5L0 5L5 -5Z"/>'), ("#56B4E9", '<path d="M-5 -2H5V2H-5Z"/>'),
    ("#F0E442", '<path d="M-2 -5V5H2V-5Z"/>'), ("#444444", '<path d="M-5 0L5 -5V5Z"/>'),
)  # fmt: skip
"""A colour of Okabe and Ito's palette and a shape for each source, so that they differ without colours too."""


@dataclass(frozen=True, slots=True)
class PlottedRun:
    """One point: a run's source, its number of accelerators, and the relative error of its predicted step time."""

    source: str
    num_devices: int
    error: float


def write_plot(path: str | Path, runs: Sequence[PlottedRun]) -> None:
    """Write the picture. Raises UsageError where the file cannot be written."""
    sources = list(dict.fromkeys(run.source for run in runs))
    decades = range(math.ceil(math.log10(max([10, *(run.num_devices for run in runs)]))) + 1)
    across = (_WIDTH - 2 * _LEFT) / decades[-1]
    half = _HEIGHT / 2

    def place(run: PlottedRun) -> tuple[float, float]:
        error = max(-_LARGEST_ERROR, min(_LARGEST_ERROR, run.error))
        return _LEFT + across * math.log10(run.num_devices), _TOP + half * (1 - error / _LARGEST_ERROR)

    parts = ['<rect width="100%" height="100%" fill="#fff"/>']
    for percent in (-60, -30, -15, 0, 15, 30, 60):
        y = _TOP + half * (1 - percent / 100 / _LARGEST_ERROR)
        parts.append(f'<path d="M{_LEFT} {y:g}H{_WIDTH - _LEFT}" stroke="#{"000" if percent == 0 else "bbb"}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:g}" text-anchor="end">{percent:+d} %</text>')
    parts += [
        f'<text x="{_LEFT + across * n:g}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{10**n:,}</text>'
        for n in decades
    ]
    parts.append(f'<text x="{_LEFT}" y="20">error of the predicted step time, by number of accelerators</text>')
    for run in runs:
        x, y = place(run)
        parts.append(_mark(sources.index(run.source), x, y))
    for index, source in enumerate(sources):
        y = _TOP + _HEIGHT + 44 + _LINE * (index // 4)
        x = _LEFT + (index % 4) * (_WIDTH - 2 * _LEFT) / 4
        parts += [_mark(index, x, y), f'<text x="{x + 12:g}" y="{y + 4:g}">{escape(source)}</text>']
    height = _TOP + _HEIGHT + 44 + _LINE * (1 + (len(sources) - 1) // 4)
    write_text(
        path,
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        'font-family="system-ui,sans-serif" font-size="12">\n<title>Errors of predicted step times</title>\n'
        + "\n".join(parts)
        + "\n</svg>\n",
    )


def _mark(index: int, x: float, y: float) -> str:
    colour, shape = _SHAPES[index % len(_SHAPES)]
    return f'<g transform="translate({x:.1f} {y:.1f})" fill="{colour}" stroke="#000">{shape}</g>'
