"""The two figures of seed 004: histograms of candidate / baseline beside baseline / baseline, and the CDF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from strata.host.rollout.report import RolloutReport, ratios
from strata.pictures.svg import COLOURS, n, picture, rect
from strata.pictures.svg import text as label

BINS: Final = 21
"""Odd, so that one bin is around a ratio of 1."""
_BAR: Final = 30
WIDTH, HEIGHT = 460, 260
_LEFT, _TOP, _GAP = 50, 46, 60
_AA, _AB = "#8a9099", COLOURS[4]


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


def svg(report: RolloutReport, *, standalone: bool = True) -> str:
    """Return both figures as one SVG. standalone: a document that needs nothing else."""
    aa, ab = ratios(report.verdict.aa), ratios(report.verdict.ab)
    bins = bins_of(aa, ab)
    low, high = bins.edges[0], bins.edges[-1]
    right = _LEFT + WIDTH + _GAP

    def x(ratio: float, left: int) -> float:
        return left + (ratio - low) / (high - low) * WIDTH

    most = max(*bins.aa, *bins.ab, 1e-9)
    plan, floor = report.rollout.plan, _TOP + HEIGHT
    body = [
        label(_LEFT, 18, f"{report.verdict.reason} ({plan.unit})"),
        label(_LEFT - 8, _TOP + 4, f"{most:.0%}", "end"),
        label(_LEFT, 36, f"pairs of attempts: A/A ({len(aa)}) grey, A/B ({len(ab)}) blue"),
        label(right, 36, "share of pairs that changed by at most this much"),
        *(label(right - 8, floor - HEIGHT * share + 4, f"{share:.0%}", "end") for share in (0, 0.5, 1)),
    ]
    for shares, colour, shift in ((bins.aa, _AA, 0.0), (bins.ab, _AB, 0.5)):
        width = WIDTH / BINS / 2
        for i, share in enumerate(shares):
            tall = share / most * HEIGHT
            at = _LEFT + (2 * i + 2 * shift) * width
            body.append(rect(at, floor - tall, width, tall, fill=colour, title=f"{share:.1%} of pairs"))
    for values, colour in ((aa, _AA), (ab, _AB)):
        steps = [
            f"{n(x(value, right))},{n(_TOP + HEIGHT * (1 - share / len(values)))}"
            for i, value in enumerate(values)
            for share in (i, i + 1)
        ]
        body.append(f'<polyline points="{" ".join(steps)}" fill="none" stroke="{colour}" stroke-width="2"/>')
    for left in (_LEFT, right):
        middle = n(x(1, left))
        body.append(f'<path class="line" stroke-dasharray="3 3" d="M{middle} {_TOP}V{floor}"/>')
        body.append(f'<path class="line" d="M{left} {floor}H{left + WIDTH}"/>')
        body += [
            label(x(at, left), floor + 16, f"{at - 1:+.1%}" if at != 1 else "equal", "mid")
            for at in (low, (1 + low) / 2, 1.0, (1 + high) / 2, high)
        ]
    size = {"width": right + WIDTH + 30, "height": floor + 30}
    return picture(body, **size, title=f"{report.verdict.reason} ({plan.unit})", standalone=standalone)
