"""The seed's dynamic programming: contiguous layers over nodes in a fixed order, exact.

The order is region by region. For throughput the order is cut into pipelines of neighbouring nodes, each with
its least bottleneck, so that the tokens/s of all are most. For latency the recurrence of the seed, with hops,
capacities and nodes that may be skipped, finds the pipeline of the least decode time (the closing hop counted);
then that of the nodes left, until no model fits.
"""

from __future__ import annotations

import numpy as np

from strata.arrays import Floats
from strata.serving.planning.allocation import Pipeline, pipeline_of
from strata.serving.planning.cuts import best_cuts
from strata.serving.planning.evaluation import RingEvaluator
from strata.serving.planning.pool import NodePool
from strata.serving.planning.split import best_split

WINDOW = 24
"""A pipeline is sought among so many successive nodes of the order."""


def most_throughput(pool: NodePool) -> list[Pipeline]:
    """Return the best cuts of the nodes, region by region and the longest filling first, into pipelines.

    Exact for that order, among pipelines of at most WINDOW nodes.
    """
    evaluator = RingEvaluator(pool)
    order = sorted(range(len(pool.nodes)), key=lambda i: (pool.regions[i], -evaluator.fills_s[i], i))
    rings = best_cuts(evaluator.value, order, rate_price=1.0, weight_price=0.0, longest=WINDOW, is_thrifty=False)
    return [pipeline_of(pool, r.members, best_split(pool, r.members) or []) for r in rings]


def least_latency(pool: NodePool) -> list[Pipeline]:
    """Return pipelines of the least decode time, one after the other; its splits are not balanced."""
    order = sorted(range(len(pool.nodes)), key=lambda i: (pool.regions[i], pool.layer_s[i], i))
    seen: dict[tuple[int, ...], tuple[float, list[int], list[int]]] = {}
    pipelines: list[Pipeline] = []
    while True:
        best: tuple[float, list[int], list[int]] = (np.inf, [], [])
        for at in range(len(order)):
            window = tuple(order[at : at + WINDOW])
            if window not in seen:
                seen[window] = quickest_from(pool, window)
            best = min(best, seen[window], key=lambda path: path[0])
        if not best[1]:
            return pipelines
        pipelines.append(pipeline_of(pool, best[1], best[2]))
        order = [i for i in order if i not in best[1]]


def quickest_from(pool: NodePool, window: tuple[int, ...]) -> tuple[float, list[int], list[int]]:
    """Return the least decode time of pipelines that begin with the window's first node: time, members, layers.

    reach[j, e] is the least time to have layers [0, e) done, the last of them on node j of the window:
    reach[j, e] = min over i < j and f < e of reach[i, f] + hop(i, j) + time of [f, e) on j.
    """
    L, n = pool.num_layers, len(window)
    first = pool.nodes[window[0]]
    prefix = np.array([pool.nodes[i].prefix_s for i in window])
    hop = pool.hop_s[np.ix_(window, window)]
    reach = np.full((n, L + 1), np.inf)
    top = min(first.capacity.first, L - 1)
    reach[0, 1 : top + 1] = prefix[0, 1 : top + 1]
    enter = np.full((n, L + 1), np.inf)
    best, closing = np.inf, 0
    if first.capacity.only >= L:
        best = float(prefix[0, L]) + first.head_s
    for j in range(1, n):
        node = pool.nodes[window[j]]
        enter[j] = (reach[:j] + hop[:j, j, None]).min(axis=0)
        reach[j] = _take(enter[j], prefix[j], node.capacity.middle)
        done = _take(enter[j], prefix[j], node.capacity.last)[L] + node.head_s + hop[j, 0]
        if done < best:
            best, closing = float(done), j
    if not np.isfinite(best):
        return np.inf, [], []
    if closing == 0:
        return best, [window[0]], [L]
    j, end = closing, L
    members, counts = [], []
    while j > 0:
        capacity = pool.nodes[window[j]].capacity
        low = max(0, end - (capacity.last if j == closing else capacity.middle))
        begin = low + int(np.argmin((enter[j] - prefix[j])[low:end]))
        members.append(window[j])
        counts.append(end - begin)
        j, end = int(np.argmin(reach[:j, begin] + hop[:j, j])), begin
    return best, [window[0], *reversed(members)], [end, *reversed(counts)]


def _take(enter: Floats, prefix: Floats, capacity: int) -> Floats:
    """Return the least time at which each layer is the end of a node's share, given when each may be its start."""
    L = len(prefix) - 1
    reach, start = np.full(L + 1, np.inf), enter - prefix
    for count in range(1, min(capacity, L) + 1):
        np.minimum(reach[count:], start[:-count] + prefix[count:], out=reach[count:])
    return reach
