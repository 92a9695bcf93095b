"""What links were measured to give, as each job sees it: what other jobs send over is shared with them equally."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from strata.arrays import Floats
from strata.control import links
from strata.control.candidates import plan_links
from strata.control.outlook import History
from strata.control.state import Snapshot


class Measured:
    """Of one snapshot, for all its jobs: those that share no link see the same history."""

    def __init__(self, state: Snapshot) -> None:
        self._state = state
        self._seen: dict[bytes, History] = {}

    def seen_by(self, job: str) -> History:
        """Return what a job sees."""
        users = self._users - self._own.get(job, 0.0)
        key = users.tobytes()
        if key not in self._seen:
            rest = np.ones(self._factors.shape[1] - len(users))
            self._seen[key] = History(self._factors / np.append(users, rest))
        return self._seen[key]

    @cached_property
    def _factors(self) -> Floats:
        return links.history(self._state.fleet, self._state.links, self._state.domains)

    @cached_property
    def _own(self) -> dict[str, Floats]:
        """[L] by job: 1 where its attempt sends, of attempts over several domains."""
        column = {pair: i for i, pair in enumerate(self._state.fleet.links)}
        own: dict[str, Floats] = {}
        for attempt in self._state.live:
            if len(attempt.parts) > 1:
                used = own.setdefault(attempt.job, np.zeros(len(column)))
                used[[column[pair] for pair in plan_links(attempt.plan) if pair in column]] += 1
        return own

    @cached_property
    def _users(self) -> Floats:
        """[L]: by how many jobs each link would be used with one more on it."""
        return np.asarray(sum(self._own.values(), np.ones(len(self._state.fleet.links))))
