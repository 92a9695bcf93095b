"""The shapes of one kind of unit of which few are built: those that could be part of a plan better than others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from strata.arrays import Bools, Floats
from strata.training.plan.exact.config import ParallelConfig
from strata.training.plan.exact.shapes import ShapeBounds
from strata.training.plan.exact.unit import Built, Inner


class Candidates:
    """Settings of a unit with what each can do at most, until it is built: `capacity.ShapeRates` of both."""

    def __init__(self, configs: Sequence[ParallelConfig], bounds: ShapeBounds) -> None:
        self.configs, self.inners = configs, list[Inner]()
        self._bounds, self._left = bounds, np.ones(len(configs), dtype=bool)

    def __len__(self) -> int:
        """How many settings are not yet built."""
        return int(self._left.sum())

    def best_open(self, limit_s: float, hides_s: float) -> int | None:
        """Return the setting that could do most within a time, of those that hide so much; None: one is built.

        Where none does a microbatch in it, that whose first is done soonest.
        """
        limits_s, built = np.array([limit_s]), [each for each in self.inners if each.hidden_s >= hides_s]
        able = self._left & (self._bounds.hidden_s >= hides_s)
        could = np.where(able, self._bounds.most_samples(limits_s)[:, 0], 0.0)
        done = Built(built).most_within(limit_s)
        if could.max(initial=0.0) > done:
            return int(could.argmax())
        first_s = np.where(able, self._bounds.first_s, np.inf)
        if not done and first_s.min(initial=np.inf) < Built(built).first_s.min(initial=np.inf):
            return int(first_s.argmin())
        return None

    def put(self, at: int, inners: Sequence[Inner]) -> None:
        """Let these shapes stand for the setting at a position; none where it does not fit."""
        self._left[at] = False
        self.inners.extend(inners)

    def could(self, limit_s: float) -> Floats:
        """Return the most samples within a time limit in each setting not yet built, else 0."""
        return np.asarray(np.where(self._left, self._bounds.most_samples(np.array([limit_s]))[:, 0], 0.0))

    def most(self, limit_s: float) -> float:
        """Return the most samples within a time limit."""
        return max(Built(self.inners).most_within(limit_s), float(self.could(limit_s).max(initial=0.0)))

    @property
    def _open(self) -> ShapeBounds:
        return _picked(self._bounds, self._left)

    @property
    def hidden_s(self) -> Floats:
        """How much of a gradient sum each hides at most [shapes]."""
        return np.concatenate([self._open.hidden_s, Built(self.inners).hidden_s])

    @property
    def first_s(self) -> Floats:
        """The least time of one microbatch in each [shapes]."""
        return np.concatenate([self._open.first_s, Built(self.inners).first_s])

    @property
    def rate(self) -> float:
        """Samples a second in the best of them, at most."""
        return max(self._open.rate, Built(self.inners).rate)

    def most_samples(self, limits_s: Floats) -> Floats:
        """Return the most samples within each time limit [shapes, limits]."""
        return np.concatenate([self._open.most_samples(limits_s), Built(self.inners).most_samples(limits_s)])


def _picked(bounds: ShapeBounds, rows: Bools) -> ShapeBounds:
    return ShapeBounds(*(getattr(bounds, field.name)[rows] for field in fields(bounds)))
