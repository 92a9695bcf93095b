"""Which devices are free: what domains have, less what attempts hold that are not over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from strata.arrays import Bools, Floats
from strata.control.candidates import Candidates
from strata.control.state import JobSpec, Snapshot
from strata.workload.plan import TrainingPlan


@dataclass(frozen=True, slots=True)
class Room:
    """Free devices by domain; a domain that is drained, silent or not seen yet is not among them."""

    free: Mapping[str, int]
    _legal: dict[tuple[Candidates, float, float], Bools] = field(default_factory=dict, init=False, compare=False)

    @classmethod
    def of(cls, snapshot: Snapshot) -> Room:
        """Return what is free now."""
        free = {
            view.name: view.num_devices
            for view in snapshot.domains.values()
            if not view.is_drained and view.silent_since_s is None
        }
        for attempt in snapshot.live:
            coming = snapshot.jobs[attempt.job].next_plan
            wanted = coming.devices() if coming is not None else {}
            used = attempt.plan.devices()
            for name in free.keys() & (used.keys() | wanted.keys()):
                is_held = name in used and not attempt.parts[name].phase.is_over
                free[name] -= max(used[name] if is_held else 0, wanted.get(name, 0))
        return cls(free)

    def holds(self, plan: TrainingPlan) -> bool:
        """Whether a plan's devices are free."""
        return all(self.free.get(name, 0) >= count for name, count in plan.devices().items())

    def without(self, plan: TrainingPlan) -> Room:
        """Return what is left when a plan runs."""
        return self._changed(plan, -1)

    def with_back(self, plan: TrainingPlan) -> Room:
        """Return what there is when a plan ends."""
        return self._changed(plan, 1)

    def _changed(self, plan: TrainingPlan, sign: int) -> Room:
        used = plan.devices()
        return Room({name: count + sign * used.get(name, 0) for name, count in self.free.items()})

    def legal(self, candidates: Candidates, spec: JobSpec) -> Bools:
        """Return which plans [P] fit what is free and the numbers of devices the job allows."""
        least, most = spec.min_devices or 0, spec.max_devices or np.inf
        key = (candidates, least, most)
        if key not in self._legal:
            # A domain may hold more than it has left: that is no reason against plans elsewhere.
            free = np.array([max(0, self.free.get(domain.name, 0)) for domain in candidates.fleet.domains])
            count = candidates.devices.sum(axis=1)
            self._legal[key] = (candidates.devices <= free).all(axis=1) & (count >= least) & (count <= most)
        return self._legal[key]

    def left(self, candidates: Candidates) -> Floats:
        """Return [P]: devices that stay free in the domains that a plan uses."""
        free = np.array([self.free.get(domain.name, 0) for domain in candidates.fleet.domains])
        return np.asarray(((free - candidates.devices) * (candidates.devices > 0)).sum(axis=1), dtype=np.float64)
