"""A timeline as a picture: one SVG file, no script, readable in light and dark and without colours.

Each kind has a colour (Okabe and Ito's palette, told apart by the colour-blind), a pattern and a letter. Lanes
with too many spans to tell apart are drawn as what share of each slice of time went to which kind.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from unicodedata import east_asian_width

from strata import units
from strata.bundled import bundled_text
from strata.files import write_text
from strata.pictures.svg import n, safe
from strata.simulate.timeline import Span, SpanKind, Timeline, gaps, is_stage, job_and_name


@dataclass(frozen=True, slots=True)
class _Look:
    letter: str
    word: str
    colour: str
    #: Strokes over the colour, in a tile of 6 x 6 pixels.
    strokes: str = ""


_LOOKS: Final = {
    SpanKind.FORWARD: _Look("F", "forward", "#56B4E9"),
    SpanKind.BACKWARD: _Look("B", "backward", "#E69F00", '<path d="M-1 7L7 -1M-1 1L1 -1M5 7L7 5"/>'),
    SpanKind.WEIGHT: _Look("W", "weight gradients", "#F0E442", '<path d="M0 0L6 6M0 6L6 0"/>'),
    SpanKind.UPDATE: _Look("U", "update", "#009E73", '<path d="M3 0V6"/>'),
    SpanKind.TRANSFER: _Look("T", "transfer", "#CC79A7", '<circle cx="3" cy="3" r="1" fill="#000"/>'),
    SpanKind.COLLECTIVE: _Look("C", "collective", "#0072B2", '<path stroke="#fff" d="M0 3H6"/>'),
    SpanKind.FAILURE: _Look("X", "failure", "#D55E00", '<path d="M0 0L6 6M0 6L6 0M3 0V6"/>'),
}

_MARGIN: Final = 14
_LINE: Final = 20
_CHARACTER: Final = 7.0
_STAGE_HEIGHT: Final = 24
_LINK_HEIGHT: Final = 16
_GAP: Final = 6

_MAX_LANES: Final = 100
_MAX_SINGLE: Final = 2000
"""Lanes drawn, and spans drawn one by one over all lanes; with `_MAX_LEVELS` they keep the file under 1 MB."""
_NARROW: Final = 4.0
"""A lane with less room for a span [px] is drawn as shares of time."""
_SLICES: Final = 240
_MAX_LEVELS: Final = 20_000
"""About how many slices a lane is cut into for that, and slices times kinds over all lanes."""
_MAX_LABEL: Final = 250.0
_THINNEST_OUTLINE: Final = 6.0


def svg(timeline: Timeline, *, title: str, width: int = 1200) -> str:
    """Return the timeline as an SVG document, `width` pixels wide (at least 480) and as high as its lanes need."""
    return _Picture(timeline, title, max(480, width)).draw()


def write_svg(timeline: Timeline, path: str | Path, *, title: str, width: int = 1200) -> None:
    """Write the picture; a path that ends in `.gz` is compressed."""
    write_text(path, svg(timeline, title=title, width=width))


class _Picture:
    """Where everything goes. Drawn from top to bottom: title, legend, lanes, time axis."""

    def __init__(self, timeline: Timeline, title: str, width: int) -> None:
        self.title, self.width = title, width
        self.lanes = dict(list(timeline.by_lane().items())[:_MAX_LANES])
        self.num_left_out = len(timeline.lanes) - len(self.lanes)
        self.end_s = timeline.end_s
        self.spans = timeline.spans
        jobs = dict.fromkeys(job_and_name(lane)[0] for lane in self.lanes)
        self.has_jobs = len(jobs) > 1
        names = ["time [min]", *(job_and_name(lane)[1] for lane in self.lanes)]
        self.left = min(0.35 * width, max(map(_text_width, names)) + 2 * _MARGIN)
        self.right = width - _MARGIN - _text_width("idle 100%") - 4
        self.y = float(_MARGIN)
        self.body: list[str] = []
        single, levels = 0, 1
        self.merged: set[str] = set()
        for lane, spans in self.lanes.items():
            if len(spans) * _NARROW > self.right - self.left or single + len(spans) > _MAX_SINGLE:
                self.merged.add(lane)
                levels += len({span.kind for span in spans})
            else:
                single += len(spans)
        self.num_slices = min(_SLICES, _MAX_LEVELS // levels)

    def x(self, time_s: float) -> float:
        return self.left + time_s / self.end_s * (self.right - self.left) if self.end_s else self.left

    def draw(self) -> str:
        idle = {
            lane: sum(end - start for start, end in gaps(spans, self.end_s)) / self.end_s
            for lane, spans in self.lanes.items()
            if self.end_s and is_stage(spans)
        }
        self._heading(list(idle.values()))
        self._legend()
        axis_top = self.y
        rows = [*self._rows()]
        self._axis(axis_top)
        for lane, top, height in rows:
            self._lane(lane, top, height, idle.get(lane))
        words = [f"{job_and_name(lane)[1]} idles {share:.0%}" for lane, share in idle.items()]
        desc = f"{len(self.lanes)} lanes over {units.show_time(self.end_s)}. {'; '.join(words)}"
        height = self.y + _MARGIN
        style = bundled_text("strata.simulate", "svg.css")
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" class="strata" role="img" '
                f'aria-labelledby="strata-title strata-desc" width="{self.width}" '
                f'height="{n(height)}" viewBox="0 0 {self.width} {n(height)}">',
                f'<title id="strata-title">{safe(self.title)}</title>',
                f'<desc id="strata-desc">{safe(desc)}</desc>',
                f"<style>\n{style}</style>",
                f"<defs>{''.join(_pattern(kind) for kind in SpanKind)}</defs>",
                '<rect class="paper" width="100%" height="100%"/>',
                *self.body,
                "</svg>\n",
            ]
        )

    def _text(self, x: float, y: float, text: str, css: str = "") -> None:
        look = f' class="{css}"' if css else ""
        self.body.append(f'<text x="{n(x)}" y="{n(y)}"{look}>{safe(text)}</text>')

    def _heading(self, idle: Sequence[float]) -> None:
        room = self.width - 2 * _MARGIN
        self._text(_MARGIN, self.y + 14, _fitting(self.title, room / 1.4), "title")
        facts = f"step {units.show_time(self.end_s)}" if self.end_s else "nothing happened"
        if idle:
            facts += f", stages idle {sum(idle) / len(idle):.0%} of it"
        if self.num_left_out:
            facts += f"; {self.num_left_out} more lanes are not drawn"
        self._text(_MARGIN, self.y + 14 + _LINE, facts)
        self.y += 2 * _LINE + _GAP

    def _legend(self) -> None:
        if not self.end_s:
            return
        kinds = {span.kind for span in self.spans}
        entries = [
            (f'fill="url(#strata-{kind})" class="span"', look.letter, look.word)
            for kind, look in _LOOKS.items()
            if kind in kinds
        ]
        entries.append(('class="lane"', "", "idle"))
        if any(span.is_critical for span in self.spans):
            entries.append(('class="critical"', "", "critical path"))
        x = float(_MARGIN)
        for look, letter, word in entries:
            size = 26 + 6 + _text_width(word) + 12
            if x + size > self.width:
                x, self.y = float(_MARGIN), self.y + _LINE
            self.body.append(f'<rect x="{n(x)}" y="{n(self.y)}" width="26" height="14" {look}/>')
            if letter:
                self._text(x + 13, self.y + 11, letter, "in")
            self._text(x + 32, self.y + 11, word)
            x += size
        self.y += _LINE + _GAP
        if self.merged:
            note = "where spans are too many: height is the share of time, a bold line above the critical path"
            self._text(_MARGIN, self.y + 8, note)
            self.y += _LINE

    def _rows(self) -> Iterator[tuple[str, float, float]]:
        """Place the lanes; lanes of several jobs stand under their job's name."""
        job_above = None
        for lane, spans in self.lanes.items():
            job = job_and_name(lane)[0]
            if self.has_jobs and job != job_above:
                self._text(_MARGIN, self.y + 13, _fitting(job or "no job", self.right - _MARGIN), "job")
                self.y, job_above = self.y + _LINE, job
            height = _STAGE_HEIGHT if is_stage(spans) else _LINK_HEIGHT
            yield lane, self.y, height
            self.y += height + _GAP

    def _axis(self, top: float) -> None:
        """Draw the grid behind the lanes and the ticks under them."""
        if not self.end_s:
            return
        unit_s, unit = _unit(self.end_s)
        grid = []
        for tick in _ticks(self.end_s / unit_s, math.ceil((self.right - self.left) / 90)):
            x = self.x(tick * unit_s)
            grid.append(f"M{n(x)} {n(top)}V{n(self.y + 4)}")
            self._text(x, self.y + 18, f"{tick:g}", "mid")
        self.body.append(f'<path class="grid" d="{"".join(grid)}"/>')
        self._text(_MARGIN, self.y + 18, f"time [{unit}]")
        self.y += 18

    def _lane(self, lane: str, top: float, height: float, idle: float | None) -> None:
        spans = self.lanes[lane]
        label = _fitting(job_and_name(lane)[1], self.left - 2 * _MARGIN)
        middle = top + height / 2 + 4
        self._text(_MARGIN, middle, label)
        self.body.append(
            f'<rect class="lane" x="{n(self.left)}" y="{n(top)}" '
            f'width="{n(self.right - self.left)}" height="{n(height)}"/>'
        )
        (self._merged if lane in self.merged else self._single)(spans, top, height)
        self._critical(lane, top, height)
        if idle is not None:
            self._text(self.width - _MARGIN, middle, f"idle {idle:.0%}", "end")

    def _single(self, spans: Sequence[Span], top: float, height: float) -> None:
        for span in spans:
            x, end = self.x(span.start_s), self.x(span.end_s)
            name = f"{_letters(span)} {units.show_time(span.start_s)} to {units.show_time(span.end_s)}"
            self.body.append(
                f'<rect class="span" fill="url(#strata-{span.kind})" x="{n(x)}" y="{n(top)}" '
                f'width="{n(end - x)}" height="{n(height)}"><title>{safe(name)}</title></rect>'
            )
            for text in (_letters(span), _LOOKS[span.kind].letter):
                if _text_width(text) + 2 < end - x:
                    self._text((x + end) / 2, top + height / 2 + 4, text, "in")
                    break

    def _merged(self, spans: Sequence[Span], top: float, height: float) -> None:
        """Draw shares of time, stacked from the bottom in the order of the legend."""
        parts = mixtures(spans, most=self.num_slices, longest_gap_s=self.end_s / self.num_slices)
        levels = [0.0] * len(parts)
        areas = []
        for kind in [kind for kind in SpanKind if any(kind in part.shares for part in parts)]:
            path, last = [f"M{n(self.left)} {n(top + height)}"], 0.0
            for i, part in enumerate(parts):
                levels[i] += part.shares.get(kind, 0.0)
                level = levels[i] if kind in part.shares else 0.0
                if abs(level - last) > 0.01:
                    path.append(f"H{n(self.x(part.start_s))}V{n(top + height * (1 - level))}")
                    last = level
            path.append(f"H{n(self.x(spans[-1].end_s))}V{n(top + height)}Z")
            areas.append(f'<path fill="url(#strata-{kind})" d="{"".join(path)}"/>')
        # Each area reaches down to the bottom of the lane, so the tallest is painted first.
        self.body += reversed(areas)

    def _critical(self, lane: str, top: float, height: float) -> None:
        """Outline what is critical, neighbours together; a line above where spans are merged."""
        is_merged = lane in self.merged
        near = 2 * (self.right - self.left) / self.num_slices if is_merged else 1.0
        runs: list[tuple[float, float]] = []
        for span in (span for span in self.lanes[lane] if span.is_critical):
            x, end = self.x(span.start_s), self.x(span.end_s)
            if runs and x - runs[-1][1] < near:
                runs[-1] = (runs[-1][0], end)
            else:
                runs.append((x, end))
        path = ""
        for x, end in runs:
            wider = max(0.0, _THINNEST_OUTLINE - (end - x)) / 2  # what it encloses stays visible
            a, b = n(x - wider), n(end + wider)
            path += f"M{a} {n(top)}H{b}" + ("" if is_merged else f"V{n(top + height)}H{a}Z")
        if path:
            self.body.append(f'<path class="critical" d="{path}"/>')


def _letters(span: Span) -> str:
    """Return what is written on a span: its label, or "F3"."""
    number = str(span.microbatch) if span.microbatch >= 0 else ""
    return _fitting(span.label, _MAX_LABEL) or _LOOKS[span.kind].letter + number


def _pattern(kind: SpanKind) -> str:
    look = _LOOKS[kind]
    return (
        f'<pattern id="strata-{kind}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<rect width="6" height="6" fill="{look.colour}"/>'
        f'<g stroke="#000" stroke-opacity=".5">{look.strokes}</g></pattern>'
    )


def _unit(end_s: float) -> tuple[float, str]:
    for least_s, unit_s, unit in ((36e3, 3600.0, "h"), (600.0, 60.0, "min"), (1.0, 1.0, "s"), (1e-3, 1e-3, "ms")):
        if end_s >= least_s:
            return unit_s, unit
    return (1e-6, "us") if end_s >= 1e-6 else (1e-9, "ns")


def _ticks(end: float, most: int) -> list[float]:
    """Return at most `most` + 1 round numbers from 0 to `end`."""
    power = 10.0 ** math.floor(math.log10(end / most))
    step = next(power * digit for digit in (1, 2, 5, 10) if power * digit * most >= end)
    return [i * step for i in range(int(end / step + 1e-9) + 1)]


def _text_width(text: str) -> float:
    """Return about how wide a text is at 12 px; no font is asked, so that every machine draws the same."""
    return sum(_CHARACTER * (1.7 if east_asian_width(letter) in "WF" else 1.0) for letter in text)


def _fitting(text: str, room: float) -> str:
    if _text_width(text) <= room:
        return text
    while text and _text_width(text) + _CHARACTER > room:
        text = text[:-1]
    return text + "…"


@dataclass(frozen=True, slots=True)
class KindShares:
    """Which share of the time from `start_s` until the next one begins went to which kind."""

    start_s: float
    shares: dict[SpanKind, float]


def mixtures(spans: Sequence[Span], *, most: int, longest_gap_s: float) -> list[KindShares]:
    """Group spans by their number, about `most` groups; only a longer gap than this lies between groups.

    Slices of equal time would beat against the rhythm of forwards and backwards. A multiple of four spans holds
    as many of the one as of the other, also where two microbatches make a rhythm.
    """
    size = 4 * math.ceil(len(spans) / most / 4)
    grouped: list[KindShares] = []
    group: list[Span] = []
    for i, span in enumerate(spans):
        group.append(span)
        after_s = spans[i + 1].start_s if i + 1 < len(spans) else math.inf
        is_last = after_s - span.end_s > longest_gap_s
        if is_last or len(group) == size:
            start_s, end_s = group[0].start_s, span.end_s if is_last else after_s
            busy: dict[SpanKind, float] = defaultdict(float)
            for member in group:
                busy[member.kind] += (
                    (member.end_s - member.start_s) / (end_s - start_s) if end_s > start_s else 0.0
                )
            grouped.append(KindShares(start_s, dict(busy)))
            group = []
        if is_last:
            grouped.append(KindShares(span.end_s, {}))
    return grouped
