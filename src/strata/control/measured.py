"""What links were measured to give, as each job sees it: what other jobs send over is shared with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import copy
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
        self._beside: dict[tuple[Candidates, TrainingPlan | None], Floats | None] = {}

    def with_plan(self, job: str, plan: TrainingPlan) -> Measured:
        """Return the same where a job goes to another plan: who decides after it reckons with that.

        Jobs that decide at one time on one state would all leave the same link for the same other one.
        """
        if len(plan.domains) == 1 and job not in self._running:
            return self
        known = self._plans(self._state.fleet, self._state.jobs[job].spec)
        result = copy(self)
        result._running = {name: item for name, item in self._running.items() if name != job}
        if result._running:
            result._shares = self._shares.with_loads(job, known.loads(plan, self._levels))
        else:
            result.__dict__.pop("_shares", None)
        if len(plan.domains) > 1:
            result._running[job] = known, plan
        result._beside = {}
        return result

    def seen_by(self, job: str) -> History:
        """Return what a job sees."""
        is_alone = self._running.keys() <= {job}  # then its own loads, a plan timed once more, decide nothing
        shares = np.ones(len(self._levels)) if is_alone else self._shares.of(job)
        key = shares.tobytes()
        if key not in self._seen:
            rest = np.ones(self._factors.shape[1] - len(shares))
            self._seen[key] = History(self._factors * np.append(shares, rest))
        return self._seen[key]

    def loads(self) -> Floats:
        """Return [L] the share of each link's time that running jobs fill, by the cost model.

        Above 1 where together they would send more than the link gives.
        """
        total = np.zeros(len(self._levels))
        for known, plan in self._running.values():
            for link, load in known.loads(plan, self._levels).items():
                total[link] += load
        return total

    def beside(self, job: str, candidates: Candidates, current: TrainingPlan | None) -> Floats | None:
        """Return [P] what the other jobs on the links of a job's plans earn together beside each of these, in
        shares of their best nominal rates, with links at their levels; None where there is no other job.

        current: the plan in use; jobs of one kind on one plan cost others the same.
        """
        if not self._running.keys() - {job}:
            return None
        key = candidates, current
        if key not in self._beside:
            self._beside[key] = self._earned_beside(job, candidates)
        return self._beside[key]

    def _earned_beside(self, job: str, candidates: Candidates) -> Floats | None:
        own = np.zeros((len(candidates.plans), len(self._levels)))
        for plan, row in zip(candidates.plans, own, strict=True):
            for link, load in candidates.loads(plan, self._levels).items():
                row[link] = load
        touched = sorted(self._shares.users(np.flatnonzero(own.any(axis=0)).tolist()) - {job})
        if not touched:
            return None
        result, levels = np.zeros(len(own)), np.array(self._levels)
        for (known, plan), names in _alike(touched, self._running).items():
            links, shares = self._shares.beside(names[0], job, own)
            result += len(names) * known.rates_of(plan, links, shares * levels[links]) / known.nominal.max()
        return result

    @cached_property
    def _levels(self) -> tuple[float, ...]:
        return tuple(self._state.links.get(pair, LinkEstimate()).factor for pair in self._state.fleet.links)

    @cached_property
    def _running(self) -> dict[str, tuple[Candidates, TrainingPlan]]:
        """Of what runs over several domains, or goes there when what runs has ended, by job."""
        state, result = self._state, {}
        for attempt in state.live:
            job = state.jobs[attempt.job]
            plan = job.next_plan or attempt.plan
            if len(plan.domains) > 1:
                result[attempt.job] = self._plans(state.fleet, job.spec), plan
        return result

    @cached_property
    def _factors(self) -> Floats:
        return links.history(self._state.fleet, self._state.links, self._state.domains)

    @cached_property
    def _shares(self) -> Shares:
        """Of what runs over several domains, with links at their levels: noise moves nobody's share."""
        alike: dict[tuple[Candidates, TrainingPlan], Mapping[int, float]] = {}
        for known, plan in self._running.values():
            if (known, plan) not in alike:
                alike[known, plan] = known.loads(plan, self._levels)
        return Shares(len(self._levels), {job: alike[key] for job, key in self._running.items()})


def _alike(
    jobs: Sequence[str], running: Mapping[str, tuple[Candidates, TrainingPlan]]
) -> dict[tuple[Candidates, TrainingPlan], list[str]]:
    """Return which jobs run the same plan of the same candidates: others cost them the same."""
    result: dict[tuple[Candidates, TrainingPlan], list[str]] = defaultdict(list)
    for name in jobs:
        result[running[name]].append(name)
    return result
