"""The two figures of seed 004: histograms of candidate / baseline beside baseline / baseline, and the CDF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np

from strata.host.rollout.report import RolloutReport, ratios

BINS: Final = 21
"""Odd, so that one bin is around a ratio of 1."""
_BAR: Final = 30
WIDTH, HEIGHT = 460, 260
_LEFT, _TOP, _GAP = 50, 46, 60
_AA, _AB = "#8a9099", "#1f4e9c"


@dataclass(frozen=True, slots=True)
class Bins:
    """Shares of the pairs in equal bins around a ratio of 1: `edges` has one value more than the shares."""

    edges: tuple[float, ...]
    aa: tuple[float, ...]
    ab: tuple[float, ...]


def bins_of(aa: Sequence[float], ab: Sequence[float]) -> Bins:
    """Return both histograms on one axis that holds every ratio."""
    values = np.array([*aa, *ab])
    reach = max(float(np.max(np.abs(values - 1), initial=0.0)) * 1.0001, 0.01)
    edges = np.linspace(1 - reach, 1 + reach, BINS + 1)
    aa_share, ab_share = (np.histogram(sample, edges)[0] / max(len(sample), 1) for sample in (aa, ab))
    return Bins(tuple(edges.tolist()), tuple(aa_share.tolist()), tuple(ab_share.tolist()))


def text(report: RolloutReport) -> list[str]:
    """Return the histograms and the CDF as lines of at most 80 columns."""
    aa, ab = ratios(report.verdict.aa), ratios(report.verdict.ab)
    bins = bins_of(aa, ab)
    most = max(*bins.aa, *bins.ab, 1e-9)
    lines = [f"{'ratio':>9}  {f'A/A, {len(aa)} pairs':<{_BAR}}  {f'A/B, {len(ab)} pairs':<{_BAR}}".rstrip()]
    for low, high, first, second in zip(bins.edges, bins.edges[1:], bins.aa, bins.ab, strict=False):
        bars = (("#" * round(share / most * _BAR)).ljust(_BAR) for share in (first, second))
        lines.append(f"{(low + high) / 2:9.3f}  {'  '.join(bars)}".rstrip())
    if ab:
        shown = (5, 10, 25, 50, 75, 90, 95)
        lines += ["", "percentile of A/B pairs " + "".join(f"{percent:>7d}%" for percent in shown)]
        at = np.percentile(ab, shown)
        lines.append("change                  " + "".join(f"{value - 1:>+8.1%}" for value in at))
    return lines


def svg(report: RolloutReport) -> str:
    """Return both figures as one SVG that needs nothing else."""
    aa, ab = ratios(report.verdict.aa), ratios(report.verdict.ab)
    bins = bins_of(aa, ab)
    low, high = bins.edges[0], bins.edges[-1]
    right = _LEFT + WIDTH + _GAP

    def x(ratio: float, left: int) -> float:
        return left + (ratio - low) / (high - low) * WIDTH

    most = max(*bins.aa, *bins.ab, 1e-9)
    body = []
    for shares, colour, shift in ((bins.aa, _AA, 0.0), (bins.ab, _AB, 0.5)):
        width = WIDTH / BINS / 2
        for i, share in enumerate(shares):
            tall = share / most * HEIGHT
            body.append(
                f'<rect x="{_LEFT + (2 * i + 2 * shift) * width:.1f}" y="{_TOP + HEIGHT - tall:.1f}" '
                f'width="{width:.1f}" height="{tall:.1f}" fill="{colour}">'
                f"<title>{share:.1%} of pairs</title></rect>"
            )
    for values, colour in ((aa, _AA), (ab, _AB)):
        steps = [
            f"{x(value, right):.1f},{_TOP + HEIGHT * (1 - share / len(values)):.1f}"
            for i, value in enumerate(values)
            for share in (i, i + 1)
        ]
        body.append(f'<polyline points="{" ".join(steps)}" fill="none" stroke="{colour}" stroke-width="2"/>')
    for left in (_LEFT, right):
        body.append(
            f'<line x1="{x(1, left):.1f}" x2="{x(1, left):.1f}" y1="{_TOP}" y2="{_TOP + HEIGHT}" stroke="#bbb" '
            'stroke-dasharray="3 3"/>'
        )
        body.append(
            f'<line x1="{left}" x2="{left + WIDTH}" y1="{_TOP + HEIGHT}" y2="{_TOP + HEIGHT}" stroke="#333"/>'
        )
        body += [
            _label(x(at, left), _TOP + HEIGHT + 16, f"{at - 1:+.1%}" if at != 1 else "equal")
            for at in (low, (1 + low) / 2, 1.0, (1 + high) / 2, high)
        ]
    body += [
        _label(right - 8, _TOP + HEIGHT * (1 - share) + 4, f"{share:.0%}", anchor="end") for share in (0, 0.5, 1)
    ]
    plan = report.rollout.plan
    body += [
        _label(_LEFT, 18, f"{report.verdict.reason} ({plan.unit})", anchor="start"),
        _label(_LEFT - 8, _TOP + 4, f"{most:.0%}", anchor="end"),
        _label(_LEFT, 36, f"pairs of attempts: A/A ({len(aa)}) grey, A/B ({len(ab)}) blue", anchor="start"),
        _label(right, 36, "share of pairs that changed by at most this much", anchor="start"),
    ]
    wide, tall_all = right + WIDTH + 30, _TOP + HEIGHT + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall_all}" width="{wide}" '
        f'height="{tall_all}" font-family="system-ui,sans-serif" font-size="12">\n'
        '<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _label(x: float, y: float, words: str, *, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
