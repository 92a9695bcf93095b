"""What plans are expected to earn, what going there costs, and which way of deciding has earned the most so far.

A plan's rate is computed for every state of the links that was measured, whether the plan ran or not. So what each
rule would have earned is known without trying it: the rules are followed through the past, and the one that
earned the most decides (prediction with expert advice, full information). All links a candidate uses are looked
at, those of the plan in use no more than others.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.control.analogs import Analogs
from strata.control.candidates import Candidates
from strata.control.forecast import Forecast
from strata.training.hi_ppo.global_agent import RESTART_S
from strata.training.replan.options import HORIZONS, Options
from strata.training.replan.rules import MARGIN

FITTED_ROWS: Final = 96
"""Decisions that a forecast is fitted to: eight hours of 300 s."""

MOST_ROWS: Final = 2 * FITTED_ROWS
"""Measurements of a link that are kept: the rules are followed through the last FITTED_ROWS, each of which looks
back as far."""

AHEAD: Final = 6
"""Decisions looked ahead at: what is still better then can be gone to then."""

LEAD: Final = 1.0
"""What the margin must have earned more than the expected gain to decide, in decisions' worth: less is luck."""

_MOST_MOMENTS: Final = 1024


class Leader(StrEnum):
    """The rules that are followed: the largest expected gain, and what is faster now by half of the cost."""

    GAIN = "gain"
    MARGIN = "margin"


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
    cost [P, P]: what going from one to another costs once; inf where weights cannot be moved. pause [P, P]: how
    long that takes, in decisions. rho [P]: see `Forecast`. first [P]: what each is worth to who has no plan yet:
    what it earns now and what it earned before, on average; now alone where a link is beyond any noise.
    """

    now: Floats
    ahead: Floats
    cost: Floats
    pause: Floats
    rho: Floats
    first: Floats

    @cached_property
    def gain(self) -> Floats:
        """[P, P]: the most that going from one plan to another earns over the decisions ahead, its cost paid.

        Waiting for a better moment costs nothing: to a plan that is no better now it is -inf.
        """
        summed = np.cumsum(self.ahead[:AHEAD], axis=0)
        gain = (summed[:, None, :] - summed[:, :, None]).max(axis=0) - self.cost
        gain = np.where((self.now[None] > self.now[:, None]) & np.isfinite(self.cost), gain, -np.inf)
        np.fill_diagonal(gain, 0.0)
        return gain

    @cached_property
    def margin(self) -> Floats:
        """[P, P]: how much faster a plan is now, half of the cost of going there taken off."""
        worth = self.now[None] - self.now[:, None] - MARGIN * self.cost
        np.fill_diagonal(worth, 0.0)
        return np.asarray(worth)

    @cached_property
    def picks(self) -> dict[Leader, Ints]:
        """Where each rule goes from each plan [P]; a tie stays."""
        worths = {Leader.GAIN: self.gain, Leader.MARGIN: self.margin}
        stays = np.arange(len(self.now))
        return {
            name: np.where(worth.max(axis=1) > 0, worth.argmax(axis=1), stays) for name, worth in worths.items()
        }


@dataclass(frozen=True, eq=False, slots=True)
class Outlook:
    """P plans at one decision of a job.

    now, ahead, rho: see `Moment`. cost, gain [P]: from the plan in use; where there is none the gain is
    `Moment.first`. current: -1 for none yet.
    leader: the rule that decides. analogs: all decisions measured so far.
    """

    now: Floats
    ahead: Floats
    cost: Floats
    gain: Floats
    rho: Floats
    current: int
    leader: Leader
    analogs: Analogs

    def options(self, legal: Bools) -> Options:
        """Return the same as one decision for rules and learned policies."""
        count = len(self.now)
        links = np.ones((1, count, 4))
        links[0, :, 0], links[0, :, 1] = self.now.clip(0, 1), self.ahead[HORIZONS[-1]].clip(0, 1)
        links[0, :, 2] = links[0, :, 3] = self.rho
        value = np.maximum(self.ahead[list(HORIZONS)].T, 0.0)
        value[:, 0] = self.now
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
    candidates: Candidates, history: History, *, current: int, interval_s: float, restart_s: float | None = None
) -> Outlook:
    """Return the outlook of a job's plans.

    history: of the links in the order of `candidates.pairs`, one row at least.
    current: the plan in use, -1 for none yet. restart_s: what a restart of this job was measured to take; None
    for what is assumed.
    """
    restart_s = RESTART_S if restart_s is None else restart_s
    moments = _moments(candidates, history, interval_s=interval_s, restart_s=restart_s)
    last = moments[-1]
    nominal = candidates.moves_s((1.0,) * len(candidates.pairs))
    analogs = Analogs(
        np.stack([candidates.usual / candidates.nominal.max(), *(moment.now for moment in moments)]),
        (_pause(nominal, interval_s, restart_s), *(moment.pause for moment in moments)),
    )
    if current < 0:
        none = np.zeros(len(last.now))
        return Outlook(last.now, last.ahead, none, last.first, last.rho, current, Leader.GAIN, analogs)
    return Outlook(
        last.now, last.ahead, last.cost[current], last.gain[current], last.rho, current, _leader(moments), analogs
    )


def _leader(moments: list[Moment]) -> Leader:
    """Return the rule that decides, both followed from one plan through the past: the margin where it would have
    earned clearly more."""
    first = int(moments[0].first.argmax())
    earned = dict.fromkeys(Leader, 0.0)
    for name in Leader:
        plan, pause = first, 0.0
        for moment in moments[1:]:
            to = int(moment.picks[name][plan])
            if to != plan:
                plan, pause = to, float(moment.pause[plan, to])
            earned[name] += float(moment.now[plan]) * max(0.0, 1 - pause)
            pause = max(0.0, pause - 1)
    return Leader.MARGIN if earned[Leader.MARGIN] > earned[Leader.GAIN] + LEAD else Leader.GAIN


def _moments(candidates: Candidates, history: History, *, interval_s: float, restart_s: float) -> list[Moment]:
    """Return the last FITTED_ROWS decisions; those looked at before are remembered."""
    # Weights are moved over any link, but no plan's rate depends on one that none sends over.
    rows, marks, moments = history.rows, history.marks, list[Moment]()
    candidates.prepare(rows)
    for at in range(max(0, len(rows) - FITTED_ROWS), len(rows)):
        begin = max(0, at + 1 - FITTED_ROWS)
        key = (interval_s, restart_s, *marks[begin : at + 1])
        known = candidates.moments.get(key)
        if not isinstance(known, Moment):
            if len(candidates.moments) >= _MOST_MOMENTS:
                candidates.moments.clear()
            rates = np.stack([candidates.rates(row) for row in rows[begin : at + 1]])
            known = _moment(candidates, rates, rows[at], interval_s=interval_s, restart_s=restart_s)
            candidates.moments[key] = known
        moments.append(known)
    return moments


def _moment(
    candidates: Candidates, rates: Floats, row: tuple[float, ...], *, interval_s: float, restart_s: float
) -> Moment:
    best = candidates.nominal.max()
    rates, usual = rates / best, candidates.usual / best
    forecast = Forecast.of(rates, usual)
    pause = _pause(candidates.moves_s(row), interval_s, restart_s)
    now, mean = rates[-1], rates.mean(axis=0)
    before = (rates[:-1].sum(axis=0) + usual) / len(rates)
    return Moment(
        now,
        forecast.ahead(HORIZONS[-1] + 1),
        pause * np.maximum(now, mean)[None],
        pause,
        forecast.rho,
        now + np.where(candidates.beyond_noise(row), now, before),
    )


def _pause(moves_s: Floats, interval_s: float, restart_s: float) -> Floats:
    """Return how many decisions switches [P, P] take, of their times with the restart that is assumed."""
    pause = (moves_s - RESTART_S + restart_s) / interval_s
    np.fill_diagonal(pause, 0.0)
    return np.asarray(pause)
