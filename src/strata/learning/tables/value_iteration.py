"""The best any policy can do on a table: relative value iteration (Puterman 1994, §8.5.5).

It is exact for the average reward of the chain over (state, plan in use).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from strata.arrays import Floats, Ints
from strata.errors import UsageError
from strata.learning.tables.table import ReplanTable
from strata.training.replan.options import Options

MOST_SWEEPS: Final = 20_000


@dataclass(frozen=True, eq=False)
class Solution:
    """The optimal policy of a table.

    average: reward a step in the long run. ahead: [S, P] worth of leaving a state with a plan in use, up to a
    constant. error: by how much `average` may be off.
    """

    table: ReplanTable
    average: float
    ahead: Floats
    error: float

    def worth(self, states: Ints, current: Ints) -> Floats:
        """Return [B, P]: what taking each plan is worth, up to a constant; the best takes the largest."""
        table, plans = self.table, np.arange(self.table.reward.shape[1])
        is_free = (plans == current[:, None]) | (current < 0)[:, None]
        return np.asarray(
            table.reward[states] * np.where(is_free, 1.0, 1 - table.switch_share) + self.ahead[states]
        )

    def follow(self, states: Ints) -> tuple[Ints, float]:
        """Run the optimal policy along states [T, E]; return its plans and its mean reward a step."""
        now = iter(states)

        def choose(options: Options) -> Ints:
            return np.asarray(self.worth(next(now), options.current).argmax(axis=1))

        return self.table.follow(choose, states)


def solve(table: ReplanTable, *, tolerance: float = 1e-7) -> Solution:
    """Return the optimal policy. Raises UsageError where the chain does not settle (a periodic one)."""
    reward, burnt = table.reward, table.reward * (1 - table.switch_share)
    value = np.zeros_like(reward)
    for _ in range(MOST_SWEEPS):
        ahead = table.chains.expect(value)
        new = np.maximum(reward + ahead, (burnt + ahead).max(axis=1, keepdims=True))
        change = new - value
        low, high = float(change.min()), float(change.max())
        value = new - new[0, 0]
        if high - low <= tolerance:
            return Solution(table, (low + high) / 2, table.chains.expect(value), (high - low) / 2)
    raise UsageError(
        f"{table.name}: value iteration does not settle after {MOST_SWEEPS} sweeps",
        hint="a link that never stays in its level makes a periodic chain; give it some chance to stay",
    )
