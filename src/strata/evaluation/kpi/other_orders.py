"""The same pipelines in other orders of their domains: what a front of time and money needs beside a shortlist.

A shortlist holds a pipeline in its fastest and cheapest orders and a few between. Over five domains and more,
most of a front may be one pipeline in orders that trade link time for link price.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from strata.training.plan.exact.config import ParallelConfig
from strata.training.plan.exact.pareto import MOST_DOMAINS, vector
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import Evaluated
from strata.training.plan.exact.routes import efficient, efficient_routes
from strata.training.plan.exact.rows import build_chain
from strata.training.plan.objective import within_limits
from strata.workload.job import Recompute
from strata.workload.plan import TrainingPlan

FEWEST: Final = 5
"""Of fewer domains a shortlist holds all orders."""


def other_orders(problem: Problem, items: Sequence[Evaluated]) -> list[Evaluated]:
    """Return the non-dominated pipelines among `items` in all orders worth it, those already there left out."""
    if not items:
        return []
    known = {item.plan for item in items}
    shapes: dict[tuple[ParallelConfig, tuple[int, ...]], None] = {}
    for index in efficient(np.array([vector(item.report) for item in items])):
        plan = items[index].plan
        config = _config_of(problem, plan) if FEWEST <= len(plan.domains) <= MOST_DOMAINS else None
        if config is not None:
            shapes[config, tuple(sorted(problem.fleet.index(name) for name in plan.domains))] = None
    plans: dict[TrainingPlan, None] = {}
    for config, members in shapes:
        load = problem.message_bytes(config.microbatch_size) * config.data_parallel
        for order in efficient_routes(problem.pair_costs(config.microbatch_size), members, load_bytes=load):
            for way in (order, order[::-1]):
                built = build_chain(problem, config, way)
                plans |= {plan: None for plan in built if plan not in known}
    fresh = list(plans)
    return [
        Evaluated(plan, report, report.step_time_s)
        for plan, report in zip(fresh, problem.model.reports(fresh), strict=True)
        if np.isfinite(report.step_time_s) and within_limits(problem.job, report)
    ]


def _config_of(problem: Problem, plan: TrainingPlan) -> ParallelConfig | None:
    """Return the inner shape a single pipeline was built with, None for any other plan."""
    if len(plan.pipelines) != 1:
        return None
    [pipeline] = plan.pipelines
    ranks = max(stage.tensor_parallel for stage in pipeline.stages)
    held = {name: sum(stage.domain == name for stage in pipeline.stages) for name in plan.domains}
    # Where stages recompute as many layers as they must, the setting is that of none.
    mode = plan.recompute if plan.recompute in problem.modes else Recompute.NONE
    for config in problem.configs:
        shape = (config.microbatch_size, config.data_parallel, config.recompute, config.tensor_parallel)
        if shape == (plan.microbatch_size, pipeline.replicas, mode, ranks) and all(
            problem.stages(problem.fleet.domain(name), config) == count for name, count in held.items()
        ):
            return config
    return None
