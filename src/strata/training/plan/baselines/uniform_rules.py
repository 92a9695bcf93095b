"""Baselines that split uniformly: equal layers a stage, equal stages or an equal share a domain."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from strata.simulate.pipeline import classic_warmup
from strata.training.plan.baselines.context import Context, best_of
from strata.training.plan.exact.chain_space import ChainSpace
from strata.training.plan.exact.config import ParallelConfig
from strata.training.plan.exact.problem import POOL, Problem
from strata.training.plan.exact.routes import best_path
from strata.training.plan.exact.search import Evaluated
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, Stage, TrainingPlan

SHORTLIST: Final = 256
"""Pipelines of the least bounds that the Sailor-like rule evaluates."""


def uniform_split(problem: Problem, context: Context) -> Evaluated | None:
    """Every domain has the same share, in the order the fleet lists them: a pipeline, or data parallelism.

    The better of a pipeline with equally many layers per stage and of equal shares of the batch. Microbatch,
    tensor parallelism and copies are the best of the same choices strata has.
    """
    problem = problem.evenly_recomputed
    domains = [domain.name for domain in problem.fleet.domains]
    linked = all(pair in problem.fleet.links for a, b in pairwise(domains) for pair in ((a, b), (b, a)))
    plans, part = [], equal_share(problem)
    for config in problem.configs:
        context.check_time()
        if linked and (uniform := uniform_chain(problem, config, range(len(domains)))) is not None:
            plans.append(uniform)
        if (shared := data_parallel(part, config)) is not None:
            plans.append(shared)
    return best_of(problem, context, plans) if len(domains) > 1 else None


def sailor_like(problem: Problem, context: Context) -> Evaluated | None:
    """Uniform layer splits over any subset of (at most POOL) domains, in order of bottleneck bandwidth.

    After arXiv 2504.17096 §4: uniform splits, classic 1F1B, data parallelism never across regions (its H5), region
    order by the best bottleneck bandwidth, no latency, no recomputation, and no thought for what a change of plan
    costs (myopic). A restatement of its rules in strata's plan space, not its code.
    """
    problem = problem.evenly_recomputed
    space = ChainSpace(problem, tuple(range(min(len(problem.fleet.domains), POOL))))
    plain = [s for s in problem.configs if s.recompute is problem.job.recompute[0]]
    if not plain or not space.members:
        return None
    bounds = np.stack([space.bounds(config).step_s for config in plain])
    slowness = problem.pair_costs(1).slowness
    plans = []
    for position in np.argsort(bounds, axis=None, kind="stable")[:SHORTLIST]:
        context.check_time()
        number, index = np.unravel_index(position, bounds.shape)
        if not np.isfinite(bounds[number, index]):
            break
        picked = tuple(i for i, inside in zip(space.members, space.inside[index], strict=True) if inside)
        order, cost = best_path(slowness, picked)
        uniform = uniform_chain(problem, plain[int(number)], order) if np.isfinite(cost) else None
        if uniform is not None:
            plans.append(uniform)
    return best_of(problem, context, plans)


def uniform_chain(problem: Problem, config: ParallelConfig, order: range | tuple[int, ...]) -> TrainingPlan | None:
    """Return a classic 1F1B pipeline with equal stages per domain and equal layers per stage."""
    domains = [problem.fleet.domains[i] for i in order]
    per_domain = min(problem.stages(domain, config) for domain in domains)
    count, layers = per_domain * len(domains), len(problem.job.layers)
    known = np.isfinite(problem.compute_cost(config).work_s[list(order)]).all()
    if not 1 <= count <= layers or not known:
        return None
    # The remainder goes to the last stages, as Sailor's get_stages does.
    sizes = [layers // count + (index >= count - layers % count) for index in range(count)]
    microbatches = problem.microbatches(config)
    stages, first = [], 0
    for index, (size, warmup) in enumerate(zip(sizes, classic_warmup(count), strict=True)):
        domain = domains[index // per_domain]
        depth = min(warmup, microbatches - 1)
        ranks, context = problem.ranks(domain, config), config.context_parallel
        stages.append(Stage(domain.name, first, size, ranks, depth, context))
        first += size
    return TrainingPlan(
        (Pipeline(tuple(stages), config.data_parallel, microbatches),),
        config.microbatch_size,
        Schedule.ONE_F_ONE_B,
        config.recompute,
        zero_stage=max(problem.job.zero_stages),
        context_exchange=config.context_exchange,
        expert_parallel=config.expert_parallel,
    )


def equal_share(problem: Problem) -> Problem:
    """Return the problem with the share of the batch that each domain gets of equal ones."""
    share = -(-problem.job.global_batch // max(1, len(problem.fleet.domains)))
    return replace(problem, job=replace(problem.job, global_batch=share))


def data_parallel(part: Problem, config: ParallelConfig) -> TrainingPlan | None:
    """Return synchronous data parallelism between domains that each do the batch of `part` (`equal_share`)."""
    if config.microbatch_size * config.data_parallel > part.job.global_batch:
        return None
    parts = [uniform_chain(part, config, (index,)) for index in range(len(part.fleet.domains))]
    if any(part is None for part in parts):
        return None
    first = parts[0]
    assert first is not None
    return replace(first, pipelines=tuple(part.pipelines[0] for part in parts if part is not None))
