"""What no split of a row of stages beats, and how much of a gradient sum it hides at most."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from strata.simulate.order import ORDERED
from strata.simulate.pipeline import classic_warmup
from strata.training.plan.exact.chain import Chain
from strata.training.plan.exact.config import ParallelConfig
from strata.training.plan.exact.memory_fit import zero_stages
from strata.training.plan.exact.orders import schedules_of
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.rows import Row, with_warmup
from strata.workload.job import Schedule


def least_s(
    problem: Problem, config: ParallelConfig, order: tuple[int, ...], microbatches: int, *, after_s: float
) -> tuple[float, float]:
    """Return what no split of a pipeline over domains in this order beats under any schedule of whole stages, inf
    where none fits; `after_s` is what follows its microbatches at least. First without asking how many are in
    flight (`Splits.paced_s`)."""
    plan, splits = Row.of(problem, config, order, microbatches).whole
    if not np.isfinite(splits.bound_s):
        return np.inf, np.inf
    return Chain(problem, plan, splits, 0.0, 0.0, after_s=after_s).early_s


def least_of_orders_s(problem: Problem, config: ParallelConfig, order: tuple[int, ...]) -> float:
    """Return what no split of a pipeline over these domains, which are alike, beats in any order and under any
    schedule if messages take no time; inf where none fits. What follows its microbatches is left out."""
    row = replace(Row.of(problem, config, order, problem.microbatches(config)), is_free=True)
    job, count, stages = problem.job, row.microbatches, len(row.layout)
    allowed = schedules_of(job, stages, count, crosses=True, among=job.schedules)
    schedules = {schedule for schedule, _ in allowed}
    plan, splits = row.whole
    each = [splits] if schedules.difference(ORDERED) else []
    if Schedule.ZERO_BUBBLE in schedules:
        warmup = [min(w, count - 1) for w in classic_warmup(stages)]
        apart = with_warmup(replace(plan, schedule=Schedule.ZERO_BUBBLE), warmup)
        each.append(row.splits(apart, zero_stages(problem, apart), count, 1))
    return min((splits.paced_s for splits in each), default=np.inf)


def most_hidden_s(problem: Problem, config: ParallelConfig, order: tuple[int, ...]) -> tuple[float, float]:
    """Return the longest that the shortest backward of a pipeline over domains in this order is in any split, and
    how long it is where it does not make the pipeline slower.

    Under a ZeRO stage that another unit asks for, one may have to recompute more, and more hides behind that; of
    few microbatches fewer are in flight, and more splits fit. A stage alone takes longer by what it hides more,
    once for each microbatch; of several others than the slowest may.
    """
    alone = Row.of(problem, config, order, 1)
    if len(alone.layout) == 1:
        each = problem.job.zero_stages
        return max(_shortest_s(alone, (zero,)) for zero in each), _shortest_s(alone, each)
    ways = {config, problem.longest_backwards(config)}  # where all is recomputed, some splits do not fit
    counts = {1, problem.microbatches(config)}
    most_s = max(_shortest_s(Row.of(problem, way, order, count)) for way in ways for count in counts)
    return most_s, most_s


def _shortest_s(row: Row, among: tuple[int, ...] = ()) -> float:
    """Return the longest that the shortest backward is in any split that fits under one of these ZeRO stages; none
    given: of those that the job leaves to a plan of these stages alone."""
    plan, splits = row.whole
    if among:
        splits = row.splits(plan, among, row.microbatches, 1, is_ordered=False)
    left = np.zeros(len(row.problem.job.layers) + 1)
    left[:-1], left[-1] = -np.inf, np.inf
    for stage, times in reversed(list(zip(plan.pipelines[0].stages, splits.times, strict=True))):
        forward = row.problem.model.stage_layers(plan, stage).forward
        backward = np.where(np.isfinite(times), times, -np.inf) - (forward - forward[:, None])
        left = np.minimum(backward, left).max(axis=1)
    return float(max(0.0, left[0]))
