"""What pipelines that sum gradients exchange: which part of the model each domain holds, over which links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import permutations, product

import numpy as np

from strata.arrays import Floats
from strata.fleet.fleet import Fleet, Pair
from strata.workload.plan import Pipeline, TrainingPlan

Share = tuple[str, float, float]
"""A domain and the fractions of the model's parameters between which it holds them."""


def shares(plan: TrainingPlan, pipeline: Pipeline, before: Floats) -> tuple[Share, ...]:
    """Return what each domain of one of a plan's pipelines holds, neighbouring layers taken together."""
    total = float(before[-1])
    shares: list[Share] = []
    held = zip(pipeline.stages, plan.held_layers(pipeline), strict=True)
    pieces = sorted((chunk.start, chunk.stop, stage.domain) for stage, chunks in held for chunk in chunks if chunk)
    for start, stop, domain in pieces:
        first, last = float(before[start]) / total, float(before[stop]) / total
        if shares and shares[-1][0] == domain:
            first = shares.pop()[1]
        shares.append((domain, first, last))
    return tuple(shares)


def exchanged(groups: Sequence[tuple[Share, ...]]) -> Iterator[tuple[int, int, Pair, float]]:
    """Yield which share of the gradients two pipelines exchange over which link: each layer's holders meet."""
    for (r, source), (q, dest) in permutations(enumerate(groups), 2):
        together: dict[Pair, float] = defaultdict(float)
        for (a, first, last), (b, low, high) in product(source, dest):
            share = min(last, high) - max(first, low)
            if share > 0:
                together[a, b] += share
        for pair, share in together.items():
            yield r, q, pair, share


def uplink_bytes_per_s(fleet: Fleet, group: Sequence[Share]) -> float:
    """Return at which rate the sites of a pipeline can send the gradients they hold [B/s]."""
    held: dict[str, float] = defaultdict(float)
    for name, first, last in group:
        held[name] += last - first
    caps = [(fleet.domain(name).uplink_bytes_per_s, share) for name, share in held.items()]
    return min((uplink / share for uplink, share in caps if uplink is not None and share > 0), default=np.inf)


def between(fleet: Fleet, groups: Sequence[tuple[Share, ...]]) -> tuple[Floats, Floats]:
    """Return bandwidth and latency between pipelines that sum the gradients of the whole model.

    Links are independent and used at the same time: B_rq = min over domain pairs of B_ab / share of (a, b).
    """
    count = len(groups)
    if all(len(group) == 1 for group in groups):
        pick = np.ix_(*[[fleet.index(name) for [(name, _, _)] in groups]] * 2)
        return fleet.bandwidth_bytes_per_s()[pick], fleet.latency_s()[pick]
    bandwidth, latency = np.full((count, count), np.inf), np.zeros((count, count))
    for r, q, pair, share in exchanged(groups):
        link = fleet.links.get(pair)
        speed, delay = (link.bandwidth_bytes_per_s, link.latency_s) if link else (0.0, np.inf)
        bandwidth[r, q] = min(bandwidth[r, q], speed / share)
        latency[r, q] = max(latency[r, q], delay)
    return bandwidth, latency
