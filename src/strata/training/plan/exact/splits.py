"""All ways to share consecutive layers over a pipeline's stages, as far as a step of them could be fast enough.

Three things bound the step of M microbatches in a split, t_i the time of stage i, hop_i there and back over the
cut after it, and "upstream" the stages and hops before a stage (`screening.lower_bound_s` has the first two):

* a stage works through all microbatches: upstream + M t_i;
* so does the slowest link, beside the way of one microbatch: path + (M - 1) × its serialisation;
* a stage waits for what is in flight to its next one: upstream + t_i + n (t_i-1 + hop_i-1 + t_i), n the
  round trips that warm-ups w make, floor((M - 1 - w_i) / (w_i-1 - w_i + 1)): each ends before the next begins
  (the cycle of `screening.one_f_one_b_s`).

The first is nested, V_i = max(M t_i, t_i + hop_i + V_i+1), so its least over all splits is found backwards, one
stage at a time; so is the shortest path. The third needs two stages and is looked at where both are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from strata.arrays import Floats

EXACT: Final = 1 + 1e-12
"""What is equal but for rounding counts as equal."""


@dataclass(frozen=True)
class Splits:
    """The splits of L layers over S stages, at least one layer each.

    times: per stage, time [L + 1, L + 1] of the layers from a row to a column, inf where they are none or too
    many for its memory. hops_s: per cut, there and back. rounds: per cut, the round trips that are waited for.
    slowest_s: how long the slowest link is busy with one message.
    """

    times: Sequence[Floats]
    hops_s: Sequence[float]
    rounds: Sequence[int]
    slowest_s: float
    microbatches: int

    @cached_property
    def _least(self) -> tuple[list[Floats], list[Floats]]:
        """Bound and path of the stages from i on, by the first layer that is theirs [S + 1][L + 1]."""
        after = np.full(len(self.times[0]), np.inf)
        after[-1] = 0.0
        bounds, paths = [after], [after]
        for stage in reversed(range(len(self.times))):
            times, hop_s = self.times[stage], self._hop_s(stage)
            onward = np.maximum(times * self.microbatches, times + (hop_s + bounds[-1]))
            if stage and (rounds := self.rounds[stage - 1]):
                least_s = float(np.diagonal(self.times[stage - 1], 1).min())
                onward = np.maximum(onward, times * (1 + rounds) + rounds * (self.hops_s[stage - 1] + least_s))
            bounds.append(onward.min(axis=1))
            paths.append((times + (hop_s + paths[-1])).min(axis=1))
        return bounds[::-1], paths[::-1]

    def _hop_s(self, stage: int) -> float:
        return self.hops_s[stage] if stage < len(self.times) - 1 else 0.0

    @property
    def bound_s(self) -> float:
        """What no split's step can beat; inf where none fits memory."""
        bounds, paths = self._least
        return max(float(bounds[0][0]), float(paths[0][0]) + (self.microbatches - 1) * self.slowest_s)

    @cached_property
    def best(self) -> tuple[int, ...] | None:
        """The layers of each stage in the split of the least bound, the earlier stages fuller; None: none fits."""
        if not np.isfinite(self.bound_s):
            return None
        counts, first = [], 0
        bounds, _ = self._least
        for stage, times in enumerate(self.times):
            onward = times[first] + (self._hop_s(stage) + bounds[stage + 1])
            values = np.maximum(times[first] * self.microbatches, onward)
            last = int(np.flatnonzero(values <= values.min() * EXACT)[-1])
            counts.append(last - first)
            first = last
        return tuple(counts)

    def within(self, limit_s: float) -> Iterator[tuple[int, ...]]:
        """Yield every split whose own bound is at most `limit_s`: no step of any other one is faster than that."""
        bounds, paths = self._least
        stages, waited_s = len(self.times), (self.microbatches - 1) * self.slowest_s
        partial: list[tuple[tuple[int, ...], int, float, float]] = [((), 0, 0.0, 0.0)]
        while partial:
            counts, first, upstream_s, before_s = partial.pop()
            stage = len(counts)
            if stage == stages:
                yield counts
                continue
            times, hop_s = self.times[stage][first], self._hop_s(stage)
            values = np.maximum(times * self.microbatches, times + (hop_s + bounds[stage + 1]))
            values = np.maximum(values, times + (hop_s + waited_s + paths[stage + 1]))
            if stage and (rounds := self.rounds[stage - 1]):
                around = times + (before_s + self.hops_s[stage - 1])
                values = np.maximum(values, times + rounds * around)
            fitting = np.flatnonzero(np.isfinite(values) & (values <= limit_s - upstream_s))
            # The best comes last, and is taken first.
            for last in fitting[np.argsort(-values[fitting], kind="stable")].tolist():
                time_s = float(times[last])
                partial.append(((*counts, last - first), last, upstream_s + time_s + hop_s, time_s))
