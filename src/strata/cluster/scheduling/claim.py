"""What a job asks of a cluster, whatever the vendor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from strata.cluster.scheduling.host import NOTHING, PodRequests
from strata.fleet.acu import Need, Norm

Substitution = Literal["never", "ask", "allow"]
TopologyWish = Literal["none", "prefer", "require"]


@dataclass(frozen=True, slots=True)
class Where:
    """Where a pod's own spec lets it go, as the API server has it.

    terms: of its required node affinity, of which one must hold. tolerations: besides its profile's.
    """

    selector: Mapping[str, str] = field(default_factory=dict)
    terms: tuple[Mapping[str, Any], ...] = ()
    tolerations: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """A gang of `pods` like pods, all placed or none, all on one vendor's cards of one profile.

    pods: 0 for a job that runs none; it gets no place.
    need: of each pod, in SI units (memory, fp16, ...): what its devices must have together.
    devices: of each pod, where the job counts devices itself; None: as many as the need takes.
    memory_bytes: of one device, for a fraction of it (`is_fractional`); a fraction takes one device a pod.
    accelerator: the card the job was written for, if any; substitution says what may stand in for it.
    vendor: only its cards, for a job that counts a vendor's devices and names no card.
    requests: of each pod, of its node, besides the devices. framework: pytorch, paddle or mindspore; the profile
    must have it. group_level: how near the gang must be.
    """

    name: str
    namespace: str = "default"
    pods: int = 1
    need: Need = field(default_factory=lambda: Need({}))
    devices: int | None = None
    memory_bytes: float = 0.0
    cores_share: float | None = None
    is_fractional: bool = False
    accelerator: str = ""
    vendor: str = ""
    substitution: Substitution = "allow"
    norm: Norm = "compute"
    framework: str = ""
    profile: str = ""
    topology: TopologyWish = "prefer"
    group_level: Literal["", "node", "rdma", "rack"] = ""
    priority: int = 0
    where: Where = field(default_factory=Where)
    requests: PodRequests = NOTHING
