"""Random search: the control every learned or clever method has to beat with the same number of plans."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from strata.training.plan.baselines.context import Context, best_of
from strata.training.plan.exact.alone import SingleDomains
from strata.training.plan.exact.chain import build_chain
from strata.training.plan.exact.config import ParallelConfig
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.search import Evaluated
from strata.workload.plan import TrainingPlan

DRAWS: Final = 200


def plan(problem: Problem, context: Context) -> Evaluated | None:
    """Return the best of DRAWS random (configuration, subset, order) pipelines."""
    rng, count, plans = context.rng, len(problem.fleet.domains), []
    if not count or not problem.configs:
        return None
    for _ in range(DRAWS):
        context.check_time()
        config = problem.configs[rng.integers(len(problem.configs))]
        order = tuple(int(i) for i in rng.permutation(count)[: rng.integers(1, count + 1)])
        plans += legal_chain(problem, config, order)
    return best_of(problem, context, plans)


def legal_chain(problem: Problem, config: ParallelConfig, order: tuple[int, ...]) -> list[TrainingPlan]:
    """Return the plans of one pipeline that fit; none where a link is missing or a domain has no room."""
    domains, layers = [problem.fleet.domains[i] for i in order], len(problem.job.layers)
    linked = all(
        (a.name, b.name) in problem.fleet.links and (b.name, a.name) in problem.fleet.links
        for a, b in pairwise(domains)
    )
    stages = [problem.stages(domain, config) for domain in domains]
    # What fits in no split need not be split: that takes longer than all else.
    if not linked or not all(stages) or sum(stages) > layers:
        return []
    if not SingleDomains(problem, order).may_fit(config, np.array([sum(stages)]))[0]:
        return []
    return [plan for plan in build_chain(problem, config, order) if isinstance(plan, TrainingPlan)]
