"""MAST-like: one region per job, chosen by exhaustive search (MAST, OSDI'24: global placement, one region a job).

A region is the domains that share a `region` label, or a domain alone. Inside the region strata plans exactly,
which is more than MAST does: it has no step-time model (facts from the talk's abstract).
"""

from __future__ import annotations

from collections import defaultdict

from strata.training.plan.baselines.context import Context, best, exact
from strata.training.plan.exact.problem import POOL, Problem
from strata.training.plan.exact.search import Evaluated


def plan(problem: Problem, context: Context) -> Evaluated | None:
    """Return the best of the exact plans of each region."""
    regions: dict[str, list[int]] = defaultdict(list)
    for index, domain in enumerate(problem.fleet.domains):
        regions[domain.region or domain.name].append(index)
    candidates = (exact(problem, context, members[:POOL]) for members in regions.values())
    return best([item for item in candidates if item is not None])
