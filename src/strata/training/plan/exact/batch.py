"""How a batch is shared between units that finish together, each in one of some shapes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.simulate.collective import eta
from strata.training.plan.exact.unit import Inner

LEVELS: Final = 12
"""Amounts of a gradient sum hidden, and of closings, that are tried."""


def best_shapes(ways: list[list[Inner]], batch: int, *, wire_s: float, local_steps: int) -> list[list[Inner]]:
    """Return the shapes of units among which those that finish soonest make the shortest step.

    Units finish together; then the longest closing of all, and what the unit that hides least leaves of the sum
    between them: so shapes count that close within some time and hide so much.
    """
    closings = _levels(inner.closing_s for unit in ways for inner in unit)
    closings = closings[closings >= max(min(inner.closing_s for inner in unit) for unit in ways)]
    best_s, best = np.inf, ways
    for closing_s in closings:
        able = [[inner for inner in unit if inner.closing_s <= closing_s] for unit in ways]
        hides = _levels(min(inner.hidden_s, wire_s) for unit in able for inner in unit)
        hides = hides[hides <= min(max(inner.hidden_s for inner in unit) for unit in able)]
        times_s = least_times_s(able, batch, hides) + closing_s
        total_s = times_s * eta(local_steps) + np.maximum(0.0, wire_s - hides) / local_steps
        if total_s.min() < best_s * (1 - 1e-9):
            best_s, least_s = float(total_s.min()), hides[int(np.argmin(total_s))]
            best = [[inner for inner in unit if inner.hidden_s >= least_s] for unit in able]
    return best


def _levels(values: Iterable[float]) -> Floats:
    """Return at most LEVELS of the values, the least and the most among them."""
    every = np.unique(list(values))
    return np.asarray(every[np.unique(np.linspace(0, len(every) - 1, LEVELS).round().astype(int))])


def least_times_s(ways: list[list[Inner]], batch: int, levels: Floats) -> Floats:
    """Return for each level the time within which shapes that hide so much [s] work through the batch."""
    fill, period, samples = _figures(ways)
    hidden = np.zeros_like(fill)
    for row, unit in enumerate(ways):
        hidden[row, : len(unit)] = [inner.hidden_s for inner in unit]
    # Units of a kind have like shapes and are worked out once.
    rows, counts = np.unique(np.stack([fill, period, samples, hidden]), axis=1, return_counts=True)
    fill, period, samples, hidden = rows
    able = hidden >= levels[:, None, None]
    low: Floats = np.zeros(len(levels))
    once = np.where(able & (samples > 0), fill + period * batch / np.maximum(samples, 1e-300), np.inf)
    high = once.min(axis=(1, 2), initial=np.inf)
    while (high - low > 1e-4 * high).any():
        middle = (low + high) / 2
        most = np.floor((middle[:, None, None] - fill) / period + 1 + 1e-9)
        taken = np.where(able & (most > 0), most * samples, 0.0)
        enough = taken.max(axis=2) @ counts >= batch
        high, low = np.where(enough, middle, high), np.where(enough, low, middle)
    return np.asarray(high)


def _figures(ways: list[list[Inner]]) -> tuple[Floats, Floats, Floats]:
    """Return fill, period and samples of each unit's shapes [unit, shape]; what fills the rows does no work."""
    fill, period, samples = (np.full((len(ways), max(map(len, ways))), value) for value in (1e300, 1.0, 0.0))
    for row, unit in enumerate(ways):
        for column, inner in enumerate(unit):
            fill[row, column], period[row, column] = inner.fill_s, inner.every_s
            samples[row, column] = inner.samples
    return fill, period, samples


def sharing_copies(ways: list[list[Inner]], batch: int, copies: int) -> list[list[Inner]] | None:
    """Return one shape a unit, `copies` of the model together, that work the batch off soonest; None: no such."""
    fill, period, samples = _figures(ways)
    replicas = [[inner.plan.pipelines[0].replicas for inner in unit] for unit in ways]

    def most(limit_s: float) -> tuple[float, tuple[int, ...]] | None:
        counts = np.floor((limit_s - fill) / period + 1 + 1e-9)
        taken = np.where(counts > 0, counts * samples, 0.0)
        best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
        for row, unit in enumerate(replicas):
            grown: dict[int, tuple[float, tuple[int, ...]]] = {}
            for (used, (done, at)), (shape, more) in product(best.items(), enumerate(unit)):
                item = (done + float(taken[row, shape]), (*at, shape))
                if used + more <= copies and item[0] > grown.get(used + more, (-1.0, ()))[0]:
                    grown[used + more] = item
            best = grown
        return best.get(copies)

    low, high = 0.0, float(np.max(np.where(samples > 0, fill + period * batch, 0.0)))
    picked = most(high)
    if picked is None:
        return None
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        reached = most(middle)
        assert reached is not None, "shapes of so many copies together do not depend on the time"
        if reached[0] >= batch:
            high, picked = middle, reached
        else:
            low = middle
    return [[unit[shape]] for unit, shape in zip(ways, picked[1], strict=True)]


def share(ways: list[list[Inner]], batch: int) -> list[tuple[Inner, int]]:
    """Return per unit the shape and microbatches per copy that make the slowest unit fastest."""
    fill, period, samples = _figures(ways)

    def taken(limit_s: float) -> Floats:
        counts = np.floor((limit_s - fill) / period + 1 + 1e-9)
        return np.where(counts > 0, counts * samples, 0.0)

    low = 0.0
    high = float(np.min(fill + period * batch / np.maximum(samples, 1e-300)))
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        if taken(middle).max(axis=1).sum() >= batch:
            high = middle
        else:
            low = middle
    work, picked, excess = taken(high), [], -batch
    for unit, row in zip(ways, work, strict=True):
        # A unit too slow for one microbatch within the limit does one all the same.
        best = np.argmax(row[: len(unit)]) if row.any() else np.argmin([inner.fill_s for inner in unit])
        inner = unit[int(best)]
        count = max(1, round(float(row.max()) / inner.samples))
        picked.append((inner, count))
        excess += count * inner.samples
    # Rounding gave the units more than the batch: take whole microbatches back, largest first.
    for index in sorted(range(len(picked)), key=lambda i: -picked[i][0].samples):
        inner, count = picked[index]
        back = min(count - 1, excess // inner.samples)
        if back > 0:
            picked[index], excess = (inner, count - back), excess - back * inner.samples
    return picked
