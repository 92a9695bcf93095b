"""Random pools for allocation tests, and the exact optimum of small ones by brute force."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import combinations, pairwise, permutations

import numpy as np

from strata.serving.planning.pool import KvRoom, LayerCapacity, NodePool, PoolNode, equal_layers
from strata.serving.planning.split import capacities


def node(
    name: str, layer_s: float = 1e-3, *, room: int = 8, layers: int = 8, head_s: float = 0.0, ends: int = 0
) -> PoolNode:
    """A node of equal layers; `ends` is how many layers less it holds as an end."""
    less = max(room - ends, 0)
    capacity = LayerCapacity(less, room, less, max(room - 2 * ends, 0))
    return PoolNode(name, equal_layers(layer_s, layers), head_s, capacity)


def pool(*nodes: PoolNode, hop_s: float = 1e-3, batch: int = 8) -> NodePool:
    hops = np.full((len(nodes), len(nodes)), hop_s)
    np.fill_diagonal(hops, 0.0)
    return NodePool.of(list(nodes), len(nodes[0].prefix_s) - 1 if nodes else 8, batch, hops)


def random_pool(
    seed: int, *, num_nodes: int, layers: int, room: tuple[float, float] = (0.1, 0.5), equal: bool = True
) -> NodePool:
    """Two or more regions, asymmetric hops, capacities as shares of the layers."""
    rng = random.Random(seed)
    region = [rng.randrange(1 + num_nodes // 4) for _ in range(num_nodes)]
    hops = np.array(
        [
            [rng.uniform(1e-3, 8e-3) if region[i] == region[j] else 0.08 for j in range(num_nodes)]
            for i in range(num_nodes)
        ]
    )
    np.fill_diagonal(hops, 0.0)
    nodes = []
    for i in range(num_nodes):
        layer_s, held = rng.uniform(1e-4, 1e-3), max(1, round(rng.uniform(*room) * layers))
        times = [layer_s * (1.0 if equal else rng.uniform(0.3, 2.0)) for _ in range(layers)]
        prefix = equal_layers(layer_s, layers) if equal else (0.0, *np.cumsum(times).tolist())
        ends = max(held - rng.randrange(3), 0)
        capacity = LayerCapacity(ends, held, ends, max(2 * ends - held, 0))
        nodes.append(PoolNode(f"n{i}", prefix, rng.uniform(0, 2) * layer_s, capacity))
    return NodePool.of(nodes, layers, 8, hops)


def with_memory(one: NodePool, usable: list[float], *, ends: float = 0.0) -> NodePool:
    """Layers of one byte, keys and values of a sequence a hundredth of it; `ends`: embedding and head each."""
    borders = range(one.num_layers + 1)
    kv = KvRoom(tuple(usable), (*map(float, borders),), tuple(0.01 * n for n in borders), ends, ends, 0.0, 256)
    return replace(one, kv=kv)


def every_split(num_layers: int, parts: int):
    """All ways to cut layers into so many non-empty runs."""
    for cuts in combinations(range(1, num_layers), parts - 1):
        edges = (0, *cuts, num_layers)
        yield [b - a for a, b in pairwise(edges)]


def legal_splits(one: NodePool, members: list[int]) -> list[list[int]]:
    """All ways to cut the layers that the members' memory allows."""
    caps = capacities(one, members)
    return [
        counts
        for counts in every_split(one.num_layers, len(members))
        if all(count <= cap for count, cap in zip(counts, caps, strict=True))
    ]


def best_by_force(one: NodePool, members: tuple[int, ...]) -> float:
    """The least bottleneck over the choice of the two ends, equal layers, every split tried by its value."""
    L, best = one.num_layers, math.inf
    ends = set(permutations(members, 2)) if len(members) > 1 else {(members[0], members[0])}
    for first, last in ends:
        inner = [i for i in members if i not in (first, last)]
        order = [first, *inner, last] if len(members) > 1 else [first]
        caps = [one.nodes[i].capacity.middle for i in order]
        if len(order) == 1:
            caps = [one.nodes[first].capacity.only]
        else:
            caps[0], caps[-1] = one.nodes[first].capacity.first, one.nodes[last].capacity.last
        # With equal layers a bottleneck is c * layer_s (+ head_s): try each, fill what fits below.
        times = {
            c * one.layer_s[i] + (one.nodes[i].head_s if i == last else 0.0)
            for i, cap in zip(order, caps, strict=True)
            for c in range(1, min(cap, L) + 1)
        }
        for limit in sorted(times):
            if limit >= best:
                break
            fits = [
                min(cap, int((limit - (one.nodes[i].head_s if i == last else 0.0)) / one.layer_s[i] + 1e-9))
                for i, cap in zip(order, caps, strict=True)
            ]
            if min(fits) >= 1 and sum(fits) >= L and len(order) <= L:
                best = limit
                break
    return best


def most_tokens_per_s(one: NodePool) -> float:
    """The exact optimum: the best disjoint sets, by dynamic programming over all sets."""
    n = len(one.nodes)
    rate = [0.0] * (1 << n)
    for mask in range(1, 1 << n):
        members = tuple(i for i in range(n) if mask >> i & 1)
        slowest = best_by_force(one, members)
        rate[mask] = one.batch / slowest if slowest < math.inf else 0.0
    best = [0.0] * (1 << n)
    for mask in range(1, 1 << n):
        low = mask & -mask
        best[mask] = best[mask ^ low]
        part = mask
        while part:
            if part & low and rate[part] > 0:
                best[mask] = max(best[mask], rate[part] + best[mask ^ part])
            part = (part - 1) & mask
    return best[-1]
