"""The exact Pareto front of a job on up to 8 domains: step time, utilisation, money per step.

Branch and bound with an archive: a branch whose bounds are no better than an archived plan in all three is
never built; everything else is built and evaluated. What is left is the non-dominated set of the plan space.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.clock import Check, Clock
from strata.errors import OutOfTime, UsageError
from strata.simulate.report import StepReport
from strata.training.plan.exact.chain import Chain
from strata.training.plan.exact.chain_space import Bounds, ChainSpace
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
    most_looked: float = np.inf,
    advance: Callable[[float], None] = lambda _share: None,
) -> tuple[list[Evaluated], bool]:
    """Return the non-dominated plans by step time, and whether the search was complete.

    Raises UsageError for more than MOST_DOMAINS usable domains. Plans known before (`start`: legal, evaluated)
    rule branches out from the beginning. After so many looks into sharings and orders of pipelines (`most_looked`)
    the search ends as when time is out, and on any machine alike. `advance` is told the share done.
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

    archive = [start[k] for k in efficient(_points(list(start)))] if start else []
    try:
        branches = _Branches(problem, check)
        branches.drop(_points(archive))
        built: list[TrainingPlan] = []
        opened: list[Chain] = []
        order = _promising_first(branches.bounds)
        for done, position in enumerate(order.tolist()):
            points = _points(archive)
            while branches.alive[position] and branches.bound_closer(position, points):
                check()
            if not branches.alive[position]:
                continue
            if branches.looked >= most_looked:
                return _sorted(_merge(problem, archive, built)), False
            check()
            plans, chains = branches.build(position, points)
            built, opened = built + plans, opened + chains
            if len(built) >= BATCH or not archive:
                archive, built = _merge(problem, archive, built), []
                branches.drop(_points(archive))
                advance(done / len(order))
        archive = _merge(problem, archive, built)
        for chain in opened:
            check()
            archive = _merge(problem, archive, _other_splits(chain, _points(archive)))
    except OutOfTime:
        return _sorted(archive), False
    return _sorted(archive), True


class _Branches:
    """Pipelines of a setting over some domains, and sharings of the batch, with bounds on what is minimised."""

    def __init__(self, problem: Problem, check: Check) -> None:
        members = tuple(range(len(problem.fleet.domains)))
        self.problem, self.check, self.looked = problem, check, 0
        self.chains, self.shards = ChainSpace(problem, members), ShardSpace(problem, members)
        bounds: list[Floats] = [np.empty((0, 3))]
        self._rows: list[Ints] = []
        """By number of a setting, where among the branches its pipelines over each mask are, -1: nowhere."""
        self.branches: list[tuple[int, int] | _SharedBatch] = []
        for number, config in enumerate(problem.configs):
            check()
            bound = self.chains.bounds(config)
            picked = np.flatnonzero(np.isfinite(bound.step_s))
            bounds.append(_columns(bound)[picked])
            self._rows.append(np.full(len(self.chains.masks), -1))
            self._rows[-1][picked] = len(self.branches) + np.arange(len(picked))
            self.branches += [(number, int(self.chains.masks[index])) for index in picked]
        step_s = self.shards.bounds(check=check)
        sharings = self._of_sharings(list(range(len(step_s))), step_s)
        is_possible = np.isfinite(sharings).all(axis=2)  # where first domains have no link, no money buys a sum
        self.position = np.full(step_s.shape, -1)
        """Where among the branches each sharing is [ways, groups]."""
        self.position[is_possible] = len(self.branches) + np.arange(int(is_possible.sum()))
        self.branches += [_SharedBatch(way, group) for way, group in np.argwhere(is_possible).tolist()]
        bounds.append(sharings[is_possible])
        self.bounds = np.concatenate(bounds)
        self.alive = np.ones(len(self.bounds), dtype=bool)

    def drop(self, points: Floats) -> None:
        """Drop what is no better than some point."""
        self.alive &= ~_dominated(self.bounds, points)

    def bound_closer(self, position: int, points: Floats) -> bool:
        """Bound a branch, and others like it, more closely; False where its bound is the closest."""
        branch = self.branches[position]
        self.looked += 1
        if isinstance(branch, _SharedBatch):
            if self._bound_plan(position, branch, points):
                return True
            closer = self.shards.closer(*branch, check=self.check)
            if closer is None:
                return False
            ways, step_s = closer
            known, new = self.position[ways], self._of_sharings(ways, step_s)
        else:
            number, config = branch[0], self.problem.configs[branch[0]]
            masks = self.chains.look(config, branch[1])
            if masks is None:
                return False
            known, new = self._rows[number][masks], _columns(self.chains.bounds(config, masks))[masks]
        rows = known[known >= 0]
        self.bounds[rows] = np.maximum(self.bounds[rows], new[known >= 0])
        self.alive[rows] &= np.isfinite(self.bounds[rows, 0]) & ~_dominated(self.bounds[rows], points)
        return True

    def _bound_plan(self, position: int, branch: _SharedBatch, points: Floats) -> bool:
        """Bound the plan that a sharing is built as, and whether that is closer."""
        step_s, use, usd = self.bounds[position].tolist()
        of_plan = self.shards.bounds_of_plan(*branch, step_s, check=self.check)
        if of_plan is None or (of_plan[0] >= -use and of_plan[1] <= usd):
            return False
        self.bounds[position] = step_s, max(use, -of_plan[0]), max(usd, of_plan[1])
        self.alive[position] = not _dominated(self.bounds[position : position + 1], points)[0]
        return True

    def build(self, position: int, points: Floats) -> tuple[list[TrainingPlan], list[Chain]]:
        """Return the plans and chains of a branch, but for the orders that some point is as good as."""
        branch = self.branches[position]
        if isinstance(branch, _SharedBatch):
            plan = self.shards.build(self.shards.sharing(*branch), check=self.check)
            return [] if plan is None else [plan], []
        config, mask = self.problem.configs[branch[0]], branch[1]
        picked = tuple(i for k, i in enumerate(self.chains.members) if mask >> k & 1)
        orders, after_s = (
            self.chains.orders(config, picked, all_efficient=True),
            self.chains.after_s(config, branch[1]),
        )
        bounds, usd_per_s = self.chains.order_bounds(config, orders, self.bounds[position])
        limits_s, chains = _undominated_s(bounds, usd_per_s, points), list[Chain]()
        for order, limit_s, least_s in zip(orders, limits_s.tolist(), bounds[:, 0].tolist(), strict=True):
            if limit_s <= least_s:
                continue
            self.looked += 1
            built = chains_of(self.problem, config, order, limit_s=limit_s, after_s=after_s)
            chains += [chain for chain in built if isinstance(chain, Chain)]
        return [plan for chain in chains for plan in chain.plans], chains

    def _of_sharings(self, ways: Sequence[int], step_s: Floats) -> Floats:
        """Return the bounds [ways, groups, 3] of sharings that take at least so long."""
        use, usd = self.shards.most_utilization(ways, step_s), self.shards.least_usd(ways, step_s)
        return np.stack([step_s, -use, usd], axis=2)


def _columns(bounds: Bounds) -> Floats:
    return np.stack([bounds.step_s, -bounds.utilization, bounds.cost_usd], axis=1)


def _promising_first(bounds: Floats) -> Ints:
    """Return the branches that could be best in one of the three or in all together first: they rule out most."""
    if not len(bounds):
        return np.empty(0, dtype=np.int64)
    spread = np.ptp(bounds, axis=0)
    scaled = (bounds - bounds.min(axis=0)) / np.where(spread > 0, spread, 1.0)
    ways = np.column_stack([bounds, scaled.sum(axis=1)])
    rank = np.argsort(np.argsort(ways, axis=0, kind="stable"), axis=0, kind="stable")
    return np.argsort(rank.min(axis=1), kind="stable")


def _other_splits(chain: Chain, points: Floats) -> list[TrainingPlan]:
    """Return the plans of a chain in other splits of its layers that no point could be as good as."""

    def is_dominated(step_s: float) -> bool:
        utilization, usd = chain.least(step_s)
        return bool(_dominated(np.array([[step_s, -utilization, usd]]), points)[0])

    if chain.splits is None or is_dominated(chain.bound_s):
        return []
    limit_s = chain.longest_s(lambda step_s: not is_dominated(step_s))
    return [plan for _, plan in islice(chain.within(lambda: limit_s), MOST_SPLITS) if plan is not None]


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


def _undominated_s(bounds: Floats, usd_per_s: float, points: Floats) -> Floats:
    """Return the step time from which on some point is as good as what has bounds [N, 3] and takes so long [N]."""
    step_s, use, usd = bounds[:, :, None].transpose(1, 0, 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        # What is used does not change with the time it takes.
        used = np.where(use < points[:, 1], use * step_s / points[:, 1], step_s)
        paid = np.where(usd < points[:, 2], step_s + (points[:, 2] - usd) / usd_per_s, step_s)
    return np.asarray(np.maximum(points[:, 0], np.maximum(used, paid)).min(axis=1, initial=np.inf))


def _sorted(archive: list[Evaluated]) -> list[Evaluated]:
    return sorted(archive, key=lambda item: vector(item.report))
