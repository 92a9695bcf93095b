"""The cluster as a decision sees it: nodes with their fingerprints, and what of each device is free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from strata.cluster.scheduling.host import NOTHING, UNLIMITED, PodRequests
from strata.fleet.fingerprint import Fingerprint


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node. `free_bytes[i]` and `free_share[i]` are of device i; a device nobody uses has all of both.

    withheld: devices that count as used though nobody holds them, since the node's device plugin offers fewer.
    is_silent: its agent was not heard of for minutes; then it is not schedulable either.
    rdma_group, rack: who it reaches fast; empty where nobody said. taints: `key=value:effect`.
    allocatable: of each resource, what pods may request of the node; None where nobody knows: then none counts.
    requested: by all pods on it, and by those that were sent there.
    """

    fingerprint: Fingerprint
    free_bytes: tuple[float, ...]
    free_share: tuple[float, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    is_schedulable: bool = True
    rdma_group: str = ""
    rack: str = ""
    allocatable: Mapping[str, int] | None = None
    requested: PodRequests = NOTHING
    withheld: frozenset[int] = frozenset()
    is_silent: bool = False
    name: str = field(init=False)
    """The fingerprint's."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.fingerprint.node)

    def capacity(self, requests: PodRequests) -> int:
        """Return for how many more such pods the node has capacity, devices apart."""
        pods = int(not requests.ports & self.requested.ports) if requests.ports else UNLIMITED
        for name, amount in requests.amounts.items():
            if amount > 0 and self.allocatable is not None:
                free = self.allocatable.get(name, 0) - self.requested.amounts.get(name, 0)
                pods = min(pods, max(0, free // amount))
        return pods


@dataclass(frozen=True, slots=True)
class Cluster:
    """All nodes, by name in canonical order; `version` tells snapshots apart."""

    nodes: tuple[NodeState, ...] = ()
    version: str = ""


@dataclass(frozen=True, slots=True)
class PodPlace:
    """Where one pod of a gang goes: a node, its devices, and the memory of each where it is a fraction.

    devices: places in the node's fingerprint. numbers: the vendor's own of them; empty where they are the same.
    """

    node: str
    devices: tuple[int, ...]
    memory_bytes: float | None = None
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """A whole gang's places under one profile, all on cards of one model.

    devices_per_pod: 1 for a fraction. bandwidth: of the gang's slowest pair of devices [bytes/s], infinite for
    one device. level: how near the pods are (node, rdma, rack, any). can_p2p: False where the devices of a node
    cannot reach each other's memory. score: by `scoring`, in [0, 1].
    requests: of each pod, of its node; not what tells placements apart.
    """

    profile: str
    pods: tuple[PodPlace, ...]
    devices_per_pod: int
    bandwidth: float
    model: str = ""
    level: str = "node"
    can_p2p: bool = True
    cores_share: float | None = None
    score: float = 0.0
    requests: PodRequests = field(default=NOTHING, compare=False)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Its nodes, each once, in order of name; none for one that waits."""
        return tuple(sorted({pod.node for pod in self.pods} - {""}))
