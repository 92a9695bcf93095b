"""Fleets of more domains than can be searched at once: exact searches over pools, and one bound over all.

Each pool holds the domains most worth joining: by size, and around each of the best-connected ones. The best
plan's domains then form the core of further pools until nothing improves. The bound relaxes the choice of
domains: m of them are never better than the m fastest, joined by the m - 1 best links there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.clock import Check, Clock, unlimited
from strata.errors import OutOfTime
from strata.training.plan.exact.alone import best_alone, first_plan
from strata.training.plan.exact.floors import ChainFloors
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.ranked_search import RankedSearch
from strata.training.plan.exact.result import TOLERANCE, SearchResult
from strata.training.plan.exact.search import Search
from strata.training.plan.exact.shards import ShardSpace
from strata.training.plan.exact.speed import speeds
from strata.training.plan.objective import Scales, score
from strata.workload.job import Objective

SHARED: Final = 128
"""Domains that a batch is shared between at most."""

SHARED_SHARE: Final = 0.6
ALONE_SHARE: Final = 0.25
"""Of the time that is left, for sharings; then for domains alone: the pools hold the fastest of them once more."""

MEMBERS: Final = 8
"""Domains of a pool: pipelines across more of them than this have not been worth it on any fleet tried."""


def search(
    problem: Problem, scales: Scales, *, clock: Clock, deadline: float, rank: int, is_owed: bool = True
) -> SearchResult:
    """Return the best plan of any one domain, sharing over all domains or pipeline of the pools, with a bound.

    A plan in one domain comes first, so that there is one within a second whatever the fleet's size (`is_owed`:
    and whatever the deadline); then the bound, so that a search that is stopped has it; what takes longer then
    starts only while there is time.
    """
    pools, least = first_pools(problem), -np.inf
    result = first_plan(problem, scales, pools, clock=clock, deadline=deadline, is_owed=is_owed)

    def check() -> None:
        if clock() > deadline:
            raise OutOfTime("the bound")

    try:
        if not result.interrupted and clock() <= deadline:
            members = tuple(range(len(problem.fleet.domains)))
            shards = ShardSpace(problem, members)
            least = bound(problem, scales, shards, is_close=False, check=check)
            least = _join(
                problem, scales, shards, result, least, clock=clock, deadline=deadline, rank=rank, check=check
            )
    except OutOfTime:  # before any plan was bounded: nothing is proved
        result.stopped = True
    except KeyboardInterrupt:
        if not result.by_set:
            raise
        result.interrupted = True
    result.stopped |= result.interrupted or clock() > deadline
    result.bound = min(least, result.best_score)
    return result


def _join(
    problem: Problem, scales: Scales, shards: ShardSpace, result: SearchResult, least: float,
    *, clock: Clock, deadline: float, rank: int, check: Check,
) -> float:  # fmt: skip
    """Add to `result` the best sharing, domain and plan of each pool, until none can be better or time is out.

    Returns the bound on any plan: `least`, or a closer one where domains alone were searched.
    """

    def is_over() -> bool:
        result.stopped |= clock() > deadline
        return result.stopped or result.best_score * (1 - TOLERANCE) <= least

    def closer(alone: float = -np.inf) -> float:
        """Bound all plans by built shapes, as far as there is time."""
        enough_s = result.best_score if problem.job.objective is Objective.TIME else None
        with suppress(OutOfTime):  # the bound that there is holds
            return bound(problem, scales, shards, alone=alone, enough_s=enough_s, check=check)
        return -np.inf

    if not is_over():
        near = shards if len(shards.members) <= SHARED else ShardSpace(problem, tuple(_most_worth(problem)))
        until = clock() + SHARED_SHARE * (deadline - clock())
        shared = Search(problem, scales, (), clock=clock, deadline=until, shards=near).run(
            so_far=result, keeps_best=True
        )
        shared.stopped = shared.interrupted  # what is not proved of them, the bound over all says
        result.merge(shared)
        least = max(least, closer())
    if not is_over():
        until = clock() + ALONE_SHARE * (deadline - clock())
        alone = best_alone(problem, scales, clock=clock, deadline=until, so_far=result)
        least = max(least, closer(alone.bound))
        alone.stopped = alone.interrupted  # what is not proved of them, their bound says
        result.merge(alone)
    queue, tried = list(first_pools(problem)), set[frozenset[int]]()
    while queue and not is_over():
        pool = queue.pop(0)
        if pool in tried:
            continue
        tried.add(pool)
        before = result.best_score
        rows = rank if len(tried) == 1 else 0
        pooled = RankedSearch(problem, scales, sorted(pool), clock=clock, deadline=deadline, rank=rows)
        result.merge(pooled.run(so_far=result, keeps_best=True))
        if result.best_score < before:
            queue = [*_around_best(problem, result), *queue]
    return least


def _most_worth(problem: Problem) -> list[int]:
    """Return the SHARED domains that are fast and near to others."""
    speed, near = speeds(problem), _closeness(problem)
    return sorted(np.argsort(-(near.sum(axis=1) * speed), kind="stable")[:SHARED].tolist())


def _closeness(problem: Problem) -> Floats:
    """Return for each pair how little a microbatch's round trip costs, as a rank-able number."""
    costs = problem.pair_costs(1)
    with np.errstate(divide="ignore"):
        near = 1.0 / (problem.message_bytes(1) * costs.slowness_sum + costs.latency_sum)
    np.fill_diagonal(near, 0.0)
    return np.asarray(near)


def first_pools(problem: Problem) -> Iterator[frozenset[int]]:
    """Yield the fastest MEMBERS domains, and the fastest near each of the best-connected ones."""
    speed = speeds(problem)
    yield frozenset(np.argsort(-speed, kind="stable")[:MEMBERS].tolist())
    near = _closeness(problem)
    hubs = np.argsort(-(near.sum(axis=1) * speed), kind="stable")[: MEMBERS // 2]
    for hub in hubs:
        others = np.argsort(-(near[hub] * speed), kind="stable")[: MEMBERS - 1]
        yield frozenset([int(hub), *others.tolist()])


def _around_best(problem: Problem, result: SearchResult) -> list[frozenset[int]]:
    """Return pools that hold the best plan's domains and fill up with the nearest and the fastest others."""
    speed, near = speeds(problem), _closeness(problem)
    core = {problem.fleet.index(name) for name in result.ranked[0].plan.domains}
    pools = []
    for worth in (near[sorted(core)].max(axis=0) * speed, near[sorted(core)].max(axis=0), speed):
        rest = [int(i) for i in np.argsort(-worth, kind="stable") if int(i) not in core]
        pools.append(frozenset([*core, *rest[: max(0, MEMBERS - len(core))]]))
    return pools


def bound(
    problem: Problem, scales: Scales, shards: ShardSpace,
    *, alone: float = -np.inf, is_close: bool = True, enough_s: float | None = None, check: Check = unlimited,
) -> float:  # fmt: skip
    """Return a score no plan on the fleet can beat (utilisation 1, money of the devices while they compute).

    `alone` is the score that no plan in one domain can beat, -inf where none is known. Not `is_close`: sharings
    have their floors, which take a tenth of the time. `enough_s`: see `ShardSpace.free_bound_s`.
    """
    floors, configs = ChainFloors(problem, range(len(problem.fleet.domains))), problem.configs
    is_known = alone > -np.inf
    floors_s, usd = floors.step_s_and_usd(configs, check=check)
    chains_s = floors_s[:, 1 if is_known else 0 :].min(initial=np.inf)
    if is_close:
        shared_s = shards.free_bound_s(enough_s=enough_s, check=check)
    else:
        shared_s = min((floor_s for floor_s, _ in shards.floors(check=check).values()), default=np.inf)
    step_s = min(float(chains_s), shared_s)
    if not np.isfinite(step_s):
        return alone if is_known else np.inf
    joined = float(score(problem.job, scales, step_s, 1.0, usd.min()))
    return min(joined, alone) if is_known else joined
