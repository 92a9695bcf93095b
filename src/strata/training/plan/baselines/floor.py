"""What no pipeline in its setting and order can beat, before any is built: cheap, for many at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strata.arrays import Floats
from strata.clock import Check, unlimited
from strata.training.plan.baselines.context import Context
from strata.training.plan.exact.config import ParallelConfig
from strata.training.plan.exact.floors import ROUNDING, ChainFloors
from strata.training.plan.exact.problem import Problem
from strata.training.plan.objective import score


def chain_floors(
    problem: Problem,
    configs: Sequence[ParallelConfig],
    orders: Sequence[Sequence[int]],
    *,
    is_uniform: bool = False,
    check: Check = unlimited,
) -> Floats:
    """Return the time [s] and money [USD] of steps [N, 2] that no pipeline in a setting over domains in an order,
    one a row, can beat; inf where a link is missing or a domain has no room.

    All stages work on the batch at their speeds, and microbatches pass the slowest link one by one. If they are
    `is_uniform`, all domains have as many stages as the one with least room.
    """
    floors, each = np.full((len(configs), 2), np.inf), range(len(problem.fleet.domains))
    if not configs:
        return floors
    works = ChainFloors(problem, each).works(configs, columns=np.array(each, dtype=np.int64), check=check)
    for row, (config, order) in enumerate(zip(configs, orders, strict=True)):
        check()
        at, count = np.array(order, dtype=np.int64), int(works.microbatches[row])
        costs, cuts, work_s = problem.pair_costs(config.microbatch_size), (at[:-1], at[1:]), works.work_s[row, at]
        stages = works.stages[row, at]
        stages = np.full_like(stages, stages.min()) if is_uniform else stages
        is_there = stages.all() and np.isfinite(work_s).all() and np.isfinite(costs.slowness[cuts]).all()
        if not is_there or stages.sum() > len(problem.job.layers):
            continue
        load = problem.message_bytes(config.microbatch_size) * config.data_parallel
        waits_s = load * float(costs.slowness_sum[cuts].sum()) + float(costs.latency_sum[cuts].sum())
        waits_s += (count - 1) * load * float(costs.slowness[cuts].max(initial=0.0))
        step_s = max(count / float((stages / work_s).sum()), float(work_s.min() * works.path_share[row]) + waits_s)
        usd = config.data_parallel * step_s * float(works.usd_per_s[row, at] @ stages)
        floors[row] = step_s, usd + load * count * float(costs.price_sum[cuts].sum())
    return floors * ROUNDING


def scores(problem: Problem, context: Context, floors: Floats) -> Floats:
    """Return the scores that plans above such floors [N, 2] cannot beat; inf where there are none."""
    least, able = np.full(len(floors), np.inf), np.isfinite(floors).all(axis=1)
    least[able] = score(problem.job, context.scales, floors[able, 0], 1.0, floors[able, 1])
    return least
