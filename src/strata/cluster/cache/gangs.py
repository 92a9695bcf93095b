"""Who holds what: gangs with their placements and pods, and the places that were promised and do not show yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from strata.cluster.api.jobs import Job
from strata.cluster.api.placement_annotation import as_written
from strata.cluster.cache.allocation import PodSeen, Use, devices_of, uses_of
from strata.cluster.scheduling.snapshot import Placement, PodPlace
from strata.fleet.fingerprint import Fingerprint


@dataclass
class _Gang:
    """placement: as its job says, None where no job does. is_reserved: places without pods are held as well.

    uses: by node, as they were when it was last looked at.
    """

    placement: Placement | None = None
    is_reserved: bool = False
    assumed: Placement | None = None
    assumed_until_s: float = 0.0
    pods: dict[str, PodSeen] = field(default_factory=dict)
    uses: Mapping[str, tuple[Use, ...]] = field(default_factory=dict)

    @property
    def where(self) -> Placement | None:
        """What it holds: as assumed, as its job says, else as its pods do."""
        if self.assumed is not None or self.placement is not None:
            return self.assumed or self.placement
        return next((pod.placement for pod in self.pods.values() if pod.placement is not None), None)


class Gangs:
    """fingerprints: by node, kept by others; who changes what one says of held devices calls `held_changed`.

    touch: is told every node whose holders have changed, by `settle`: of what a gang of hundreds of pods holds
    each news changes a little, and it is looked at once for all of them.
    """

    def __init__(self, fingerprints: Mapping[str, Fingerprint], touch: Callable[[str], None]) -> None:
        self._fingerprints, self._touch = fingerprints, touch
        self._gangs: dict[str, _Gang] = {}
        self._gang_of_pod: dict[str, str] = {}
        self._on_node: dict[str, set[str]] = {}
        self._changed: set[str] = set()

    @property
    def placements(self) -> Mapping[str, Placement]:
        """What is placed, by gang: of its job, else of its pods."""
        return {gang: where for gang, entry in self._gangs.items() if (where := entry.where) is not None}

    @property
    def assumed(self) -> frozenset[str]:
        """Gangs whose places are held and do not show yet."""
        return frozenset(gang for gang, entry in self._gangs.items() if entry.assumed is not None)

    @property
    def pods(self) -> set[str]:
        """The pods of all gangs, as `namespace/name`."""
        return set(self._gang_of_pod)

    def __contains__(self, gang: str) -> bool:
        entry = self._gangs.get(gang)
        return entry is not None and (bool(entry.pods) or entry.where is not None)

    def placement_of(self, gang: str) -> Placement | None:
        """Return what a gang holds, as `placements` has it."""
        entry = self._gangs.get(gang)
        return None if entry is None else entry.where

    def free_places(self, gang: str) -> list[PodPlace]:
        """Return the places of a gang that no pod of it has."""
        entry = self._gangs.get(gang)
        left = list(placement.pods) if entry and (placement := entry.where) else []
        for pod in entry.pods.values() if entry else ():
            if not pod.is_over and pod.place in left:
                left.remove(pod.place)
        return left

    def pods_of(self, gang: str) -> tuple[str, ...]:
        """Return the pods of a gang that hold something, as `namespace/name`."""
        entry = self._gangs.get(gang)
        return tuple(sorted(key for key, pod in entry.pods.items() if not pod.is_over)) if entry else ()

    def uses_on(self, node: str) -> Iterator[Use]:
        """Yield what gangs hold of a node, as it was settled."""
        for gang in sorted(self._on_node.get(node, ())):
            yield from self._gangs[gang].uses[node]

    def holds(self, vendors: Mapping[str, str]) -> dict[str, dict[str, frozenset[int]]]:
        """Return the places of the devices that placed gangs hold, by gang and node: as the kubelet gave them."""
        self.settle()
        held: dict[str, dict[str, frozenset[int]]] = {}
        for gang, entry in self._gangs.items():
            if entry.where is None:
                continue
            by_node = held.setdefault(gang, {})
            for node, uses in entry.uses.items():
                if (fingerprint := self._fingerprints.get(node)) is not None:
                    devices = (devices_of(fingerprint, use, vendors=vendors) for use in uses)
                    by_node[node] = frozenset().union(*devices)
        return held

    def assume(self, gang: str, placement: Placement, *, until_s: float) -> None:
        """Hold a gang's places that the API server does not show yet."""
        entry = self._gangs.setdefault(gang, _Gang())
        # Requests are not written; its pods show them.
        entry.assumed = replace(as_written(placement), requests=placement.requests)
        entry.assumed_until_s = until_s
        self._changed.add(gang)

    def forget(self, gang: str) -> None:
        """Take back what was assumed: it did not come about."""
        if entry := self._gangs.get(gang):
            entry.assumed = None
            self._changed.add(gang)

    def expire(self, now_s: float) -> None:
        """Take back what was assumed and did not show up in time."""
        for gang in self.assumed:
            if self._gangs[gang].assumed_until_s <= now_s:
                self.forget(gang)

    def take_job(self, gang: str, job: Job | None, placement: Placement | None) -> None:
        """Take a gang's job, None where it is gone, and its placement with what its pods will request."""
        entry = self._gangs.setdefault(gang, _Gang())
        entry.placement, entry.is_reserved = placement, job is not None and job.runs
        if job is None or (placement == entry.assumed and (job.is_finished or not job.is_suspended)):
            entry.assumed = None
        self._changed.add(gang)

    def take_pod(self, key: str, seen: PodSeen | None) -> None:
        """Take a pod as it is now, None where it is gone."""
        old = self._gang_of_pod.get(key)
        if old is not None and (seen is None or seen.gang != old):
            self._gangs[old].pods.pop(key, None)
            del self._gang_of_pod[key]
            self._changed.add(old)
        if seen is None or (seen.placement is None and not seen.counts and old is None):
            return
        entry = self._gangs.setdefault(seen.gang, _Gang())
        entry.pods[key] = seen
        self._gang_of_pod[key] = seen.gang
        if seen.placement is not None and seen.placement == entry.assumed:
            entry.assumed = None
        self._changed.add(seen.gang)

    def held_changed(self, pods: Iterable[str]) -> None:
        """Look again at gangs of whose pods a node's kubelet says something else than before."""
        for gang in sorted({self._gang_of_pod[pod] for pod in pods if pod in self._gang_of_pod}):
            self._changed.add(gang)

    def settle(self) -> None:
        """Look again at what gangs hold of which anything was told, and touch the nodes where that is another."""
        for gang in sorted(self._changed):
            if (entry := self._gangs.get(gang)) is not None:
                self._settle(gang, entry)
        self._changed.clear()

    def _settle(self, gang: str, entry: _Gang) -> None:
        pods = [self._as_held(pod) for pod in entry.pods.values()]
        is_held = entry.is_reserved or entry.assumed is not None
        uses: dict[str, list[Use]] = {}
        for node, use in uses_of(entry.where, pods, is_reserved=is_held):
            uses.setdefault(node, []).append(use)
        before, entry.uses = entry.uses, {node: tuple(some) for node, some in uses.items()}
        for node in before.keys() | entry.uses.keys():
            if before.get(node) != entry.uses.get(node):
                self._touch(node)
            if node not in entry.uses:
                self._on_node[node].discard(gang)
            elif node not in before:
                self._on_node.setdefault(node, set()).add(gang)
        if gang not in self:
            del self._gangs[gang]

    def _as_held(self, pod: PodSeen) -> PodSeen:
        """Return a pod with what its node's kubelet told our agent, where its own status does not say it (yet)."""
        if pod.allocated or (fingerprint := self._fingerprints.get(pod.node)) is None:
            return pod
        held = fingerprint.held.get(pod.key)
        return replace(pod, allocated=held) if held else pod
