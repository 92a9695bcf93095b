"""Fleets of more domains than can be searched at once: exact searches over pools, and one bound over all.

Each pool holds the domains most worth joining: by size, and around each of the best-connected ones. The best
plan's domains then form the core of further pools until nothing improves. The bound relaxes the choice of
domains: m of them are never better than the m fastest, joined by the m - 1 best links there are.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.clock import Clock
from strata.simulate.screening import any_split_bound_s
from strata.training.plan.exact.alone import best_alone, first_plan
from strata.training.plan.exact.chain import CHUNKS, least_path_share
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.search import TOLERANCE, Search, SearchResult
from strata.training.plan.exact.shards import ShardSpace
from strata.training.plan.exact.speed import speeds
from strata.training.plan.objective import Scales, score
from strata.workload.job import Schedule

SHARED: Final = 128
"""Domains that a batch is shared between at most."""

ALONE_SHARE: Final = 0.25
"""Of the time that is left, for domains alone: the pools hold the fastest of them once more."""

MEMBERS: Final = 8
"""Domains of a pool: pipelines across more of them than this have not been worth it on any fleet tried."""


def search(problem: Problem, scales: Scales, *, clock: Clock, deadline: float, rank: int) -> SearchResult:
    """Return the best plan of any one domain, sharing over all domains or pipeline of the pools, with a bound.

    A plan in one domain comes first, so that there is one within a second whatever the fleet's size; then the
    bound, so that a search that is stopped has it; what takes longer then starts only while there is time.
    """
    result, least = first_plan(problem, scales, clock=clock), -np.inf
    try:
        if not result.interrupted and clock() <= deadline:
            members = tuple(range(len(problem.fleet.domains)))
            shards = ShardSpace(problem, members)
            least = bound(problem, scales, shards)
            least = _join(problem, scales, shards, result, least, clock=clock, deadline=deadline, rank=rank)
    except KeyboardInterrupt:
        if not result.by_set:
            raise
        result.interrupted = True
    result.stopped |= result.interrupted or clock() > deadline
    result.bound = min(least, result.best_score)
    return result


def _join(
    problem: Problem, scales: Scales, shards: ShardSpace, result: SearchResult, least: float,
    *, clock: Clock, deadline: float, rank: int,
) -> float:  # fmt: skip
    """Add to `result` the best sharing, domain and plan of each pool, until none can be better or time is out.

    Returns the bound on any plan: `least`, or a closer one where domains alone were searched.
    """

    def is_over() -> bool:
        result.stopped |= clock() > deadline
        return result.stopped or result.best_score * (1 - TOLERANCE) <= least

    if not is_over():
        near = shards if len(shards.members) <= SHARED else ShardSpace(problem, tuple(_most_worth(problem)))
        shared = Search(problem, scales, (), clock=clock, deadline=deadline, shards=near)
        result.merge(shared.run(so_far=result, keeps_best=True))
    if not is_over():
        until = clock() + ALONE_SHARE * (deadline - clock())
        alone = best_alone(problem, scales, clock=clock, deadline=until, so_far=result)
        least = max(least, bound(problem, scales, shards, alone=alone.bound))
        alone.stopped = alone.interrupted  # what is not proved of them, their bound says
        result.merge(alone)
    queue, tried = first_pools(problem), set[frozenset[int]]()
    while queue and not is_over():
        pool = queue.pop(0)
        if pool in tried:
            continue
        tried.add(pool)
        before = result.best_score
        pooled = Search(problem, scales, sorted(pool), clock=clock, deadline=deadline)
        result.merge(pooled.run(so_far=result, rank=rank if len(tried) == 1 else 0, keeps_best=True))
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


def first_pools(problem: Problem) -> list[frozenset[int]]:
    """Return the fastest MEMBERS domains, and the fastest near each of the best-connected ones."""
    speed, near = speeds(problem), _closeness(problem)
    pools = [frozenset(np.argsort(-speed, kind="stable")[:MEMBERS].tolist())]
    hubs = np.argsort(-(near.sum(axis=1) * speed), kind="stable")[: MEMBERS // 2]
    for hub in hubs:
        others = np.argsort(-(near[hub] * speed), kind="stable")[: MEMBERS - 1]
        pools.append(frozenset([int(hub), *others.tolist()]))
    return pools


def _around_best(problem: Problem, result: SearchResult) -> list[frozenset[int]]:
    """Return pools that hold the best plan's domains and fill up with the nearest and the fastest others."""
    speed, near = speeds(problem), _closeness(problem)
    core = {problem.fleet.index(name) for name in result.ranked[0].plan.domains}
    pools = []
    for worth in (near[sorted(core)].max(axis=0) * speed, near[sorted(core)].max(axis=0), speed):
        rest = [int(i) for i in np.argsort(-worth, kind="stable") if int(i) not in core]
        pools.append(frozenset([*core, *rest[: max(0, MEMBERS - len(core))]]))
    return pools


def bound(problem: Problem, scales: Scales, shards: ShardSpace, *, alone: float = -np.inf) -> float:
    """Return a score no plan on the fleet can beat (utilisation 1, money of the devices while they compute).

    `alone` is the score that no plan in one domain can beat, -inf where none is known.
    """
    is_known = alone > -np.inf
    step_s = min(_chain_bound(problem, fewest=2 if is_known else 1), shards.free_bound_s)
    joined = float(score(problem.job, scales, step_s, 1.0, _least_usd(problem))) if step_s < np.inf else np.inf
    return min(joined, alone) if is_known else joined


def _least_usd(problem: Problem) -> float:
    """Return what the whole batch costs on the devices that do it for the least, none of them ever waiting."""
    domains = problem.fleet.domains
    if any(d.price_usd_per_device_hour is None for d in domains):
        return 0.0
    least = np.inf
    for config in problem.configs:
        usd = np.array([(d.price_usd_per_device_hour or 0.0) * problem.ranks(d, config) for d in domains])
        work_s = problem.compute_cost(config).work_s
        once = (usd[np.isfinite(work_s)] * work_s[np.isfinite(work_s)]).min(initial=np.inf) / 3600
        least = min(least, once * problem.job.global_batch / config.microbatch_size)
    return float(least) if np.isfinite(least) else 0.0


def _chain_bound(problem: Problem, *, fewest: int) -> float:
    """T >= W / (1 - (1 - 1/M)^S) and >= W + C + (M - 1) x (see `ChainSpace.bounds`), least over m domains.

    `fewest` is 2 where plans in one domain have a better bound, else 1.
    """
    domains, layers = problem.fleet.domains, len(problem.job.layers)
    wires = {size: _least_wires(problem, size) for size in {s.microbatch_size for s in problem.configs}}
    chunked = Schedule.INTERLEAVED in problem.job.schedules
    best = np.inf
    for config in problem.configs:
        stages = np.array([problem.stages(domain, config) for domain in domains])
        work_s = problem.compute_cost(config).work_s
        use = (stages > 0) & np.isfinite(work_s)
        if not use.any():
            continue
        slow_sum, latency, slowest = wires[config.microbatch_size]
        count, least = problem.microbatches(config), float(work_s[use].min())
        load = config.data_parallel * problem.message_bytes(config.microbatch_size)
        total = np.minimum(np.cumsum(np.sort(stages[use])[::-1]), layers)
        compute = least / (-np.expm1(total * np.log1p(-1.0 / count)) if count > 1 else np.ones(len(total)))
        if chunked:
            compute[0] = min(compute[0], any_split_bound_s(least, total[0], count, pieces=CHUNKS))
        if Schedule.ZERO_BUBBLE in problem.job.schedules:
            compute = np.minimum(compute, any_split_bound_s(least, total, count, pieces=np.inf))
        joined = slice(len(total))
        network = least * least_path_share(problem.job) + load * slow_sum[joined] + latency[joined]
        if count > 1:
            network = network + (count - 1) * load * slowest[joined]
        best = min(best, float(np.maximum(compute, network)[fewest - 1 :].min(initial=np.inf)))
    return best


def _least_wires(problem: Problem, microbatch_size: int) -> tuple[Floats, Floats, Floats]:
    """Return for m = 1..K the least Σ 1/B, Σ latency and slowest link that could connect m domains."""
    costs = problem.pair_costs(microbatch_size)
    upper = np.triu_indices(len(problem.fleet.domains), 1)
    slow_sum, latency = (
        np.concatenate([[0.0], np.cumsum(np.sort(matrix[upper]))])
        for matrix in (costs.slowness_sum, costs.latency_sum)
    )
    return slow_sum, latency, _least_slowest(costs.slowness)


def _least_slowest(slowness: Floats) -> Floats:
    """Return for m = 1..K the least possible slowest link that connects some m domains (Kruskal)."""
    count = len(slowness)
    parent, size = list(range(count)), [1] * count

    def root(node: int) -> int:
        while parent[node] != node:
            node = parent[node]
        return node

    least = np.full(count, np.inf)
    least[0] = 0.0
    pairs = sorted((slowness[i, j], i, j) for i in range(count) for j in range(i) if np.isfinite(slowness[i, j]))
    for value, i, j in pairs:
        a, b = root(i), root(j)
        if a != b:
            parent[a] = b
            size[b] += size[a]
            least[: size[b]] = np.minimum(least[: size[b]], value)
    return least
