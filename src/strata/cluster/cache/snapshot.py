"""The cluster at one moment, as a scheduling cycle sees it: decisions on it need no lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strata.cluster.api.jobs import Job
from strata.cluster.api.kinds import Object
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.cluster.scheduling.snapshot import Placement, PodPlace


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The cache at one moment, for one scheduling cycle; nobody changes it.

    grown: as of the cache. placements: of gangs that are jobs or have pods behind the gate. free_places: of the
    latter, those no pod has. pods: of gangs with unbound pods, all that hold something.
    assumed: gangs whose places are held and do not show yet.
    """

    index: Index
    grown: int
    profiles: tuple[RuntimeProfile, ...]
    jobs: Mapping[str, Job]
    gated: Mapping[str, Object]
    unbound: Mapping[str, Object]
    claims: Mapping[str, Object]
    nodes: Mapping[str, Object]
    compute_nodes: Mapping[str, Object]
    placements: Mapping[str, Placement]
    free_places: Mapping[str, tuple[PodPlace, ...]]
    pods: Mapping[str, tuple[str, ...]]
    assumed: frozenset[str]
