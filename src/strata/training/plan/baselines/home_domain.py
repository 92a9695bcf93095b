"""Home domain: the job runs where it was submitted, as most jobs do today."""

from __future__ import annotations

from strata.training.plan.baselines.context import Context, exact
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.search import Evaluated


def plan(problem: Problem, context: Context) -> Evaluated | None:
    """Return the exact plan of the job's home domain (the first usable domain where it names none)."""
    names = [domain.name for domain in problem.fleet.domains]
    if not names:
        return None
    home = problem.job.home or names[0]
    return exact(problem, context, (names.index(home),)) if home in names else None
