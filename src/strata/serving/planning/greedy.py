"""The seed's greedy allocator: nodes from the fastest down, until the model is held; then the next pipeline.

A look-ahead closes a pipeline with the smallest node that completes it, so that large ones are not spent on a
few layers. Layers are then split exactly.
"""

from __future__ import annotations

from strata.serving.planning.allocation import Pipeline, pipeline_of
from strata.serving.planning.pool import NodePool
from strata.serving.planning.split import least_bottleneck


def greedy(pool: NodePool) -> list[Pipeline]:
    """Return pipelines of nodes sorted by speed; nodes left that hold no model stay idle."""
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
        counts = least_bottleneck(pool, members)
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
