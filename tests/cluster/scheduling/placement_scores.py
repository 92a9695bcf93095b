"""The documented score of a placement, written out a second time, and every placement of a small cluster."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from strata.cluster.scheduling.snapshot import Cluster

NEAR = {"node": 1.0, "rdma": 2 / 3, "rack": 1 / 3, "any": 0.0}
Pods = tuple[tuple[int, tuple[int, ...]], ...]
"""Of each pod its node's number and its devices."""


def free_of(cluster: Cluster) -> list[frozenset[int]]:
    return [
        frozenset(i for i, share in enumerate(node.free_share) if share == 1 and _is_well(node, i))
        for node in cluster.nodes
    ]


def _is_well(node, device: int) -> bool:
    return node.fingerprint.devices[device].health >= 0.5


def level_of(cluster: Cluster, pods: Pods) -> str:
    nodes = [cluster.nodes[number] for number, _ in pods]
    if len({node.name for node in nodes}) == 1:
        return "node"
    for level, groups in (("rdma", {n.rdma_group for n in nodes}), ("rack", {n.rack for n in nodes})):
        if len(groups) == 1 and "" not in groups:
            return level
    return "any"


def score(cluster: Cluster, pods: Pods, *, fit: float = 1.0) -> float:
    free = free_of(cluster)
    left = [set(some) for some in free]
    total = 0.40 * NEAR[level_of(cluster, pods)] + 0.10 * fit
    begun = set()
    for number, devices in pods:
        total += 0.25 * worth(cluster, number, devices, left[number]) / len(pods)
        left[number] -= set(devices)
    for number, _ in pods:
        node = cluster.nodes[number]
        well = sum(_is_well(node, i) for i in range(len(node.free_share)))
        if not (len(free[number]) == well and number not in begun):
            total += 0.20 / len(pods)
        begun.add(number)
        total += 0.05 * (1 - len(left[number]) / well) / len(pods)
    return total


def worth(cluster: Cluster, number: int, devices: tuple[int, ...], free: set[int]) -> float:
    print_ = cluster.nodes[number].fingerprint
    bandwidth = print_.bandwidth()
    count = len(devices)

    def slowest(some: tuple[int, ...]) -> float:
        return min(bandwidth[i, j] for i, j in combinations(some, 2))

    of_best = of_fastest = 1.0
    if count > 1:
        of_fastest = slowest(devices) / 300e9
        of_best = slowest(devices) / max(slowest(some) for some in combinations(range(len(bandwidth)), count))
    boards = {print_.devices[i].board for i in devices} - {""}
    torn = sum(any(print_.devices[i].board == board for i in free - set(devices)) for board in boards)
    numa = len({print_.devices[i].numa_node for i in devices}) == 1
    return 0.5 * of_best + 0.3 * of_fastest + 0.1 / (1 + torn) + 0.1 * numa


def every_placement(cluster: Cluster, *, pods: int, devices: int) -> Iterator[Pods]:
    def grow(taken: Pods, free: list[frozenset[int]]) -> Iterator[Pods]:
        if len(taken) == pods:
            yield taken
            return
        for number, some in enumerate(free):
            for chosen in combinations(sorted(some), devices):
                rest = list(free)
                rest[number] = some - set(chosen)
                yield from grow((*taken, (number, chosen)), rest)

    yield from grow((), free_of(cluster))
