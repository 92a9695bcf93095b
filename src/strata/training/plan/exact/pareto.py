"""The exact Pareto front of a job on up to 8 domains: step time, utilisation, money per step.

Branch and bound with an archive: a branch whose bounds are no better than an archived plan in all three is
never built; everything else is built and evaluated. What is left is the non-dominated set of the plan space.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from strata.arrays import Bools, Floats
from strata.clock import Check, Clock
from strata.errors import OutOfTime, UsageError
from strata.simulate.report import StepReport
from strata.training.plan.exact.chain import Chain
from strata.training.plan.exact.chain_space import ChainSpace
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import Evaluated
from strata.training.plan.exact.routes import efficient
from strata.training.plan.exact.rows import chains as chains_of
from strata.training.plan.exact.search import MOST_SPLITS
from strata.training.plan.exact.shards import ShardSpace
from strata.training.plan.objective import Scales, money, score_report, within_limits
from strata.workload.plan import TrainingPlan

MOST_DOMAINS: Final = 8
BATCH: Final = 96


class _SharedBatch(NamedTuple):
    """Its position among the ways and the groups of a `ShardSpace`."""

    way: int
    group: int


def vector(report: StepReport) -> tuple[float, float, float]:
    """Return what the front minimises: step time [s], minus utilisation, money [USD per step]."""
    return report.step_time_s, -report.utilization, money(report)


def front(
    problem: Problem,
    *,
    clock: Clock,
    deadline: float,
    start: Sequence[Evaluated] = (),
    advance: Callable[[float], None] = lambda _share: None,
) -> tuple[list[Evaluated], bool]:
    """Return the non-dominated plans by step time, and whether the search was complete.

    Raises UsageError for more than MOST_DOMAINS usable domains. Plans known before (`start`: legal, evaluated)
    rule branches out from the beginning. `advance` is told the share done.
    """
    count = len(problem.fleet.domains)
    if count > MOST_DOMAINS:
        raise UsageError(
            f"the exact front is for up to {MOST_DOMAINS} domains; this job may use {count}",
            hint="name the domains to consider in the job's limits.domains",
        )

    def check() -> None:
        if clock() > deadline:
            raise OutOfTime("the Pareto front")

    members = tuple(range(count))
    chains, shards = ChainSpace(problem, members), ShardSpace(problem, members)
    archive = [start[k] for k in efficient(_points(list(start)))] if start else []
    try:
        bounds, branches = _branches(problem, chains, shards, check)
        order, points = np.argsort(bounds[:, 0], kind="stable"), _points(archive)
        alive = ~_dominated(bounds, points)
        built: list[TrainingPlan] = []
        opened: list[Chain] = []
        for done, position in enumerate(order):
            if not alive[position]:
                continue
            check()
            plans, some = _build(problem, chains, shards, branches[position], bounds[position], points, check)
            built, opened = built + plans, opened + some
            if len(built) >= BATCH or not archive:
                archive, built = _merge(problem, archive, built), []
                points = _points(archive)
                alive &= ~_dominated(bounds, points)
                advance(done / len(order))
        archive = _merge(problem, archive, built)
        for chain in opened:
            check()
            archive = _merge(problem, archive, _other_splits(chain, _points(archive)))
    except OutOfTime:
        return _sorted(archive), False
    return _sorted(archive), True


def _other_splits(chain: Chain, points: Floats) -> list[TrainingPlan]:
    """Return the plans of a chain in other splits of its layers that no point could be as good as."""

    def is_dominated(step_s: float) -> bool:
        utilization, usd = chain.least(step_s)
        return bool(_dominated(np.array([[step_s, -utilization, usd]]), points)[0])

    if chain.splits is None or is_dominated(chain.bound_s):
        return []
    limit_s = chain.longest_s(lambda step_s: not is_dominated(step_s))
    return [plan for _, plan in islice(chain.within(lambda: limit_s), MOST_SPLITS) if plan is not None]


def _branches(
    problem: Problem, chains: ChainSpace, shards: ShardSpace, check: Check
) -> tuple[Floats, list[tuple[int, int] | _SharedBatch]]:
    bounds: list[Floats] = []
    branches: list[tuple[int, int] | _SharedBatch] = []
    for number, config in enumerate(problem.configs):
        check()
        bound = chains.bounds(config)
        picked = np.flatnonzero(np.isfinite(bound.step_s))
        bounds.append(np.stack([bound.step_s[picked], -bound.utilization[picked], bound.cost_usd[picked]], axis=1))
        branches += [(number, int(chains.masks[index])) for index in picked]
    shared_s = shards.bounds(check=check)
    shared_usd = shards.least_usd(range(len(shared_s)), shared_s)
    for way, group in np.argwhere(np.isfinite(shared_s)).tolist():
        bounds.append(np.array([[shared_s[way, group], -1.0, shared_usd[way, group]]]))
        branches.append(_SharedBatch(way, group))
    return np.concatenate([np.empty((0, 3)), *bounds]), branches


def _build(
    problem: Problem,
    chains: ChainSpace,
    shards: ShardSpace,
    branch: tuple[int, int] | _SharedBatch,
    bound: Floats,
    points: Floats,
    check: Check,
) -> tuple[list[TrainingPlan], list[Chain]]:
    """Return the plans and chains of a branch, but for the orders that some point is as good as."""
    if isinstance(branch, _SharedBatch):
        shards.build_fastest(branch.way, check=check)
        plan = shards.build(shards.sharing(*branch))
        return [] if plan is None else [plan], []
    config, mask = problem.configs[branch[0]], branch[1]
    picked = tuple(i for k, i in enumerate(chains.members) if mask >> k & 1)
    orders = chains.orders(config, picked, all_efficient=True)
    out = _dominated(chains.order_bounds(config, orders, bound), points)
    kept = [order for order, worse in zip(orders, out, strict=True) if not worse]
    built = [chain for order in kept for chain in chains_of(problem, config, order) if isinstance(chain, Chain)]
    return [plan for chain in built for plan in chain.plans], built


def _merge(problem: Problem, archive: list[Evaluated], plans: list[TrainingPlan]) -> list[Evaluated]:
    """Return the non-dominated of the archive and of some new plans; those a bound rules out are not evaluated."""
    if not plans:
        return archive
    if archive:
        closer = np.array([vector(report) for report in problem.model.bounds(plans)])
        plans = [plan for plan, out in zip(plans, _dominated(closer, _points(archive)), strict=True) if not out]
    items = list(archive)
    for plan, report in zip(plans, problem.model.reports(plans), strict=True):
        if within_limits(problem.job, report):
            items.append(Evaluated(plan, report, score_report(problem.job, Scales(), report)))
    return [items[k] for k in efficient(_points(items))] if items else []


def _points(items: list[Evaluated]) -> Floats:
    return np.array([vector(item.report) for item in items]).reshape(-1, 3)


def _dominated(values: Floats, points: Floats) -> Bools:
    """Return which rows of `values` are no better than some point in every column."""
    out = np.zeros(len(values), dtype=bool)
    for point in points:
        out |= (values >= point).all(axis=1)
    return out


def _sorted(archive: list[Evaluated]) -> list[Evaluated]:
    return sorted(archive, key=lambda item: vector(item.report))
