"""Uniform split: every domain gets the same share, in the order the fleet lists them.

A pipeline with equally many layers per stage, and data parallelism with an equal share of the batch; the
better of the two. Microbatch, tensor parallelism and copies are the best of the same choices strata has.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from strata.simulate.pipeline import classic_warmup
from strata.training.plan.baselines.context import Context, best, evaluate
from strata.training.plan.exact.problem import ParallelConfig, Problem
from strata.training.plan.exact.search import Evaluated
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, Stage, TrainingPlan


def plan(problem: Problem, context: Context) -> Evaluated | None:
    """Return the best uniform pipeline or uniform data-parallel plan over all domains."""
    domains = [domain.name for domain in problem.fleet.domains]
    linked = all(pair in problem.fleet.links for a, b in pairwise(domains) for pair in ((a, b), (b, a)))
    plans = []
    for config in problem.configs:
        context.check_time()
        if linked and (uniform := uniform_chain(problem, config, range(len(domains)))) is not None:
            plans.append(uniform)
        if (shared := data_parallel(problem, config)) is not None:
            plans.append(shared)
    return best(evaluate(problem, context, plans)) if len(domains) > 1 else None


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
        stages.append(Stage(domain.name, first, size, problem.ranks(domain, config), depth))
        first += size
    return TrainingPlan(
        (Pipeline(tuple(stages), config.data_parallel, microbatches),),
        config.microbatch_size,
        Schedule.ONE_F_ONE_B,
        config.recompute,
        zero_stage=max(problem.job.zero_stages),
    )


def data_parallel(problem: Problem, config: ParallelConfig) -> TrainingPlan | None:
    """Return synchronous data parallelism with an equal share of the batch per domain."""
    count = len(problem.fleet.domains)
    share = -(-problem.job.global_batch // count)
    small = replace(problem, job=replace(problem.job, global_batch=share))
    if config.microbatch_size * config.data_parallel > share:
        return None
    parts = [uniform_chain(small, config, (index,)) for index in range(count)]
    if any(part is None for part in parts):
        return None
    first = parts[0]
    assert first is not None
    return replace(first, pipelines=tuple(part.pipelines[0] for part in parts if part is not None))
