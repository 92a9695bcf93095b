"""What a search returns: the best plan of each domain set, the bound on any plan, and why others failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from strata.decision import Reason
from strata.simulate.report import StepReport
from strata.training.plan.exact.branches import DomainSet
from strata.workload.plan import TrainingPlan

TOLERANCE: Final = 1e-4
"""A branch that could be better by less than this share is not opened; it is part of the reported gap."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A plan that was built and evaluated exactly."""

    plan: TrainingPlan
    report: StepReport
    score: float

    @property
    def domain_set(self) -> DomainSet:
        """The row of the ranked table it belongs to."""
        return self.plan.kind, frozenset(self.plan.domains)


@dataclass
class SearchResult:
    """What a search returns: the best plan of each domain set, the bound on any plan, and why others failed."""

    by_set: dict[DomainSet, Evaluated] = field(default_factory=dict)
    closed: set[DomainSet] = field(default_factory=set)
    """Those of which no other plan is better by ROW_TOLERANCE."""
    missed: dict[DomainSet, Evaluated] = field(default_factory=dict)
    bound: float = np.inf
    evaluated: int = 0
    branches: int = 0
    refusals: dict[frozenset[str], Reason] = field(default_factory=dict)
    stopped: bool = False
    interrupted: bool = False

    @property
    def ranked(self) -> list[Evaluated]:
        """Plans that keep all limits, best first."""
        return sorted(self.by_set.values(), key=lambda item: (item.score, sorted(item.plan.domains)))

    @property
    def best_score(self) -> float:
        """The best score so far (inf without a plan)."""
        return min((item.score for item in self.by_set.values()), default=np.inf)

    @property
    def gap(self) -> float:
        """How much better, as a share, any plan could be than the best one found."""
        best = self.best_score
        return max(0.0, (best - self.bound) / abs(best)) if np.isfinite(best) and best else 0.0

    def merge(self, other: SearchResult) -> None:
        """Take over what another search found on the same problem."""
        for kept, others in ((self.by_set, other.by_set), (self.missed, other.missed)):
            for key, item in others.items():
                if key not in kept or item.score < kept[key].score:
                    kept[key] = item
        self.closed |= other.closed
        self.bound = min(self.bound, other.bound)
        self.evaluated, self.branches = self.evaluated + other.evaluated, self.branches + other.branches
        self.refusals.update(other.refusals)
        self.stopped |= other.stopped
        self.interrupted |= other.interrupted
