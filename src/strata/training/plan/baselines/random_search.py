"""Random search: the control every learned or clever method has to beat with the same number of plans."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from strata.training.plan.baselines.context import Context, best_first
from strata.training.plan.baselines.floor import chain_floors, scores
from strata.training.plan.exact.alone import SingleDomains
from strata.training.plan.exact.chain import Chain
from strata.training.plan.exact.config import ParallelConfig
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import Evaluated
from strata.training.plan.exact.rows import chains
from strata.workload.plan import TrainingPlan

DRAWS: Final = 200


def plan(problem: Problem, context: Context) -> Evaluated | None:
    """Return the best of DRAWS random (configuration, subset, order) pipelines."""
    rng, count = context.rng, len(problem.fleet.domains)
    if not count or not problem.configs:
        return None
    configs, orders = list[ParallelConfig](), list[tuple[int, ...]]()
    for _ in range(DRAWS):
        configs.append(problem.configs[rng.integers(len(problem.configs))])
        orders.append(tuple(int(i) for i in rng.permutation(count)[: rng.integers(1, count + 1)]))
    floors = chain_floors(problem, configs, orders, check=context.check_time)
    return best_first(
        problem, context, scores(problem, context, floors),
        lambda at, limit_s: legal_chain(problem, configs[at], orders[at], limit_s=limit_s),
    )  # fmt: skip


def legal_chain(
    problem: Problem, config: ParallelConfig, order: tuple[int, ...], *, limit_s: float = np.inf
) -> list[TrainingPlan]:
    """Return the plans of one pipeline that fit and could take less than a limit; none where a link
    is missing or a domain has no room."""
    domains, layers = [problem.fleet.domains[i] for i in order], len(problem.job.layers)
    linked = all(
        (a.name, b.name) in problem.fleet.links and (b.name, a.name) in problem.fleet.links
        for a, b in pairwise(domains)
    )
    stages = [problem.stages(domain, config) for domain in domains]
    if not linked or not all(stages) or sum(stages) > layers or not may_fit(problem, config, order):
        return []
    built = chains(problem, config, order, limit_s=limit_s)
    return [plan for chain in built if isinstance(chain, Chain) for plan in chain.plans]


def may_fit(problem: Problem, config: ParallelConfig, order: tuple[int, ...]) -> bool:
    """Whether memory might hold a pipeline in some split; looking for one takes longer than all else."""
    stages = sum(problem.stages(problem.fleet.domains[i], config) for i in order)
    return bool(SingleDomains(problem, order).may_fit(config, np.array([stages]))[0])
