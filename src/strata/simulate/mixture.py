"""Spans too many to draw, as shares of time: how much of each stretch went to which kind."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from strata.simulate.timeline import Span, SpanKind


@dataclass(frozen=True, slots=True)
class Mixture:
    """Which share of the time from `start_s` until the next one begins went to which kind."""

    start_s: float
    shares: dict[SpanKind, float]


def mixtures(spans: Sequence[Span], *, most: int, longest_gap_s: float) -> list[Mixture]:
    """Group spans by their number, about `most` groups; only a longer gap than this lies between groups.

    Slices of equal time would beat against the rhythm of forwards and backwards. A multiple of four spans holds
    as many of the one as of the other, also where two microbatches make a rhythm.
    """
    size = 4 * math.ceil(len(spans) / most / 4)
    grouped: list[Mixture] = []
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
            grouped.append(Mixture(start_s, dict(busy)))
            group = []
        if is_last:
            grouped.append(Mixture(span.end_s, {}))
    return grouped
