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


def splits_within(splits: Splits, limit_s: float, *, check: Check = unlimited) -> Iterator[tuple[int, ...]]:
    """Yield every split whose own bound is at most `limit_s`: no step of any other one is faster than that.

    Of deep pipelines there may be none for long: what `check` raises ends it.
    """
    ending_s = max((most_s for most_s, least_s in splits.levels if least_s <= limit_s), default=-np.inf)
    if ending_s == np.inf:
        yield from _within(splits, limit_s, check)
    elif ending_s > -np.inf:
        both = zip(splits.ends, splits.times, strict=True)
        times = [np.where(ends <= ending_s, times, np.inf) for ends, times in both]
        yield from _within(replace(splits, times=times, runs=(), sums_of=lambda: splits.sums), limit_s, check)


def _within(splits: Splits, limit_s: float, check: Check) -> Iterator[tuple[int, ...]]:
    stages = len(splits.times)
    planes = 1 + (0 if splits.sums is None else len(splits.sums.paced_by))
    none = np.empty((1, 0)), np.full(1, splits.least_end_s), np.zeros((1, planes))
    partial = [_FirstStages(np.zeros((1, 1), dtype=np.int64), *none)]
    while partial:
        check()
        some = partial.pop()
        if some.cuts.shape[1] > stages:
            yield from map(tuple, np.diff(some.cuts).tolist())
            continue
        if len(some.cuts) > TOGETHER:
            partial.append(some.rows(slice(TOGETHER, None)))
            some = some.rows(slice(TOGETHER))
        longer = _longer(splits, some, limit_s)
        if len(longer.cuts):
            partial.append(longer)


def _longer(splits: Splits, some: _FirstStages, limit_s: float) -> _FirstStages:
    """Return splits of the first stages made longer by one stage.

    Those that take more than `limit_s` are left out; the least of each come first.
    """
    cuts, times, ends_s, planes = some
    stage = times.shape[1]
    below_s, path_below_s = splits.bounds[stage + 1], splits.paths[stage + 1]
    waited_s, hop_s = (splits.microbatches - 1) * splits.slowest_s, splits.hop_s(stage)
    before_s, hops_s = times.sum(axis=1)[:, None], sum(splits.hops_s[:stage])
    own = splits.times[stage][cuts[:, -1]]
    values = splits.upstream * before_s + splits.works(stage, own, hop_s + below_s)
    path_s = splits.path * before_s + (splits.path * own + (hop_s + waited_s + path_below_s))
    values = np.maximum(values, path_s)
    trips, rest = splits.trips
    if rest is not None:
        whole_s = splits.path * (before_s + own) + (hop_s + path_below_s)
        left_s = splits.upstream * before_s + rest.works(stage, own, hop_s + rest.bounds[stage + 1])
        values = np.maximum(values, trips * (whole_s + hops_s) + left_s)
    values = values + hops_s
    ending_s = np.broadcast_to(ends_s[:, None], values.shape)
    if splits.ends:
        ending_s = np.maximum(ending_s, splits.ends[stage][cuts[:, -1]])
    row, last = np.nonzero(np.isfinite(values) & (values + ending_s <= limit_s))
    each, ends_s, planes = values[row, last], ending_s[row, last], planes[row]
    if splits.sums is not None:
        sums_s, planes = splits.sums.longer(planes, stage, cuts[row, -1], last)
        each = np.maximum(each, sums_s)
    cuts = np.column_stack([cuts[row], last])
    times = np.column_stack([times[row], own[row, last]])
    if splits.warmup and stage and len(row):
        each = np.maximum(each, _waited_s(splits, times))
    elif splits.rounds and stage:
        each = np.maximum(each, _beside_s(splits, times))
    each = each + ends_s
    best_first = np.lexsort((each, row))
    best_first = best_first[each[best_first] <= limit_s]
    return _FirstStages(cuts, times, ends_s, planes).rows(best_first)


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
