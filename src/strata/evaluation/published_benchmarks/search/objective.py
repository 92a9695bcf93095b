"""What a point asks for: the objective and the limits, on single plans and on many estimates at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from strata.evaluation.published_benchmarks.case_file import Array, CasePoint
from strata.evaluation.published_benchmarks.formulas import FormulaScore


@dataclass(frozen=True, slots=True)
class PointObjective:
    """Minimise the money or the time of one iteration, within limits (infinite where there is none)."""

    minimizes_cost: bool
    max_cost_usd: float
    max_iteration_s: float

    @classmethod
    def of(cls, point: CasePoint) -> PointObjective:
        """Return what a point of a case file asks for."""
        floor = point.min_iterations_per_s
        return cls(
            minimizes_cost=point.minimize == "cost_usd",
            max_cost_usd=math.inf if point.max_cost_usd is None else point.max_cost_usd,
            max_iteration_s=1.0 / floor if floor else math.inf,
        )

    @property
    def is_limited(self) -> bool:
        """Whether there is any limit."""
        return math.isfinite(self.max_cost_usd) or math.isfinite(self.max_iteration_s)

    def relaxed(self) -> PointObjective:
        """Return the goal whose best plan shows whether the limits can be met: the quickest, or the cheapest."""
        if math.isfinite(self.max_iteration_s):
            return replace(self, minimizes_cost=False, max_iteration_s=math.inf)
        return PointObjective(minimizes_cost=True, max_cost_usd=math.inf, max_iteration_s=math.inf)

    def describe(self, score: FormulaScore) -> str:
        """Say in words what a plan reaches."""
        return f"costs ${score.cost_usd:.4g}" if self.minimizes_cost else f"takes {score.iteration_s:.4g} s"

    def value(self, score: FormulaScore) -> float:
        """Return what is minimised."""
        return score.cost_usd if self.minimizes_cost else score.iteration_s

    def values(self, iteration_s: Array, usd_per_s: Array, egress_usd: Array) -> Array:
        """Return what is minimised."""
        return iteration_s * usd_per_s + egress_usd if self.minimizes_cost else iteration_s

    def admits(self, score: FormulaScore) -> bool:
        """Say whether a plan is legal and within the limits."""
        return (
            score.fits_memory
            and not score.crosses_regions
            and math.isfinite(score.iteration_s)
            and score.cost_usd <= self.max_cost_usd
            and score.iteration_s <= self.max_iteration_s
        )

    def deadline_s(self, best: float) -> float:
        """Return the time at which a plan is too slow, or no better than `best`."""
        return self.max_iteration_s if self.minimizes_cost else min(self.max_iteration_s, best)

    def budget_usd(self, best: float) -> float:
        """Return the cost at which a plan is too dear, or no better than `best`."""
        return min(self.max_cost_usd, best) if self.minimizes_cost else self.max_cost_usd

    def longest_s(self, usd_per_s: Array, egress_usd: Array, best: float) -> Array:
        """Return the iteration time at which pipelines of these rates are over the deadline or the budget."""
        left_usd = np.maximum(self.budget_usd(best) - egress_usd, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            affordable = np.where(usd_per_s > 0, left_usd / usd_per_s, np.where(left_usd > 0, np.inf, 0.0))
        return np.minimum(affordable, self.deadline_s(best))
