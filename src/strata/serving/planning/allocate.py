"""The door of layer allocation: a pool, a strategy and a goal in; an allocation with its bound and gap out."""

from __future__ import annotations

import math
import time
from typing import Literal

from strata.clock import Clock
from strata.decision import Reason
from strata.serving.planning.allocation import Allocation, Pipeline, pipeline_of, score
from strata.serving.planning.auto import auto
from strata.serving.planning.bound import bound_tokens_per_s, fluid_bound
from strata.serving.planning.dynamic import least_latency, most_throughput
from strata.serving.planning.goal import Goal
from strata.serving.planning.pool import NodePool, largest_pipeline, why_not_held
from strata.serving.planning.shared_stages import with_shared_stages
from strata.serving.planning.split import best_split

Strategy = Literal["auto", "dp", "greedy"]


def allocate(
    pool: NodePool,
    strategy: Strategy = "auto",
    *,
    goal: Goal = Goal.BOTH,
    has_floor: bool = False,
    share_stages: bool = False,
    time_limit_s: float = math.inf,
    clock: Clock = time.monotonic,
) -> Allocation:
    """Return pipelines for a pool. Never raises for an odd one: no pipelines then, and the reasons.

    The answer depends on the pool alone, not on the order its nodes joined in, and not on the machine's speed
    unless the time limit cuts the search short (the reasons say so). `dp` has two objectives: latency for
    that goal, throughput for the others; `greedy` has none. has_floor: however long its decoding takes, a plan of
    `auto` gives no fewer tokens/s than nodes that are filled as they come, and of small pools nearly the most
    that these can. share_stages: nodes left idle may serve a stage of a
    pipeline beside another node, so that its other nodes are in two pipelines.
    """
    started = clock()
    reasons = why_not_held(pool)
    if reasons:
        return Allocation((), score(pool, ()), 0.0, reasons)
    pipelines: list[Pipeline]
    if strategy == "greedy":
        pipelines = greedy(pool)
    elif strategy == "dp":
        pipelines = least_latency(pool) if goal is Goal.LATENCY else most_throughput(pool)
    else:
        pipelines, tried, wanted = auto(
            pool, goal, is_over=lambda: clock() - started > time_limit_s, has_floor=has_floor
        )
        if tried < wanted:
            data = {"elapsed": f"{clock() - started:.2f} s", "evaluated": tried}
            reasons = (Reason("time-limit", data=data),)
    if not pipelines:  # The order of nodes of `dp` and `greedy` may have none; the pool has.
        members = largest_pipeline(pool)[0]
        pipelines = [pipeline_of(pool, members, best_split(pool, members) or [])]
    # The bound of small pools is that of disjoint pipelines.
    bound = fluid_bound(pool) if share_stages else bound_tokens_per_s(pool)
    if share_stages:
        pipelines = with_shared_stages(pool, pipelines)
    pipelines = [stages for stages in pipelines if math.isfinite(score(pool, [stages]).decode_s)]
    if not pipelines:
        reasons = (*reasons, Reason("nodes-apart", data={"nodes": len(pool.nodes)}))
    return Allocation(tuple(pipelines), score(pool, pipelines), bound, reasons)


def greedy(pool: NodePool) -> list[Pipeline]:
    """Return the seed's greedy pipelines: nodes from the fastest down until the model is held, then the next one.

    A look-ahead closes a pipeline with the smallest node that completes it, so that large ones are not spent on a
    few layers. Layers are then split exactly; nodes left that hold no model stay idle.
    """
    left = sorted(range(len(pool.nodes)), key=lambda i: (pool.layer_s[i], -pool.nodes[i].capacity.middle, i))
    left = [i for i in left if pool.nodes[i].capacity.middle >= 1]
    pipelines: list[Pipeline] = []
    while left:
        members: list[int] = []
        while left and len(members) < pool.num_layers:
            closing = [i for i in left if _holds(pool, [*members, i])]
            if closing:
                smallest = min(closing, key=lambda i: pool.nodes[i].capacity.middle)
                members.append(smallest)
                left.remove(smallest)
                break
            members.append(left.pop(0))
        counts = best_split(pool, members)
        if counts is None:
            break
        pipelines.append(pipeline_of(pool, members, counts))
    return pipelines


def _holds(pool: NodePool, members: list[int]) -> bool:
    if len(members) == 1:
        return pool.nodes[members[0]].capacity.only >= pool.num_layers
    nodes = [pool.nodes[i].capacity for i in members]
    held = nodes[0].first + sum(n.middle for n in nodes[1:-1]) + nodes[-1].last
    return held >= pool.num_layers and min(nodes[0].first, nodes[-1].last) >= 1
