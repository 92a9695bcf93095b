"""What plans are expected to earn, and what going there costs.

A plan's rate is computed for every state of the links that was measured, whether the plan ran or not. All links a
candidate uses are looked at, those of the plan in use no more than others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats
from strata.control.candidates import Candidates
from strata.control.forecast import USUAL_ROWS, Forecast
from strata.control.rollouts import NEVER, Moving, Rollouts
from strata.training.hi_ppo.global_agent import RESTART_S
from strata.training.replan.options import HORIZONS, Options
from strata.workload.plan import TrainingPlan

MOST_ROWS: Final = 96
"""Measurements of a link that are kept, and that a forecast is fitted to: eight hours of 300 s."""

AHEAD: Final = 6
"""Decisions looked ahead at: what is still better then can be gone to then."""

NOW_AND_BEFORE: Final = 2
"""Decisions that `Moment.first` is the worth of."""

_MOST_MOMENTS: Final = 1024


Beside = Callable[[], Floats | None]


class History:
    """Factors [T, L] of links at every time they were measured, the last row just now; speeds of domains may
    follow, [T, L + K].
    """

    def __init__(self, factors: Floats) -> None:
        self.factors = factors

    @cached_property
    def rows(self) -> list[tuple[float, ...]]:
        """The newest MOST_ROWS of them."""
        return [tuple(row) for row in self.factors[-MOST_ROWS:].tolist()]

    @cached_property
    def marks(self) -> list[int]:
        """A number for each of `rows`: equal rows have equal ones."""
        return [hash(row) for row in self.rows]


@dataclass(frozen=True, eq=False)
class Moment:
    """P plans at one decision, in shares of the best nominal rate, whatever plan is in use.

    now [P]: what each earns with links as just measured. ahead [H, P]: expected now and at the next decisions.
    mean [P]: what each earned until now. pause [P, P]: how long going from one to another takes, in decisions; inf
    where weights cannot be moved, of one to itself the restart of who comes back to it. rho [P]: see `Forecast`.
    rollouts: what may come. first [P]: what each is worth to who has no plan yet: what it earns now and what it
    earned before, on average; now alone where a link is beyond any noise.
    """

    now: Floats
    ahead: Floats
    mean: Floats
    pause: Floats
    rho: Floats
    first: Floats
    rollouts: Rollouts

    def cost(self, current: int, moving: Moving) -> Floats:
        """Return [P] what going to each plan costs once, more than to stay with `current`.

        Nothing where it is there sooner than weights that are still under way: that alone is no reason to turn.
        """
        cost = moving.pause(self.pause, current) * np.maximum(self.now, self.mean)
        return np.maximum(0.0, cost - (cost[current] if np.isfinite(cost[current]) else NEVER))

    def gain(self, current: int, cost: Floats) -> Floats:
        """Return [P] the most that going to each plan earns over the decisions ahead, its cost paid.

        Waiting for a better moment costs nothing: to a plan that is no better now it is -inf.
        """
        summed = np.cumsum(self.ahead[:AHEAD], axis=0)
        gain = (summed - summed[:, [current]]).max(axis=0) - cost
        gain = np.where((self.now > self.now[current]) & np.isfinite(cost), gain, -np.inf)
        gain[current] = 0.0
        return gain


@dataclass(frozen=True, eq=False, slots=True)
class Outlook:
    """P plans at one decision of a job.

    now, ahead, rho, rollouts, cost, gain: see `Moment`; where no plan is in use the gain is what it is worth to
    who has none. current: -1 for none yet. beside: what other jobs earn beside each plan [P],
    in shares of their best nominal rates; it answers None where no other job shares a link. others [P]: of that,
    what counts for this job (`together`).
    """

    now: Floats
    ahead: Floats
    cost: Floats
    gain: Floats
    rho: Floats
    current: int
    rollouts: Rollouts
    beside: Beside
    others: Floats | float = 0.0

    def together(self) -> Outlook:
        """Return the same where what a plan takes from other jobs is a loss of this one's."""
        others = self.beside()
        if others is None:
            return self
        others = others - (others.min() if self.current < 0 else others[self.current])
        return replace(self, others=others, rollouts=replace(self.rollouts, others=others))

    def options(self, legal: Bools) -> Options:
        """Return the same as one decision for rules and learned policies."""
        count = len(self.now)
        links = np.ones((1, count, 4))
        links[0, :, 0], links[0, :, 1] = self.now.clip(0, 1), self.ahead[HORIZONS[-1]].clip(0, 1)
        links[0, :, 2] = links[0, :, 3] = self.rho
        value = np.maximum(self.ahead[list(HORIZONS)].T, 0.0)
        value[:, 0] = self.now
        value += np.reshape(self.others, (-1, 1))
        cost = np.where(np.isfinite(self.cost), self.cost, 1e3)
        return Options(
            value=value[None],
            cost=cost[None],
            links=links,
            current=np.array([self.current]),
            legal=(legal & (np.isfinite(self.cost) | (np.arange(count) == self.current)))[None],
            preference=np.array([(1.0, 0.0, 0.0)]),
        )


def outlook_of(
    candidates: Candidates, history: History, *, current: int, interval_s: float, restart_s: float | None = None,
    beside: Beside = lambda: None, moving: Moving | None = None,
) -> Outlook:  # fmt: skip
    """Return the outlook of a job's plans.

    history: of the links in the order of `candidates.pairs`, one row at least.
    current: the plan in use, -1 for none yet. restart_s: what a restart of this job was measured to take; None
    for what is assumed. moving: where weights are still under way to the plan in use.
    """
    restart_s = RESTART_S if restart_s is None else restart_s
    last = _latest(candidates, history, interval_s=interval_s, restart_s=restart_s)
    rollouts = last.rollouts if moving is None else replace(last.rollouts, moving=moving)
    if current < 0:
        cost, others = np.zeros(len(last.now)), beside()
        gain = last.first if others is None else last.first + NOW_AND_BEFORE * (others - others.min())
    else:
        cost = last.cost(current, moving or Moving(current, 0.0))
        gain = last.gain(current, cost)
    return Outlook(last.now, last.ahead, cost, gain, last.rho, current, rollouts, beside)


def move_s(
    candidates: Candidates, history: History, *, source: TrainingPlan, to: TrainingPlan, restart_s: float | None
) -> float:
    """Return what a restart and the move of weights take, links as just measured [s]; inf without a path."""
    restart_s = RESTART_S if restart_s is None else restart_s
    if source == to:
        return restart_s
    known = candidates.with_plan(source).with_plan(to)
    moves_s = known.moves_s(history.rows[-1])[known.index[source], known.index[to]]
    return float(moves_s) - RESTART_S + restart_s


def _latest(candidates: Candidates, history: History, *, interval_s: float, restart_s: float) -> Moment:
    """Return the last decision; those looked at before are remembered."""
    key = (interval_s, restart_s, *history.marks)
    known = candidates.moments.get(key)
    if not isinstance(known, Moment):
        if len(candidates.moments) >= _MOST_MOMENTS:
            candidates.moments.clear()
        known = _moment(candidates, history.rows, interval_s=interval_s, restart_s=restart_s)
        candidates.moments[key] = known
    return known


def _moment(
    candidates: Candidates, rows: list[tuple[float, ...]], *, interval_s: float, restart_s: float
) -> Moment:
    # Weights are moved over any link, but no plan's rate depends on one that none sends over.
    candidates.prepare(rows)
    best = candidates.nominal.max()
    rates, usual = np.stack([candidates.rates(row) for row in rows]) / best, candidates.usual / best
    forecast = Forecast.of(rates, usual)
    states = [*rows, (1.0,) * len(candidates.pairs)]
    pauses = np.stack([_pause(candidates.moves_s(row), interval_s, restart_s) for row in states])
    pause, now, mean = pauses[-2], rates[-1], rates.mean(axis=0)
    before = (rates[:-1].sum(axis=0) + usual) / len(rates)
    ahead = forecast.ahead(HORIZONS[-1] + 1)
    return Moment(
        now,
        ahead,
        mean,
        pause,
        forecast.rho,
        now + np.where(candidates.beyond_noise(rows[-1]), now, before),
        Rollouts(rates, np.tile(usual, (USUAL_ROWS, 1)), ahead[0], forecast.rho, pauses[:-1], pauses[-1]),
    )


def _pause(moves_s: Floats, interval_s: float, restart_s: float) -> Floats:
    """Return how many decisions switches [P, P] take, of their times with the restart that is assumed."""
    pause = (moves_s - RESTART_S + restart_s) / interval_s
    np.fill_diagonal(pause, restart_s / interval_s)
    return np.asarray(pause)
