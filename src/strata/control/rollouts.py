"""What going to a plan is worth where a fixed margin decides from then on, over futures drawn from the past.

Rollouts of a base rule (Bertsekas, Tsitsiklis and Wu 1997, Journal of Heuristics 3, 245-262): who deviates from
the rule only where that earns more, and follows it again afterwards, is no worse than the rule, as far as the
futures are like what comes. All plans meet the same futures, so what chance does to all of them is no difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.training.replan.rules import MARGIN

FUTURES: Final = 64
DECISIONS: Final = 16
"""Of each future: where a switch pays at all, it mostly does within them."""

SURE: Final = 2.0
"""Standard errors over futures by which a gain must be above LEAST: the belief's spread, not its mean alone."""

LEAST: Final = 0.2
"""Gain that is none, in decisions at the best rate."""

NEVER: Final = 1e3
"""What a switch takes where weights cannot be moved, in decisions."""


@dataclass(frozen=True, slots=True)
class Moving:
    """Weights under way. source: the number of the plan that they lie by. left: decisions until they have moved,
    inf where there is no path.
    """

    source: int
    left: float

    def pause(self, pause: Floats, current: int) -> Floats:
        """Return the decisions [P] that going on to `current`, back or elsewhere takes; pause [P, P]: of moves."""
        own = pause[self.source].copy()
        own[current] = self.left
        return np.asarray(own)


@dataclass(frozen=True, eq=False, slots=True)
class Rollouts:
    """P plans at one decision, in shares of the best nominal rate.

    past [T, P]: what each earned at every decision, the last row now, and rows of what it usually earns, which
    count as if measured. level [P]: expected now. rho [P]: chance that a level lasts. pauses [T, P, P]: decisions
    that switches took then, nominal [P, P]: where links are as stated; inf where weights cannot be moved, of one
    to itself the restart of who comes back to it. others [P]: what other jobs earn beside each plan at every
    decision, from when it is gone to. moving: of a job whose weights are still under way to the plan that it runs.

    Weights lie by a plan once the move there is over: who goes elsewhere before pays from where they lie.
    """

    past: Floats
    usual: Floats
    level: Floats
    rho: Floats
    pauses: Floats
    nominal: Floats
    others: Floats | float = 0.0
    moving: Moving | None = None

    def earned(self, current: int, legal: Bools) -> Floats:
        """Return what going from a plan to each earns, [P, FUTURES]; -inf to where it cannot go."""
        (rates, rows), count = self._futures(), len(self.level)
        every = np.concatenate([self.pauses, self.nominal[None]])
        every, moving = np.where(np.isfinite(every), every, NEVER), self.moving or Moving(current, 0.0)
        pause = moving.pause(self.pauses[-1], current)
        usual = np.concatenate([self.past, self.usual]).mean(axis=0)
        plans = np.tile(np.arange(count)[:, None], (1, FUTURES))
        left = np.tile(np.where(np.isfinite(pause), pause, NEVER)[:, None], (1, FUTURES))
        lie = np.where(left > 0, moving.source, plans)
        each, sums, others = np.arange(FUTURES)[None], np.zeros((count, FUTURES)), np.zeros(count) + self.others
        for decision, (now, row) in enumerate(zip(rates, rows, strict=True)):  # now: (FUTURES, P), row: (FUTURES,)
            if decision:
                later = every[row[None], lie]  # (P, FUTURES, P)
                np.put_along_axis(later, plans[..., None], left[..., None], axis=2)
                both, cost = now + others, later * np.maximum(now, usual)
                more = np.maximum(0.0, cost - np.take_along_axis(cost, plans[..., None], 2))
                worth = both[None] - both[each, plans][..., None] - MARGIN * more
                worth = np.where(legal, worth, -np.inf)
                to = worth.argmax(axis=2)
                goes = worth.max(axis=2) > 0
                left, plans = (
                    np.where(goes, np.take_along_axis(later, to[..., None], 2)[..., 0], left),
                    np.where(goes, to, plans),
                )
            sums += now[each, plans] * np.maximum(0.0, 1 - left) + others[plans]
            left = np.maximum(0.0, left - 1)
            lie = np.where(left > 0, lie, plans)
        can_go = (np.isfinite(pause) & legal) | (np.arange(count) == current)
        return np.where(can_go[:, None], sums, -np.inf)

    def surely(self, current: int, legal: Bools, *, base: int) -> Floats:
        """Return what each plan [P] surely earns more than `base`, which must be one to go to; 0 for that.

        Staying needs no LEAST: a base that goes after noise loses less than that at a time, and at every time.
        """
        earned = self.earned(current, legal)
        there = np.isfinite(earned[:, 0])
        more = earned[there] - earned[base]
        result = np.full(len(earned), -np.inf)
        least = np.where(np.arange(len(earned)) == current, 0.0, LEAST)[there]
        result[there] = more.mean(axis=1) - SURE * more.std(axis=1) / np.sqrt(FUTURES) - least
        result[base] = 0.0
        return result

    def _futures(self) -> tuple[Floats, Ints]:
        """Return rates [DECISIONS + 1, FUTURES, P]: a level lasts, or comes to what it was some time before; and
        whose pauses hold then [DECISIONS + 1, FUTURES], a row of the past or the nominal ones: a link that is down
        holds both, so what gets stuck is weighed with what it would then lose.

        Plans' levels end together where they last as long, as they cross the same links. The draws are always the
        same ones, so a decision is a function of what was measured.
        """
        rng, rows = np.random.default_rng(0), np.concatenate([self.past, self.usual])
        drawn = rng.integers(0, len(rows), (DECISIONS, FUTURES))
        chance = rng.random((DECISIONS, FUTURES))
        rates = np.empty((DECISIONS + 1, FUTURES, len(self.level)))
        rates[0], level = self.past[-1], np.tile(self.level, (FUTURES, 1))
        last = np.full((DECISIONS + 1, FUTURES), len(self.past) - 1)
        source = np.minimum(drawn, len(self.past))
        for decision in range(DECISIONS):
            ends = chance[decision][:, None] > self.rho
            level = np.where(ends, rows[drawn[decision]], level)
            rates[decision + 1] = level
            last[decision + 1] = np.where(chance[decision] > self.rho.mean(), source[decision], last[decision])
        return rates, last
