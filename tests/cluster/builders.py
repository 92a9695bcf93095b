"""Small clusters, profiles and claims in one line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.evaluation import Choice, evaluate
from strata.cluster.scheduling.explain import explain
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.cluster.scheduling.snapshot import Cluster, NodeState, Placement
from strata.decision import Decision
from strata.fleet.catalogue import accelerator
from strata.fleet.fingerprint import Device, Fingerprint

A100 = "A100-SXM4-80GB"
B3 = "Ascend910B3"
DIE = "Ascend910C-die"

PROFILES = (
    RuntimeProfile("pytorch-nvidia", "NVIDIA", (A100, "H100-SXM5-80GB"), "pytorch", "pytorch:1", "nvidia.com/gpu"),
    RuntimeProfile("pytorch-ascend", "Huawei", (B3, DIE), "pytorch", "ascend:1", "huawei.com/Ascend910"),
    RuntimeProfile("paddle-ascend", "Huawei", (B3,), "paddle", "paddle:1", "huawei.com/Ascend910"),
)


def node(
    name: str,
    model: str = A100,
    count: int = 8,
    *,
    busy: Any = (),
    dies: int = 1,
    sick: Any = (),
    link: str = "nvlink",
    links: dict[tuple[int, int], str] | None = None,
    can_p2p: bool = True,
    **more: Any,
) -> NodeState:
    """A node of like devices, two NUMA nodes, all joined by one link unless `links` names pairs."""
    card = accelerator(model)
    devices = tuple(
        Device(
            i,
            f"{name}-{i}",
            model,
            card.vendor,
            card.memory_bytes,
            card,
            board=str(i // dies) if dies > 1 else "",
            numa_node=2 * i // count,
            health=0.1 if i in sick else 1.0,
        )
        for i in range(count)
    )
    pairs = {(i, j): link for i in range(count) for j in range(i + 1, count)} | (links or {})
    return NodeState(
        Fingerprint(name, devices, pairs, can_p2p=can_p2p),
        tuple(0.0 if i in busy else card.memory_bytes for i in range(count)),
        tuple(0.0 if i in busy else 1.0 for i in range(count)),
        **more,
    )


def cluster(*nodes: NodeState) -> Cluster:
    return Cluster(nodes)


def claim(devices: int | None = 1, pods: int = 1, **more: Any) -> Claim:
    return replace(Claim("job"), devices=devices, pods=pods, **more)


def quads(count: int = 8, *, fast: str = "nvlink", slow: str = "sys") -> dict[tuple[int, int], str]:
    """Links of devices in groups of four."""
    return {(i, j): fast if i // 4 == j // 4 else slow for i in range(count) for j in range(i + 1, count)}


def choose(index: Index, asked: Claim, profiles: Sequence[RuntimeProfile]) -> Choice:
    """Return the router's choice on an index."""
    return evaluate(index, asked, profiles).choice


def decide(where: Index | Cluster, asked: Claim, profiles: Sequence[RuntimeProfile]) -> Decision[Placement]:
    """Return the router's choice with every node's reason."""
    index = where if isinstance(where, Index) else Index.of(where)
    return explain(evaluate(index, asked, profiles))
