"""What plans are worth in the long run, told by what followed states of the links that were like the one now.

Kernel-based reinforcement learning (Ormoneit and Sen 2002, Machine Learning 49, 161-178): the decisions measured
so far are the states of a Markov chain, each followed by what followed those like it. On that chain the value of
keep or switch is iterated, restarts and moved weights paid, so it counts what a forecast of rates leaves out: the
way back, links that fail together, and plans whose weights cannot leave once a link is down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.control.levels import noise_scale

CLOSE: Final = 0.03
"""States are alike whose rates differ by so much, in shares of the best nominal rate; more if rates are noisy."""

SLOPE: Final = 0.5
"""What a difference of the last steps weighs beside one of rates: waves that rise are not like waves that fall."""

LEAST_SEEN: Final = 2.0
"""How many states like the one now must have been followed by something, for the past to tell of it."""

PRIOR_ROWS: Final = 5.0
PRIOR_STAY: Final = 0.85
"""Every state counts as seen so often before: it stayed with this chance, else went to any state seen so far."""

DISCOUNT: Final = 0.97
"""Of what is earned a decision later: some 30 decisions are looked ahead at."""

ROUNDS: Final = 25
NEVER: Final = 1e3
"""What going costs where weights cannot be moved, in decisions."""


@dataclass(frozen=True, eq=False)
class Analogs:
    """T decisions of P plans, the first one what plans usually earn, the last one now.

    rates [T, P]: in shares of the best nominal rate. pauses [P, P] of each decision: how many decisions a switch
    takes; inf where weights cannot be moved.
    """

    rates: Floats
    pauses: Sequence[Floats]

    @property
    def tells(self) -> bool:
        """Whether enough states like the one now were seen."""
        return bool(self.seen[-1].sum() >= LEAST_SEEN)

    @property
    def noise(self) -> float:
        """Standard deviation of what is drawn anew each time: neither a few jumps nor a slope are noise."""
        rows = self.rates[1:]
        if len(rows) < 4:
            return 0.0
        # The median of |steps| and of |second differences|, as shares of the normal distribution's.
        steps, bends = (np.median(np.abs(np.diff(rows, n=n, axis=0)), axis=0) / 0.6745 for n in (1, 2))
        return float(np.sqrt(np.mean(np.minimum(steps / np.sqrt(2), bends / np.sqrt(6)) ** 2)))

    def worth(self, current: int) -> Floats:
        """Return what going from a plan to each [P] is worth from now on, in decisions at the best rate."""
        chain = self._chain()
        pauses = np.stack(self.pauses)
        cost = (
            np.where(np.isfinite(pauses), pauses, NEVER) * np.maximum(self.rates, self.rates.mean(axis=0))[:, None]
        )
        stays = np.arange(self.rates.shape[1])
        cost[:, stays, stays] = 0.0
        value = np.tile(self.rates.mean(axis=0) / (1 - DISCOUNT), (len(self.rates), 1))
        for _ in range(ROUNDS):
            value = (self._earned(chain, value)[:, None, :] - cost).max(axis=2)
        return np.asarray(self._earned(chain, value)[-1] - cost[-1, current])

    def _earned(self, chain: Floats, value: Floats) -> Floats:
        return np.asarray(self.rates + DISCOUNT * (chain @ value))

    @cached_property
    def seen(self) -> Floats:
        """How much each state [T] was like each one before now, by what they were followed by, [T, T]."""
        slope = np.zeros_like(self.rates)
        slope[2:] = np.diff(self.rates[1:], axis=0)
        squares = sum(((part[:, None] - part[None]) ** 2).mean(axis=2) for part in (self.rates, SLOPE * slope))
        steps = noise_scale(self.rates[1:-1], least=0.0, start=0.0)
        wide = CLOSE + 1.5 * float(np.sqrt(np.mean(steps**2)))
        seen = np.zeros_like(squares)
        seen[:, 2:] = np.exp(-squares / wide**2)[:, 1:-1]
        return np.asarray(seen)

    def _chain(self) -> Floats:
        """Return the chance that each state follows each one, [T, T]."""
        count = len(self.rates)
        anywhere = np.ones(count)
        anywhere[0] += 1
        stay = PRIOR_STAY * np.eye(count) + (1 - PRIOR_STAY) * anywhere / anywhere.sum()
        return np.asarray((self.seen + PRIOR_ROWS * stay) / (self.seen.sum(axis=1, keepdims=True) + PRIOR_ROWS))
