"""What a pipeline's step takes at least, over all ways to share consecutive layers over its stages.

These bound the step of M microbatches in a split, t_i the time of stage i, hop_i there and back over the
cut after it, and "upstream" the stages and hops before a stage (`screening.lower_bound_s` has the first two):

* a stage works through all microbatches: upstream + M t_i (other schedules wait for less: see `Splits.busy`);
* so does the slowest link, beside the way of one microbatch: path + (M - 1) × its serialisation;
* stage s waits for what is in flight to a stage e below it, k = w_s - w_e + 1 microbatches of warm-ups w, for as
  long as C_se = Σ t + Σ hops from s to e (the cycle of `screening.one_f_one_b_s`). A path through all operations
  that keeps the pace of stage p but for n such round trips takes upstream_p + M t_p + n (C_se - k t_p), where p is
  from s to e and n = floor((M - 1 - w_e) / k); elsewhere n = floor((M - 2 - w_min(s, p)) / k), and one more round
  trip leads from p to s and e.
* the first stage begins a microbatch when that k before it is through, k = w_0 + 1 of them in flight, so the one
  after n k only after n round trips C of the whole pipeline. With n = floor((M - 1) / k) the last r = M - n k
  microbatches begin then: n C + the first bound of r.
* stage p begins w_p + 1 microbatches before its first backward, and has no forward left when the last one goes on:
  the first microbatch's way to it, below it and back, M - 1 - w_p backwards and forwards in turn, and the last
  microbatch's way below it and back: path + (M - 1 - w_p) t_p + C_p+1,S.
* two stages in a row of which the first has one more warm-up have two microbatches between them, and pass no more
  than these in a round trip R = t_p + hop_p + t_p+1. As above, with every two turns of both a round trip, and half
  of their work where one is left: path + (M - w_p) / 2 R - hop_p / 2 + C_p+2,S at least.

The first is nested, V_i = max(m_i t_i, u t_i + hop_i + V_i+1), so its least over all splits is found backwards,
one stage at a time; so are the last two and the shortest path. The third needs several stages and is looked at
where all are known. Schedules in fixed orders have other sums of stages beside (`plane_sums`).

A step ends when all stages have exchanged and updated what they hold: after its pipeline follows the longest end
of its stages, no shorter than that of any one. So upstream + M t_i + end_i bounds the step for every stage i,
nested as the first of the four. Splits whose longest end is at most e are those of runs of layers that end so
soon, and their pipelines take no less than the least of those: levels of e bound all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np

from strata.arrays import Floats, Ints
from strata.simulate.plane_sums import PlaneSums

EXACT: Final = 1 + 1e-12
"""What is equal but for rounding counts as equal."""

LEVELS: Final = 8
"""Levels of the longest end that are looked at together, and once more between two of them."""

SMALL: Final = 5e-4
"""As a share of the pipeline's time: where ends could add no more, they are looked at split by split alone."""


@dataclass(frozen=True)
class Splits:
    """The splits of L layers over S stages, at least one layer each.

    times: per stage, time [L + 1, L + 1] of the layers from a row to a column, inf where they are none or too
    many for its memory. hops_s: per cut, there and back. warmup: per stage, at most M - 1; none: order unknown.
    slowest_s: how long the slowest link is busy with one message. upstream, path: shares of a stage's work that
    those below it wait for, and that one microbatch alone takes. busy: microbatches that each stage works off
    before its last gradient leaves it; none: all of them (`screening.ordered_bound_s`). rounds: per cut, how often
    a fixed order waits for what its two stages have in flight between them; none: as the warm-ups say.
    ends: per stage, what follows the pipeline at least where it has the layers from a row to a column; none:
    `end_s`, which follows in any case. in_flight: microbatches that the first stage has begun and not ended, at
    most, stages work off their microbatches in turn; 0: not known, or in another order. depths: per stage, the
    most warm-ups that it has in any order, stages taking turns after those; none: not known. work: what the first
    0, 1, … layers take at least, in any of the stages [L + 1]; none: not known. runs: per stage, what
    `times_of_runs` says of its times; none: not worked out before.
    """

    times: Sequence[Floats]
    hops_s: Sequence[float]
    warmup: Sequence[int]
    slowest_s: float
    microbatches: int
    upstream: float = 1.0
    path: float = 1.0
    busy: Sequence[float] = ()
    rounds: Sequence[int] = ()
    sums_of: Callable[[], PlaneSums | None] = lambda: None
    ends: Sequence[Floats] = ()
    end_s: float = 0.0
    in_flight: int = 0
    depths: Sequence[int] = ()
    work: Floats | None = None
    runs: Sequence[Floats] = ()

    def works(self, stage: int, times: Floats, after_s: Floats | float, trip_s: Floats | None = None) -> Floats:
        """Return what a stage and all below it take that take so long after it; `trip_s`: twice the way of a
        microbatch over the cut and through the stages below (none: by `paths`)."""
        whole = times if self.upstream == 1 else self.upstream * times
        return np.maximum(self._own_s(stage, times, trip_s), whole + after_s)

    def _own_s(self, stage: int, times: Floats, trip_s: Floats | None = None) -> Floats:
        """Return what all microbatches take because of one stage and the way below it."""
        own_s = times * (self.busy[stage] if self.busy else self.microbatches)
        if self.depths and (turns := self.microbatches - 1 - self.depths[stage]) > 0:
            if trip_s is None:
                trip_s = 2 * (self.hop_s(stage) + self.paths[stage + 1])
            own_s = np.maximum(own_s, (1 + turns) * times + trip_s)
        return own_s

    @cached_property
    def _runs(self) -> Sequence[Floats]:
        return self.runs or [times_of_runs(times) for times in self.times]

    def stage_runs(self, stage: int) -> Floats:
        """Return `times_of_runs` of a stage's times."""
        return self._runs[stage]

    @cached_property
    def _rounds(self) -> Sequence[int]:
        """How often each stage but the first waits for what is in flight between it and the one before."""
        return self.rounds or [
            (self.microbatches - 1 - here) // (above - here + 1) for above, here in pairwise(self.warmup)
        ]

    @cached_property
    def bounds(self) -> list[Floats]:
        """Bound of the stages from i on, by the first layer that is theirs [S + 1][L + 1]."""
        bounds = [self._padded(self._none_left)]
        for stage, runs in reversed([*enumerate(self._runs)]):
            hop_s, trip_s = self.hop_s(stage), None
            if self.depths:
                trip_s = _later(2 * (hop_s + self._paths[stage + 1]), runs)
            onward = self._onward(stage, runs, _later(hop_s + bounds[-1], runs), trip_s)
            bounds.append(self._padded(onward.min(axis=0)))
        return [each[: len(self.times[0])] for each in reversed(bounds)]

    @cached_property
    def paths(self) -> list[Floats]:
        """Way of a microbatch through the stages from i on, by the first layer that is theirs [S + 1][L + 1]."""
        return [each[: len(self.times[0])] for each in self._paths]

    @cached_property
    def _paths(self) -> list[Floats]:
        paths = [self._padded(self._none_left)]
        for stage, runs in reversed([*enumerate(self._runs)]):
            onward = (runs if self.path == 1 else self.path * runs) + _later(self.hop_s(stage) + paths[-1], runs)
            paths.append(self._padded(onward.min(axis=0)))
        return paths[::-1]

    def _padded(self, values: Floats) -> Floats:
        """Return values by the first layer [2 L + 1], inf past the end of the model."""
        padded = np.full(2 * len(self.times[0]) - 1, np.inf)
        padded[: len(values)] = values
        return padded

    @property
    def _none_left(self) -> Floats:
        after = np.full(len(self.times[0]), np.inf)
        after[-1] = 0.0
        return after

    def _onward(self, stage: int, times: Floats, after_s: Floats, trip_s: Floats | None = None) -> Floats:
        """Return what stages from this one on take whose first has these times, and what is after it (`works`)."""
        onward = self.works(stage, times, after_s, trip_s)
        if stage and self._rounds and (rounds := self._rounds[stage - 1]):
            least_s = float(self._runs[stage - 1].min())
            waited_s = rounds * (self.hops_s[stage - 1] + self.path * least_s)
            onward = np.maximum(onward, self.path * times * (1 + rounds) + waited_s)
        return onward

    def hop_s(self, stage: int) -> float:
        """Return what a microbatch takes there and back over the cut after a stage."""
        return self.hops_s[stage] if stage < len(self.times) - 1 else 0.0

    @property
    def bound_s(self) -> float:
        """What no split's step can beat; inf where none fits memory."""
        return max(self.paced_s, self._trips_s)

    @cached_property
    def paced_s(self) -> float:
        """What no split's step can beat, however many microbatches are in flight.

        Of M microbatches no more than M / m times what m fewer ones take, if they are more than are in flight.
        """
        path_s = float(self.paths[0][0]) + (self.microbatches - 1) * self.slowest_s
        least_s = max(float(self.bounds[0][0]), path_s)
        hop_s = max(self.hops_s, default=0.0)
        if self.work is None or not self.depths or self.microbatches * hop_s < 2 * SMALL * least_s:
            return least_s
        return max(least_s, *(self._in_twos_s(self.work, first) for first in (0, 1)))

    def _in_twos_s(self, work: Floats, first: int) -> float:
        """Return the bound where stages are looked at in twos from this one on."""
        after_s, left = self._none_left, len(self.times)
        while left:
            if left - first >= 2 and not (left - first) % 2:
                after_s = self._two_s(left - 2, work, after_s)
                left -= 2
            else:
                left -= 1
                after_s = self.works(left, self.times[left], self.hop_s(left) + after_s).min(axis=1)
        return float(after_s[0])

    def _two_s(self, stage: int, work: Floats, after_s: Floats) -> Floats:
        """Return what a stage, the next one and all below take, by the first layer that is theirs [L + 1]."""
        at, depth = np.arange(len(work)), self.depths[stage]
        is_two, hop_s = at > at[:, None] + 1, self.hop_s(stage + 1)
        busy = np.where(is_two, work - work[:, None], 0.0)
        trip = busy + self.hops_s[stage]
        onward_s = np.maximum(trip + (hop_s + after_s), self.microbatches / 2 * busy)
        if self.microbatches >= 2 + depth and depth == self.depths[stage + 1] + 1:
            # Besides half a trip for each microbatch; the hop may be left out of half of one.
            besides_s = (1 - depth / 2) * trip + 2 * (hop_s + self.paths[stage + 2]) - self.hops_s[stage] / 2
            own_s = np.where(besides_s >= 0, besides_s + self.microbatches / 2 * trip, 0.0)
            onward_s = np.maximum(onward_s, own_s)
        return np.asarray(np.where(is_two, onward_s, np.inf).min(axis=1))

    @property
    def _trips_s(self) -> float:
        """The bound of whole round trips."""
        count, rest = self.trips
        if rest is None:
            return 0.0
        return count * float(self.paths[0][0]) + float(rest.bounds[0][0])

    @cached_property
    def trips(self) -> tuple[int, Splits | None]:
        """How many round trips come before the last microbatches, and the splits of those; None: none do."""
        count = (self.microbatches - 1) // self.in_flight if self.in_flight else 0
        if not count:
            return 0, None
        left = self.microbatches - count * self.in_flight
        # No more microbatches than these have weight gradients left when the last gradient leaves a stage.
        late = (min(self.microbatches - each, (1 - self.upstream) * left) for each in self.busy)
        busy = tuple(left - each for each in late)
        return count, replace(self, microbatches=left, in_flight=0, warmup=(), depths=(), rounds=(), busy=busy)

    @cached_property
    def sums(self) -> PlaneSums | None:
        """Other sums that no step is faster than."""
        return self.sums_of()

    @property
    def close_s(self) -> float:
        """What no split's step can beat, those sums looked at; it takes ten times as long."""
        return self.bound_s if self.sums is None else max(self.bound_s, self.sums.least_s)

    @cached_property
    def step_s(self) -> float:
        """What no split's step can beat, ends included."""
        return max(self.ending_s, min((least_s for _, least_s in self.levels), default=np.inf))

    @cached_property
    def ending_s(self) -> float:
        """What no split's step can beat, without looking at which ends go with which pipelines."""
        count, rest = self.trips
        trips_s = count * float(self.paths[0][0]) + rest._own_ends_s if rest is not None else 0.0
        return max(self.paced_ending_s, trips_s, self.close_s + self.least_end_s)

    @property
    def paced_ending_s(self) -> float:
        """The same, however many microbatches are in flight, and no sums looked at."""
        return max(self._own_ends_s, self.paced_s + self.least_end_s)

    @cached_property
    def _own_ends_s(self) -> float:
        """The bound of a stage's work and its own end."""
        after_s = self._none_left
        for stage in reversed(range(len(self.times))):
            own_s = self._own_s(stage, self.times[stage])
            own_s = own_s + (np.maximum(self.ends[stage], self.end_s) if self.ends else self.end_s)
            onward_s = self.upstream * self.times[stage] + (self.hop_s(stage) + after_s)
            after_s = np.maximum(own_s, onward_s).min(axis=1)
        return float(after_s[0])

    @cached_property
    def levels(self) -> list[tuple[float, float]]:
        """Longest ends, and what no step beats whose longest end is at most that, but more than the one before."""
        if not np.isfinite(self.bound_s):
            return []
        assert self.best is not None, "some split fits"
        end_s = self.least_end_s
        if self.ends_s(np.array([self.best]))[0] - end_s <= SMALL * self.close_s:
            return [(np.inf, self.close_s + end_s)]
        there = [ends[np.isfinite(times)] for ends, times in zip(self.ends, self.times, strict=True)]
        every = np.unique(np.maximum(end_s, np.concatenate(there)))
        least, tops = np.inf, np.unique(np.linspace(0, len(every) - 1, LEVELS).round().astype(int))
        known: dict[int, float] = {}
        for _ in range(2):
            pipelines_s = self._ending_s(every[tops])
            known.update(zip(tops.tolist(), pipelines_s.tolist(), strict=True))
            least = min(least, float((pipelines_s + every[tops]).min()))
            ends = sorted(known)
            wanted = [
                np.linspace(low + 1, high, LEVELS + 1)[:-1]
                for low, high in pairwise([-1, *ends])
                if high - low > 1 and known[high] + every[low + 1] < least
            ]
            tops = np.unique(np.concatenate([[], *wanted]).astype(int))
            tops = tops[[at not in known for at in tops.tolist()]]
            if not len(tops):
                break
        bounds = [-1, *sorted(known)]
        return [(float(every[high]), known[high] + float(every[low + 1])) for low, high in pairwise(bounds)]

    @cached_property
    def least_end_s(self) -> float:
        """What follows the pipeline at least: embedding and head are in the first stage and the last."""
        if not self.ends:
            return self.end_s
        if len(self.times) == 1:
            return max(self.end_s, float(self.ends[0][0, -1]))
        first, last = (self.ends[0][0], self.times[0][0]), (self.ends[-1][:, -1], self.times[-1][:, -1])
        return max(self.end_s, *(float(ends[np.isfinite(times)].min()) for ends, times in (first, last)))

    def _ending_s(self, most_s: Floats) -> Floats:
        """Return what no pipeline takes less than whose stages all end within limits [N]."""
        onward = np.full((len(most_s), len(self.times[0])), np.inf)
        onward[:, -1] = 0.0
        for stage in reversed(range(len(self.times))):
            ends = np.where(self.ends[stage] <= most_s[:, None, None], self.times[stage], np.inf)
            onward = self._onward(stage, ends, self.hop_s(stage) + onward[:, None]).min(axis=2)
        return np.asarray(np.maximum(onward[:, 0], self.close_s))

    @cached_property
    def best(self) -> tuple[int, ...] | None:
        """The layers of each stage in the split of the least bound, the earlier stages fuller; None: none fits."""
        if sum(map(len, self._runs)) < len(self.times[0]) - 1 or not np.isfinite(self.bounds[0][0]):
            return None
        counts, first = [], 0
        for stage, times in enumerate(self.times):
            values = self.works(stage, times[first], self.hop_s(stage) + self.bounds[stage + 1])
            last = int(np.flatnonzero(values <= values.min() * EXACT)[-1])
            counts.append(last - first)
            first = last
        return tuple(counts)

    def ends_s(self, counts: Ints) -> Floats:
        """Return what follows the pipelines with so many layers a stage [N, S]."""
        cuts, longest_s = np.cumsum(np.insert(counts, 0, 0, axis=1), axis=1), np.full(len(counts), self.end_s)
        for stage, ends in enumerate(self.ends):
            longest_s = np.maximum(longest_s, ends[cuts[:, stage], cuts[:, stage + 1]])
        return longest_s


def times_of_runs(times: Floats) -> Floats:
    """Return how long 1, 2, … layers after the first 0, 1, … take [K, L], as many as some take a finite time."""
    layers, step = len(times) - 1, times.itemsize
    every = np.ndarray(
        (layers, layers), buffer=np.ascontiguousarray(times), offset=step, strides=(step, (layers + 2) * step)
    )
    longest = np.flatnonzero(np.isfinite(every).any(axis=1))
    return every[: longest[-1] + 1].copy() if len(longest) else np.full((1, layers), np.inf)


def _later(values: Floats, runs: Floats) -> Floats:
    """Return what of `_padded` values is 1, 2, … places after each [K, L], for runs of so many layers."""
    step = values.itemsize
    return np.ndarray(runs.shape, buffer=values, offset=step, strides=(step, step))
