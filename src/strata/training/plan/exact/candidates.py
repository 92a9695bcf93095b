"""What one kind of unit can do at most in each of its settings, however its layers are split.

A setting has the bound of its shape (`ShapeBounds`) until it is looked into: then the least time of so many
microbatches over all splits is known, and so are most microbatches within a limit. As no stage does m microbatches
in less than m / M of what M take, as long as m are more than stages, one such point bounds shorter limits, too.
Where all k that are in flight must return before the next are begun, that holds of m = M - k, M - 2k, … alone: the
bound is n C + V(r) with M = n k + r and V(r) >= C, and M / k C is no more than that; others take no less than the
next fewer of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.training.plan.exact.config import ParallelConfig
from strata.training.plan.exact.shapes import ShapeBounds

LeastTime = Callable[[ParallelConfig, int], tuple[float, float]]
"""The time that so many microbatches of a setting take at least in any split, inf where none fits: without looking
at how many are in flight, and with that."""

ROUNDING: Final = 1 + 1e-9

_Points = dict[tuple[int, int], tuple[float, float]]
"""By setting and microbatches, what they take at least."""


class Candidates:
    """Settings of a unit with what each can do at most: `capacity.ShapeRates`."""

    def __init__(
        self, configs: Sequence[ParallelConfig], bounds: ShapeBounds, least_s: LeastTime,
        most_hidden_s: Callable[[ParallelConfig], tuple[float, float]], *, is_filled: bool,
    ) -> None:  # fmt: skip
        """`most_hidden_s`: see `rows.most_hidden_s`. `is_filled`: all microbatches are in flight (GPipe), and of
        fewer less is recomputed."""
        self.configs, self.bounds, self.looked = configs, bounds, set[int]()
        self.is_filled = is_filled
        self.hidden_s, self._unslowed_s = bounds.hidden_s.copy(), bounds.hidden_s.copy()
        """How much of a gradient sum each hides at most, and without a longer step for it [settings]."""
        self._least_s, self._most_hidden_s, self._points = least_s, most_hidden_s, _Points()
        self._first_s = bounds.first_s.copy()

    def most_samples(self, limits_s: Floats) -> Floats:
        """Return a bound on the samples within time limits [limits] or each setting's own [settings, limits]."""
        most = self.bounds.most_samples(limits_s)
        limits_s = np.broadcast_to(limits_s, most.shape)
        for (at, count), (paced_s, least_s) in self._points.items():
            own_s = limits_s[at]
            fewer = self._fewer(int(self.bounds.stages[at]), count, own_s / paced_s, own_s / least_s)
            capped = np.minimum(most[at], fewer * self.bounds.samples[at])
            most[at] = np.where(own_s * ROUNDING < least_s, capped, most[at])
        return most

    def most_hiding(self, limits_s: Floats, hides_s: Floats, *, is_step: bool) -> Floats:
        """Return a bound on the samples within limits if so much is hidden [settings, limits].

        `is_step`: of a sum after each step, where what is recomputed to hide more may be counted in full.
        """
        left_s = limits_s - self._slower_s(hides_s) if is_step else limits_s
        return np.where(self.hidden_s[:, None] >= hides_s, self.most_samples(left_s), 0.0)

    def _slower_s(self, hides_s: Floats) -> Floats:
        """Return what settings take longer at least because they hide so much [settings, amounts]."""
        return np.maximum(0.0, hides_s - self._unslowed_s[:, None])

    def _fewer(self, stages: int, count: int, paced: Floats, due: Floats) -> Floats:
        """Return how many microbatches are done at most in such shares of the time of so many."""
        if self.is_filled and stages > 1:
            return np.full_like(due, count - 1)
        trips = np.ceil(np.maximum(0.0, count - stages - count * due * ROUNDING) / stages)
        reached = np.minimum(np.floor(count * paced * ROUNDING), count - 1 - stages * trips)
        # Of no more microbatches than stages none waits for another; of fewer fewer are in flight, which recompute
        # less, or fit where more do not.
        return np.asarray(np.minimum(count - 1, np.maximum(stages, reached)))

    def could(self, limit_s: float) -> Floats:
        """Return the most samples within a time limit in each setting."""
        return self.most_samples(np.array([limit_s]))[:, 0]

    def most(self, limit_s: float) -> float:
        """Return the most samples within a time limit."""
        return float(self.could(limit_s).max(initial=0.0))

    def best_open(self, limit_s: float, hides_s: float, *, is_step: bool = False) -> tuple[int, float] | None:
        """Return the setting that could do most within a time, of those that hide so much, and what its work may
        take then; None: it is known to.

        Where none does a microbatch in it, that whose first is done soonest. `is_step`: see `most_hiding`.
        """
        hides = np.array([hides_s])
        could = self.most_hiding(np.array([limit_s]), hides, is_step=is_step)[:, 0]
        if could.max(initial=0.0) > 0:
            at = int(could.argmax())
            left_s = limit_s - float(self._slower_s(hides)[at, 0]) if is_step else limit_s
            known = self._points.get((at, self._count(at, could[at])))
            return None if known is not None and known[1] <= left_s * ROUNDING else (at, left_s)
        first_s = np.where(self.hidden_s >= hides_s, self._first_s, np.inf)
        if not np.isfinite(first_s.min(initial=np.inf)):
            return None
        at = int(first_s.argmin())
        return None if (at, 1) in self._points else (at, limit_s)

    def look(self, at: int, limit_s: float) -> None:
        """Find out how much a setting does within a limit, or how long its first microbatch takes."""
        if at not in self.looked:
            self.looked.add(at)
            most_s, unslowed_s = self._most_hidden_s(self.configs[at])
            self.hidden_s[at] = min(self.hidden_s[at], most_s)
            self._unslowed_s[at] = min(self._unslowed_s[at], unslowed_s)
        done, count = 0, max(1, self._count(at, self.could(limit_s)[at]))
        limit_s *= ROUNDING
        if self._time_s(at, count) <= limit_s:
            return
        done_s, is_line = 0.0, True
        while count - done > 1:
            share = (limit_s - done_s) / (self._time_s(at, count) - done_s) if is_line else 0.5
            middle = min(max(done + 1, done + int(share * (count - done))), count - 1)
            time_s, is_line = self._time_s(at, middle), not is_line
            if time_s <= limit_s:
                done, done_s = middle, time_s
            else:
                count = middle

    def _time_s(self, at: int, count: int) -> float:
        if (at, count) not in self._points:
            self._points[at, count] = self._least_s(self.configs[at], count)
            if count == 1:
                self._first_s[at] = max(self._first_s[at], self._points[at, 1][1])
        return self._points[at, count][1]

    def _count(self, at: int, samples: float) -> int:
        return round(float(samples) / int(self.bounds.samples[at]))

    @property
    def first_s(self) -> Floats:
        """The least time of one microbatch in each [settings]."""
        return self._first_s

    @property
    def rate(self) -> float:
        """Samples a second in the best of them, at most."""
        return self.bounds.rate
