"""What links were measured to give, as each job sees it: what other jobs send over is shared with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np

from strata.arrays import Floats
from strata.control import links
from strata.control.candidates import Candidates
from strata.control.outlook import History
from strata.control.sharing import Shares
from strata.control.state import JobSpec, LinkEstimate, Snapshot
from strata.fleet.fleet import Fleet
from strata.workload.plan import TrainingPlan


class Measured:
    """Of one snapshot, for all its jobs: those that share no link see the same history.

    plans: of a job on a fleet.
    """

    def __init__(self, state: Snapshot, plans: Callable[[Fleet, JobSpec], Candidates]) -> None:
        self._state, self._plans = state, plans
        self._seen: dict[bytes, History] = {}

    def seen_by(self, job: str) -> History:
        """Return what a job sees."""
        shares = self._shares.of(job)
        key = shares.tobytes()
        if key not in self._seen:
            rest = np.ones(self._factors.shape[1] - len(shares))
            self._seen[key] = History(self._factors * np.append(shares, rest))
        return self._seen[key]

    @cached_property
    def _factors(self) -> Floats:
        return links.history(self._state.fleet, self._state.links, self._state.domains)

    @cached_property
    def _shares(self) -> Shares:
        """Of what runs over several domains, with links at their levels: noise moves nobody's share."""
        state = self._state
        levels = tuple(state.links.get(pair, LinkEstimate()).factor for pair in state.fleet.links)
        alike: dict[tuple[Candidates, TrainingPlan], Mapping[int, float]] = {}
        loads = {}
        for attempt in state.live:
            if len(attempt.parts) > 1:
                key = self._plans(state.fleet, state.jobs[attempt.job].spec), attempt.plan
                if key not in alike:
                    alike[key] = key[0].loads(attempt.plan, levels)
                loads[attempt.job] = alike[key]
        return Shares(len(levels), loads)
