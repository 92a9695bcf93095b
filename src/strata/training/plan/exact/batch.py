"""How a batch is shared between units that finish together, each in one of some shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Sized
from itertools import product
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.simulate.collective import eta
from strata.training.plan.exact.unit import Inner

LEVELS: Final = 12
"""Amounts of a gradient sum hidden, and of closings, that are tried."""


CLOSE: Final = 1e-4
"""How close times are looked for, as a share."""


def best_shapes(ways: list[list[Inner]], batch: int, *, wire_s: float, local_steps: int) -> list[list[Inner]]:
    """Return the shapes of units among which those that finish soonest make the shortest step.

    Units finish together; then the longest closing of all, and what the unit that hides least leaves of the sum
    between them: so shapes count that close within some time and hide so much.
    """
    closings = _levels(inner.closing_s for unit in ways for inner in unit)
    closings = closings[closings >= max(min(inner.closing_s for inner in unit) for unit in ways)]
    best_s, best = np.inf, ways
    work_s = float(least_times_s(ways, batch, np.zeros(1))[0]) * (1 - 2 * CLOSE)
    for closing_s in closings:
        if (work_s + closing_s) * eta(local_steps) >= best_s:
            break  # later ones close later, too
        able = [[inner for inner in unit if inner.closing_s <= closing_s] for unit in ways]
        hides = _levels(min(inner.hidden_s, wire_s) for unit in able for inner in unit)
        hides = hides[hides <= min(max(inner.hidden_s for inner in unit) for unit in able)]
        exposed_s = np.maximum(0.0, wire_s - hides) / local_steps
        could = (work_s + closing_s) * eta(local_steps) + exposed_s < best_s
        if not could.any():
            continue
        hides, exposed_s = hides[could], exposed_s[could]
        total_s = (least_times_s(able, batch, hides) + closing_s) * eta(local_steps) + exposed_s
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
    # Units of a kind have the same shapes and are worked out once.
    each = {tuple(map(id, unit)): unit for unit in ways}
    counted = Counter(tuple(map(id, unit)) for unit in ways)
    counts = np.array([counted[shapes] for shapes in each])
    figures = _Figures(list(each.values()))
    able = np.array([inner.hidden_s for unit in each.values() for inner in unit]) >= levels[:, None]

    def is_enough(limits_s: Floats) -> Bools:
        taken = np.where(able, figures.taken(limits_s), 0.0)
        return np.asarray(figures.most_of_units(taken) @ counts >= batch)

    low: Floats = np.zeros(len(levels))
    high = figures.enough_s(batch, able)
    high = np.where(is_enough(high), high, np.inf)
    is_able = np.isfinite(high)
    while (high[is_able] - low[is_able] > CLOSE * high[is_able]).any():
        middle = (low + high) / 2
        enough = is_enough(middle)
        high, low = np.where(enough, middle, high), np.where(enough, low, middle)
    return np.asarray(high)


class _Figures:
    """Of the shapes of all units, one unit's after another's [shapes]: times, samples a microbatch, and
    microbatches at most.
    """

    def __init__(self, ways: list[list[Inner]]) -> None:
        inners = [inner for unit in ways for inner in unit]
        self.first = _firsts(ways)
        """Where the shapes of each unit begin."""
        figures = [(inner.fill_s, inner.every_s, inner.samples, inner.room) for inner in inners]
        self.fill, self.period, self.samples, self.room = np.array(figures, dtype=float).T
        paces = [inner.paces_s for inner in inners]
        before, self._work = np.array([pace for own in paces for pace in own]).T
        self._before = before + np.repeat(
            [inner.after_s - inner.closing_s for inner in inners], [*map(len, paces)]
        )
        self._first_pace = _firsts(paces)

    def taken(self, limits_s: Floats | float) -> Floats:
        """Return the samples within limits [..., shapes]."""
        each_s = np.asarray(limits_s)[..., None]
        counts = np.minimum.reduceat((each_s - self._before) / self._work, self._first_pace, axis=-1)
        counts = np.minimum(self.room, np.floor(counts + 1e-9))
        return np.where((each_s >= self.fill * (1 - 1e-12)) & (counts > 0), counts * self.samples, 0.0)

    def most_of_units(self, taken: Floats) -> Floats:
        """Return the most that a shape of each unit does [..., units], of what all do."""
        return np.asarray(np.maximum.reduceat(taken, self.first, axis=-1))

    def enough_s(self, batch: int, able: Bools | bool = True) -> Floats:
        """Return limits [...] within which one of the able shapes [..., shapes] does the batch; where none can,
        all do what they can."""
        counts = batch / np.maximum(self.samples, 1e-300)
        alone_s = self.fill + self.period * np.minimum(counts, self.room)
        works = able & (self.samples > 0)
        least_s = np.where(works & (self.room >= counts), alone_s, np.inf).min(axis=-1)
        return np.asarray(np.where(np.isfinite(least_s), least_s, np.where(works, alone_s, 0.0).max(axis=-1)))


def _firsts(parts: Sequence[Sized]) -> Ints:
    """Return where each of some parts begins that lie one after another."""
    return np.cumsum([0, *map(len, parts[:-1])])


def could_be_picked(ways: list[list[Inner]], batch: int, *, local_steps: int) -> list[list[Inner]]:
    """Return the shapes that units could be in once `best_shapes` are chosen and share a batch no smaller than all
    their copies.

    A step that hides h of its sum takes (work + closing) eta and what is left of the sum; those chosen take no
    longer than all shapes with the latest closing, and hide no more than the unit that hides least does at most.
    In that time each unit does what is left of the batch when all others do their most.
    """
    work_s = float(least_times_s(ways, batch, np.zeros(1))[0])
    if not np.isfinite(work_s):
        return ways
    closings = [[inner.closing_s for inner in unit] for unit in ways]
    later_s = max(map(max, closings)) - max(map(min, closings))
    hidden_s = min(max(inner.hidden_s for inner in unit) for unit in ways)
    limit_s = (work_s + later_s + hidden_s / (local_steps * eta(local_steps))) * (1 + 4 * CLOSE)
    figures = _Figures(ways)
    taken = figures.taken(limit_s)
    most = figures.most_of_units(taken)
    needed = batch * (1 - 1e-9) - (most.sum() - most)
    each = zip(ways, np.split(taken, figures.first[1:]), needed.tolist(), strict=True)
    return [[unit[at] for at in np.flatnonzero(own >= least)] for unit, own, least in each]


def sharing_copies(ways: list[list[Inner]], batch: int, copies: int) -> list[list[Inner]] | None:
    """Return one shape a unit, `copies` of the model together, that work the batch off soonest; None: no such."""
    figures = _Figures(ways)
    replicas = [[inner.plan.pipelines[0].replicas for inner in unit] for unit in ways]

    def most(limit_s: float) -> tuple[float, tuple[int, ...]] | None:
        taken = [own.tolist() for own in np.split(figures.taken(limit_s), figures.first[1:])]
        best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
        for row, unit in enumerate(replicas):
            grown: dict[int, tuple[float, tuple[int, ...]]] = {}
            for (used, (done, at)), (shape, more) in product(best.items(), enumerate(unit)):
                item = (done + taken[row][shape], (*at, shape))
                if used + more <= copies and item[0] > grown.get(used + more, (-1.0, ()))[0]:
                    grown[used + more] = item
            best = grown
        return best.get(copies)

    low, high = 0.0, float(np.max(np.where(figures.samples > 0, figures.fill + figures.period * batch, 0.0)))
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
    figures = _Figures(ways)
    taken, low, high = figures.taken, 0.0, float(figures.enough_s(batch))
    while high - low > CLOSE * high:
        middle = (low + high) / 2
        if figures.most_of_units(taken(middle)).sum() >= batch:
            high = middle
        else:
            low = middle
    work, picked, excess = np.split(taken(high), figures.first[1:]), list[tuple[Inner, int]](), -batch
    for unit, row in zip(ways, work, strict=True):
        # A unit too slow for one microbatch within the limit does one all the same.
        best = np.argmax(row) if row.any() else np.argmin([inner.fill_s for inner in unit])
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
