"""Baselines that split uniformly: equal layers a stage, equal stages or an equal share a domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.clock import Check
from strata.simulate.pipeline import classic_warmup
from strata.training.plan.baselines.context import Context, best_first, best_of
from strata.training.plan.baselines.floor import chain_floors, scores
from strata.training.plan.exact.chain_space import ChainSpace
from strata.training.plan.exact.config import ParallelConfig
from strata.training.plan.exact.floors import ROUNDING, ChainFloors
from strata.training.plan.exact.problem import POOL, Problem
from strata.training.plan.exact.result import Evaluated
from strata.training.plan.exact.routes import best_path
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, Stage, TrainingPlan

SHORTLIST: Final = 256
"""Pipelines of the least bounds that the Sailor-like rule evaluates."""


def uniform_split(problem: Problem, context: Context) -> Evaluated | None:
    """Every domain has the same share, in the order the fleet lists them: a pipeline, or data parallelism.

    The better of a pipeline with equally many layers per stage and of equal shares of the batch. Microbatch,
    tensor parallelism and copies are the best of the same choices strata has.
    """
    problem, count = problem.evenly_recomputed, len(problem.fleet.domains)
    if count < 2:
        return None
    part, order, configs = equal_share(problem), range(count), problem.configs

    def build(number: int, _limit_s: float) -> list[TrainingPlan]:
        config = configs[number % len(configs)]
        is_chain = number < len(configs)
        plan = uniform_chain(problem, config, order) if is_chain else data_parallel(part, config)
        return [] if plan is None else [plan]

    floors = chain_floors(problem, configs, [order] * len(configs), is_uniform=True, check=context.check_time)
    floors = np.concatenate([floors, _shared_floors(part, configs, context.check_time)])
    return best_first(problem, context, scores(problem, context, floors), build)


def _shared_floors(part: Problem, configs: Sequence[ParallelConfig], check: Check) -> Floats:
    """Return the time and money that `data_parallel` takes at least in each setting [N, 2].

    All domains work on their share: a microbatch goes through all stages, the others pass the slowest. Then they
    sum gradients, of which the backward of the shortest stage of all hides what it can.
    """
    every = range(len(part.fleet.domains))
    works = ChainFloors(part, every).works(configs, columns=np.array(every, dtype=np.int64), check=check)
    some = next((plan for config in configs if (plan := data_parallel(part, config)) is not None), None)
    across = None if some is None else part.model.all_reduce(some)  # the same whatever is inside the domains
    sum_s = np.inf if across is None else across.time_s
    able = (works.stages.min(axis=1) > 0) & (works.stages.max(axis=1) <= len(part.job.layers))
    able &= works.microbatch_size * works.data_parallel <= part.job.global_batch
    able &= np.isfinite(works.work_s).all(axis=1)
    none = np.zeros_like(works.work_s)
    stage_s = np.divide(works.work_s, works.stages, out=none.copy(), where=able[:, None])
    pipeline_s = np.where(able[:, None], works.work_s, 0.0) + (works.microbatches - 1)[:, None] * stage_s
    backward_s = np.array([part.compute_cost(config).ways_s[1] for config in configs])
    hidden_s = np.divide(backward_s, works.stages, out=none, where=able[:, None])
    if max(part.job.zero_stages) < 2:
        hidden_s = hidden_s.min(axis=1, keepdims=True)
    # Exchanges of shards lengthen the backwards of one domain and its pipeline alike.
    step_s = np.maximum(pipeline_s, pipeline_s - hidden_s + sum_s).max(axis=1)
    able &= np.isfinite(step_s)
    usd = (works.usd_per_s * works.stages).sum(axis=1) * works.data_parallel * np.where(able, step_s, 0.0)
    return np.where(able[:, None], np.column_stack([step_s, usd]) * ROUNDING, np.inf)


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
    slowness = problem.pair_costs(1).slowness
    plans = []
    for config, index in _least_bounds(problem, space, plain):
        context.check_time()
        picked = tuple(i for i, inside in zip(space.members, space.inside[index], strict=True) if inside)
        order, cost = best_path(slowness, picked)
        uniform = uniform_chain(problem, config, order) if np.isfinite(cost) else None
        if uniform is not None:
            plans.append(uniform)
    return best_of(problem, context, plans)


def _least_bounds(
    problem: Problem, space: ChainSpace, configs: Sequence[ParallelConfig]
) -> list[tuple[ParallelConfig, int]]:
    """Return settings and masks of the SHORTLIST pipelines of least bounds, the least first.

    Settings whose floor is no better than those are not looked into.
    """
    floors_s = ChainFloors(problem, space.members).step_s(configs).min(axis=1, initial=np.inf)
    least: list[tuple[float, int, int]] = []
    for number in np.argsort(floors_s, kind="stable").tolist():
        if not floors_s[number] < (least[-1][0] if len(least) == SHORTLIST else np.inf):
            break
        bounds_s = space.bounds(configs[number]).step_s
        masks = np.flatnonzero(np.isfinite(bounds_s))
        least = sorted([*least, *((float(bounds_s[mask]), number, int(mask)) for mask in masks)])[:SHORTLIST]
    return [(configs[number], mask) for _, number, mask in least]


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
    return problem.with_batch(share)


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
