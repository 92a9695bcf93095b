"""Best single domain: every domain alone, planned exactly; what a cluster scheduler per site would reach."""

from __future__ import annotations

from strata.training.plan.baselines.context import Context, best, exact
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.search import Evaluated


def plan(problem: Problem, context: Context) -> Evaluated | None:
    """Return the best of the exact plans of each domain alone."""
    alone = (exact(problem, context, (index,)) for index in problem.representatives)
    return best([item for item in alone if item is not None])
