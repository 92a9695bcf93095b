"""Shared stages: nodes that make no pipeline of their own help one that is there, stage by stage.

An idle node becomes a second server of a stage: both take their part of the sequences, and the stage gets more
layers in return. The stages beside it are then in two pipelines. Which node helps where is chosen greedily, by
what it adds to tokens/s; the split is anew each time. Helix (arXiv 2406.01566) solves the same by flow and an
integer programme; here nodes are few, what is left after disjoint pipelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from strata.serving.planning.allocation import Pipeline, Stage
from strata.serving.planning.pool import NodePool
from strata.serving.planning.split import fill_equal

LEAST_GAIN = 1e-6
"""Relative gain below which a helper is left idle."""


class _Group(NamedTuple):
    """Servers of each stage, the layers of each stage, and the rate of all together [steps/s]."""

    servers: list[list[int]]
    counts: list[int]
    rate: float


def with_shared_stages(pool: NodePool, pipelines: Sequence[Pipeline]) -> list[Pipeline]:
    """Return the pipelines with idle nodes as second servers of stages; as they are where layers are not alike."""
    if not pool.has_equal_layers or not pipelines:
        return list(pipelines)
    used = {stage.node_id for stages in pipelines for stage in stages}
    groups = [
        group
        for stages in pipelines
        if (group := _evaluated(pool, [[pool.index[stage.node_id]] for stage in stages])) is not None
    ]
    idle = sorted((i for i, node in enumerate(pool.nodes) if node.id not in used), key=lambda i: pool.layer_s[i])
    for i in idle:
        best, gain = None, 0.0
        for g, group in enumerate(groups):
            for stage in range(len(group.servers)):
                servers = [list(s) for s in group.servers]
                servers[stage].append(i)
                helped = _evaluated(pool, servers)
                if helped and helped.rate - group.rate > max(gain, LEAST_GAIN * group.rate):
                    best, gain = (g, helped), helped.rate - group.rate
        if best:
            groups[best[0]] = best[1]
    return [path for group in groups for path in _paths(pool, group)]


def _evaluated(pool: NodePool, servers: list[list[int]]) -> _Group | None:
    """Split the layers over stages as fast as their servers together; None where they do not fit or reach."""
    last, caps, layer_s = len(servers) - 1, [], []
    for at, stage in enumerate(servers):
        place = "only" if last == 0 else "first" if at == 0 else "last" if at == last else "middle"
        caps.append(min(pool.num_layers - last, *(getattr(pool.nodes[i].capacity, place) for i in stage), 10**9))
        layer_s.append(1.0 / sum(1.0 / pool.layer_s[i] for i in stage))
    if min(caps) < 1 or sum(caps) < pool.num_layers:
        return None
    if any(
        pool.hops[a][b] == float("inf")
        for at, stage in enumerate(servers)
        for a in stage
        for b in servers[(at + 1) % len(servers)]
        if a != b
    ):
        return None
    head_s = 1.0 / sum(1.0 / max(pool.nodes[i].head_s, 1e-18) for i in servers[last])
    counts = fill_equal(pool.num_layers, layer_s, caps, head_s)
    rates = [
        sum(1.0 / (count * pool.layer_s[i] + (pool.nodes[i].head_s if at == last else 0.0)) for i in stage)
        for at, (stage, count) in enumerate(zip(servers, counts, strict=True))
    ]
    return _Group(servers, counts, min(rates))


def _paths(pool: NodePool, group: _Group) -> list[Pipeline]:
    """Return pipelines that use every server of every stage at least once."""
    paths = []
    for turn in range(max(len(stage) for stage in group.servers)):
        first, stages = 0, []
        for stage, count in zip(group.servers, group.counts, strict=True):
            stages.append(Stage(pool.nodes[stage[turn % len(stage)]].id, first, first + count))
            first += count
        paths.append(tuple(stages))
    return paths
