"""Looks for the splits of layers over stages whose bounds (`splits`) are within a limit, a stage at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from strata.arrays import Floats, Ints
from strata.clock import Check, unlimited
from strata.simulate.splits import EXACT, Splits

TOGETHER: Final = 256
"""Splits of the first stages that are made longer together: few enough that the best come soon."""


class _FirstStages(NamedTuple):
    """Splits of the first i stages: cuts [N, i + 1], times [N, i], longest ends [N], and what they add to sums of
    all stages [N, K + 1] (`PlaneSums.longer`)."""

    cuts: Ints
    times: Floats
    ends_s: Floats
    planes: Floats

    def rows(self, some: slice | Ints) -> _FirstStages:
        """Return some of them."""
        return _FirstStages(self.cuts[some], self.times[some], self.ends_s[some], self.planes[some])


class SplitsWithin(Iterator[tuple[int, ...]]):
    """Every split whose own bound is at most a limit: no step of any other one is faster than that.

    beyond_s: once all of them are out, what no other split's bound is less than; within a limit below that there
    are the same.
    """

    def __init__(self, splits: Splits, limit_s: float, *, check: Check = unlimited) -> None:
        """Of deep pipelines there may be none for long: what `check` raises ends it."""
        self.beyond_s = min((least_s for _, least_s in splits.levels if least_s > limit_s), default=np.inf)
        self._limit_s, self._check = limit_s, check
        self._left = self._every(splits)

    def __next__(self) -> tuple[int, ...]:
        return next(self._left)

    def _every(self, splits: Splits) -> Iterator[tuple[int, ...]]:
        ending_s = max((most_s for most_s, least_s in splits.levels if least_s <= self._limit_s), default=-np.inf)
        if ending_s == np.inf:
            yield from self._within(splits)
        elif ending_s > -np.inf:
            both = zip(splits.ends, splits.times, strict=True)
            times = [np.where(ends <= ending_s, times, np.inf) for ends, times in both]
            yield from self._within(replace(splits, times=times, runs=(), sums_of=lambda: splits.sums))

    def _within(self, splits: Splits) -> Iterator[tuple[int, ...]]:
        stages, rows = len(splits.times), [_Rows.of(splits, i, self._limit_s) for i in range(len(splits.times))]
        planes = 1 + (0 if splits.sums is None else len(splits.sums.paced_by))
        none = np.empty((1, 0)), np.full(1, splits.least_end_s), np.zeros((1, planes))
        partial = [_FirstStages(np.zeros((1, 1), dtype=np.int64), *none)]
        while partial:
            self._check()
            some = partial.pop()
            if some.cuts.shape[1] > stages:
                yield from map(tuple, np.diff(some.cuts).tolist())
                continue
            if len(some.cuts) > TOGETHER:
                partial.append(some.rows(slice(TOGETHER, None)))
                some = some.rows(slice(TOGETHER))
            longer, beyond_s = _longer(splits, some, rows[some.times.shape[1]], self._limit_s)
            self.beyond_s = min(self.beyond_s, beyond_s)
            if len(longer.cuts):
                partial.append(longer)


class _Rows(NamedTuple):
    """A stage with the layers after the first 0, 1, …, in rows, and 1, 2, … of them, in columns, as many as could
    be within a limit [L, K]: its times, and what is after it (`Splits.works`); inf past the end of the model."""

    times: Floats
    after_s: Floats
    path_s: Floats
    trip_s: Floats | None
    rest_s: Floats | None

    @classmethod
    def of(cls, splits: Splits, stage: int, limit_s: float) -> _Rows:
        """Return those of one stage."""
        runs, hop_s = splits.stage_runs(stage), splits.hop_s(stage)
        alone_s = splits.works(stage, runs, 0.0, np.zeros_like(runs) if splits.depths else None)
        able = np.flatnonzero((alone_s <= limit_s).any(axis=1))
        times = np.ascontiguousarray(runs[: able[-1] + 1 if len(able) else 1].T)
        last = np.arange(len(times))[:, None] + np.arange(1, times.shape[1] + 1)

        def after(values: Floats) -> Floats:
            return np.append(values, np.full(times.shape[1], np.inf))[last]

        path_s, rest = hop_s + after(splits.paths[stage + 1]), splits.trips[1]
        return cls(
            times, hop_s + after(splits.bounds[stage + 1]), path_s, 2 * path_s if splits.depths else None,
            None if rest is None else hop_s + after(rest.bounds[stage + 1]),
        )  # fmt: skip


def _longer(splits: Splits, some: _FirstStages, stages: _Rows, limit_s: float) -> tuple[_FirstStages, float]:
    """Return splits of the first stages made longer by one of some `stages`, and the least bound of those that
    take more than `limit_s`, which are left out.

    The least of each come first.
    """
    cuts, times, ends_s, planes = some
    stage, first = times.shape[1], cuts[:, -1]
    waited_s = (splits.microbatches - 1) * splits.slowest_s
    before_s, hops_s = times.sum(axis=1)[:, None], sum(splits.hops_s[:stage])
    own, path_s = stages.times[first], stages.path_s[first]
    trip_s = None if stages.trip_s is None else stages.trip_s[first]
    values = splits.upstream * before_s + splits.works(stage, own, stages.after_s[first], trip_s)
    values = np.maximum(values, splits.path * before_s + (splits.path * own + (path_s + waited_s)))
    trips, rest = splits.trips
    if rest is not None and stages.rest_s is not None:
        whole_s = splits.path * (before_s + own) + path_s
        left_s = splits.upstream * before_s + rest.works(stage, own, stages.rest_s[first])
        values = np.maximum(values, trips * (whole_s + hops_s) + left_s)
    values = values + hops_s
    ending_s = np.broadcast_to(ends_s[:, None], values.shape)
    if splits.ends:
        last = np.minimum(first[:, None] + np.arange(1, own.shape[1] + 1), len(splits.times[0]) - 1)
        ending_s = np.maximum(ending_s, splits.ends[stage][first[:, None], last])
    whole = values + ending_s
    beyond_s = float(whole[whole > limit_s].min(initial=np.inf))
    row, count = np.nonzero(np.isfinite(values) & (whole <= limit_s))
    last = first[row] + count + 1
    each, ends_s, planes = values[row, count], ending_s[row, count], planes[row]
    if splits.sums is not None:
        sums_s, planes = splits.sums.longer(planes, stage, first[row], last)
        each = np.maximum(each, sums_s)
    cuts = np.column_stack([cuts[row], last])
    times = np.column_stack([times[row], own[row, count]])
    if splits.warmup and stage and len(row):
        each = np.maximum(each, _waited_s(splits, times))
    elif splits.rounds and stage:
        each = np.maximum(each, _beside_s(splits, times))
    each = each + ends_s
    beyond_s = min(beyond_s, float(each[each > limit_s].min(initial=np.inf)))
    best_first = np.lexsort((each, row))
    best_first = best_first[each[best_first] <= limit_s]
    return _FirstStages(cuts, times, ends_s, planes).rows(best_first), beyond_s


def _beside_s(splits: Splits, times: Floats) -> Floats:
    """Return the bound of the round trips over the last cut of these first stages [N] in a fixed order."""
    cut = times.shape[1] - 2
    round_s = splits.path * times[:, -2:].sum(axis=1) + splits.hops_s[cut]
    return np.asarray(
        splits.path * times.sum(axis=1) + sum(splits.hops_s[: cut + 1]) + splits.rounds[cut] * round_s
    )


def _waited_s(splits: Splits, times: Floats) -> Floats:
    """Return the bound of the round trips in these first stages [N], at the pace of the last or a slowest one.

    Those that the next to last stages had are left out: they were looked at when these were the last.
    """
    stage = times.shape[1] - 1
    first, last = np.triu_indices(stage + 1, 1)
    waited_s = _round_trips_s(splits, times, np.array([stage]), first, last)
    slowest = stage - np.argmax(times[:, ::-1] * EXACT >= times.max(axis=1, keepdims=True), axis=1)
    above, ends_here = np.flatnonzero(slowest < stage), last == stage
    if len(above):
        others_s = _round_trips_s(splits, times[above], slowest[above, None], first[ends_here], last[ends_here])
        waited_s[above] = np.maximum(waited_s[above], others_s)
    return waited_s


def _round_trips_s(splits: Splits, times: Floats, pace: Ints, first: Ints, last: Ints) -> Floats:
    """Return the bound [N] of these stages: all microbatches at one's pace [N, 1], but for round trips."""
    rows, depth = np.arange(len(times))[:, None], np.asarray(splits.warmup)
    after = np.cumsum(times, axis=1) + np.concatenate([[0.0], np.cumsum(splits.hops_s)])[: times.shape[1]]
    before = after - times

    def of(values: Floats, stage: Ints) -> Floats:  # like stages for all rows: several times as fast as pairs
        return values.take(stage, axis=1) if stage.ndim == 1 else values[rows, stage]

    own = of(times, pace)
    top, bottom = np.minimum(first, pace), np.maximum(last, pace)
    is_inside = (top == first) & (bottom == last)
    in_flight = depth[first] - depth[last] + 1
    left = splits.microbatches - 1 - np.where(is_inside, depth[last], depth[top] + 1)
    rounds = np.maximum(0, left // in_flight)
    waited = rounds * (of(after, last) - of(before, first) - own * in_flight)
    there = of(after, bottom) - of(before, top) - own * (depth[top] - depth[bottom] + 1)
    waited += np.where(is_inside | (left < 0), 0.0, there)
    alone = of(before, pace) + splits.microbatches * own
    return np.asarray(alone[:, 0] + waited.max(axis=1, initial=0.0))
