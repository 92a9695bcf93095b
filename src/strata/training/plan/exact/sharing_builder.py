"""The plans of one sharing of a batch, as far as a search needs them, and what none of the others beats."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from strata.clock import Check
from strata.training.plan.exact.branches import SearchBranches
from strata.training.plan.exact.problem import POOL
from strata.training.plan.exact.result import TOLERANCE
from strata.workload.plan import TrainingPlan


class Shared(NamedTuple):
    """Plans of a sharing, and a bound on the scores of those that are not among them: inf where there are none."""

    plans: list[TrainingPlan]
    bound: float = np.inf
    is_open: bool = False
    """Whether more of them can be built."""


class SharingBuilder:
    """Builds sharings: at first few of their shapes, then all that could be better."""

    def __init__(self, branches: SearchBranches) -> None:
        self.branches, self.shards = branches, branches.shards
        self.is_wide = len(self.shards.members) > POOL
        """Of so many domains, not all shapes that a plan could use are built."""

    def built(self, way: int, group: int, *, best: float, bound: float, is_first: bool, check: Check) -> Shared:
        """Return what could be better than `best` of a sharing whose bound is known; raises OutOfTime.

        At first only the shapes that its bound is for, and all that a faster plan could use when nothing else
        could be better than the best plan: then they are few.
        """
        shards = self.shards
        # All shapes of very many units take seconds to build; the bound over the fleet does not need them.
        if is_first and shards.is_time and not self.is_wide:
            plan = shards.build_first(way, group, limit_s=best, check=check)
            return Shared(_some(plan), max(bound, shards.bound_s(way, group)), is_open=True)
        if self.is_wide:
            return Shared(_some(shards.build_within(way, group, limit_s=best, is_thorough=False, check=check)))
        if shards.is_time and best < np.inf and not shards.could(way, group, limit_s=best, check=check):
            return Shared([])
        plan = shards.build_within(way, group, limit_s=best, check=check)
        limit_s, plans = best if shards.is_time else np.inf, _some(plan)
        if plan is not None:
            limit_s = min(limit_s, shards.problem.model.reports([plan], check=check)[0].step_time_s)
        if np.isfinite(limit_s):
            own_s = shards.own_bound_s(way, group, limit_s=limit_s, check=check)
            bound = max(bound, self.branches.shared_score(way, group, own_s))
            other = shards.build(shards.sharing(way, group)) if own_s < limit_s * (1 - TOLERANCE) else None
            plans += _some(other)
        return Shared(plans, bound)


def _some(plan: TrainingPlan | None) -> list[TrainingPlan]:
    return [] if plan is None else [plan]
