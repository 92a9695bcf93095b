"""The cluster as the API server tells it, object by object, and as the router wants it: an index, always current.

Objects go in as they are listed or change, in any order; `index` then costs what changed. Not thread-safe: who
shares a cache holds the informer's lock, for as long as it takes to make a `snapshot`; that never changes, so
decisions on it need no lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from strata.cluster.api import kinds
from strata.cluster.api.crd.compute_node import fingerprint_of
from strata.cluster.api.crd.runtime_profile import profile_of
from strata.cluster.api.jobs import Job, read_job
from strata.cluster.api.kinds import Object, ObjectKind, annotations_of, conditions_of, meta
from strata.cluster.api.placement_annotation import GANG, GATE, PLACEMENT, gang_of
from strata.cluster.cache.allocation import PodSeen, pod_seen
from strata.cluster.cache.gangs import Gangs
from strata.cluster.cache.node_state import may_fit_more, node_state
from strata.cluster.cache.snapshot import ClusterSnapshot
from strata.cluster.dra.allocated import ClaimedDevices
from strata.cluster.scheduling.host import PodRequests
from strata.cluster.scheduling.index import Index, has_room
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.cluster.scheduling.snapshot import Cluster, NodeState, Placement
from strata.errors import BadFile
from strata.fleet.fingerprint import Fingerprint

WATCHED: Final = (
    kinds.NODE,
    kinds.COMPUTE_NODE,
    kinds.RUNTIME_PROFILE,
    kinds.COMPUTE_CLAIM,
    kinds.POD,
    kinds.RESOURCE_SLICE,
    kinds.RESOURCE_CLAIM,
    *kinds.SUSPENDABLE,
)
"""What the cache is told of."""


class ClusterCache:
    """profiles: those in use: the given ones until the API server has some of its own, then these, by name. May be
    read without the lock.

    jobs: by gang. gated, claims: pods behind our gate and ComputeClaims, by `namespace/name`. Others by name.
    workloads, checks, flavors, multikueue_configs, multikueue_clusters: Kueue's, and webhooks: configurations of
    any, where they are followed.
    unbound: pods that kube-scheduler cannot bind where they were placed, likewise.
    faults: by `Kind/name`, why an object of ours cannot be read; it counts as absent.
    grown: another number whenever what did not fit might now, by the index that was taken last.
    """

    def __init__(self, profiles: Sequence[RuntimeProfile] = ()) -> None:
        self.faults: dict[str, str] = {}
        self.grown = 0
        self.jobs: dict[str, Job] = {}
        self.gated: dict[str, Object] = {}
        self.unbound: dict[str, Object] = {}
        self.claims: dict[str, Object] = {}
        self.workloads: dict[str, Object] = {}
        self.checks: dict[str, Object] = {}
        self.flavors: dict[str, Object] = {}
        self.webhooks: dict[str, Object] = {}
        self.multikueue_configs: dict[str, Object] = {}
        self.multikueue_clusters: dict[str, Object] = {}
        self._plain: Mapping[ObjectKind, dict[str, Object]] = {
            kinds.COMPUTE_CLAIM: self.claims,
            kinds.WORKLOAD: self.workloads,
            kinds.ADMISSION_CHECK: self.checks,
            kinds.RESOURCE_FLAVOR: self.flavors,
            kinds.MUTATING_WEBHOOK: self.webhooks,
            kinds.MULTIKUEUE_CONFIG: self.multikueue_configs,
            kinds.MULTIKUEUE_CLUSTER: self.multikueue_clusters,
        }
        self.nodes: dict[str, Object] = {}
        self.compute_nodes: dict[str, Object] = {}
        self.fingerprints: dict[str, Fingerprint] = {}
        self._own_profiles: dict[str, RuntimeProfile] = {}
        self._bundled = self.profiles = tuple(profiles)
        self.gangs = Gangs(self.fingerprints, self._touch)
        self._bound: dict[str, dict[str, PodRequests]] = {}
        self._node_of_pod: dict[str, str] = {}
        self._claimed, self._has_claims_news = ClaimedDevices(), False
        self._index: Index | None = None
        self._are_others = False
        self._dirty: set[str] = set()
        self._closed: set[str] = set()

    @property
    def index(self) -> Index:
        """The index of all that was told."""
        self.gangs.settle()
        if self._has_claims_news:
            self._has_claims_news = False
            for node in self._claimed.look():
                self._touch(node)
        if self._index is None or self._are_others:
            # While thousands of nodes come, one after the other, each is looked at once.
            same = {} if self._index is None else {node.name: node for node in self._index.nodes}
            nodes = (
                same[name] if name in same and name not in self._dirty else self._state(name)
                for name in sorted(self._names())
            )
            self._index, self._are_others = Index.of(Cluster(tuple(nodes))), False
            self.grown += 1
        elif self._dirty:
            old, new = self._index, [self._state(name) for name in sorted(self._dirty)]
            try:
                self._index = old.with_nodes(new)
                self.grown += any(may_fit_more(old.nodes[old.node_number[node.name]], node) for node in new)
            except ValueError:  # built otherwise: all shapes are looked at again
                self._are_others = True
                return self.index
        self._dirty.clear()
        return self._index

    def snapshot(self, now_s: float) -> ClusterSnapshot:
        """Return all that a scheduling cycle looks at, without what was assumed for too long."""
        gangs = self.gangs
        gangs.expire(now_s)
        index = self.index  # first: it may change `grown`
        gated = {gang for pod in self.gated.values() if (gang := gang_of(pod)) in gangs}
        unbound = {gang_of(pod) for pod in self.unbound.values()}
        placements = ((gang, gangs.placement_of(gang)) for gang in self.jobs.keys() | gated)
        return ClusterSnapshot(
            index,
            self.grown,
            self.profiles,
            dict(self.jobs),
            dict(self.gated),
            dict(self.unbound),
            dict(self.claims),
            dict(self.nodes),
            dict(self.compute_nodes),
            {gang: placement for gang, placement in placements if placement is not None},
            {gang: tuple(gangs.free_places(gang)) for gang in gated},
            {gang: gangs.pods_of(gang) for gang in unbound},
            gangs.assumed,
        )

    def holds(self) -> dict[str, dict[str, frozenset[int]]]:
        """Return the places of the devices that placed gangs hold, by gang and node: as the kubelet gave them."""
        return self.gangs.holds(self._vendors())

    def has_room(self, placement: Placement) -> bool:
        """Return whether all places of a placement are free now."""
        return has_room(self.index, placement)

    def listed(self, kind: ObjectKind, objects: Iterable[Object]) -> None:
        """Take all objects of a kind; those not among them are gone."""
        present = {_key(obj): obj for obj in objects}
        for key in self._known(kind) - present.keys():
            self._take(kind, key, None)
        for key, obj in present.items():
            self._take(kind, key, obj)

    def changed(self, kind: ObjectKind, obj: Object, *, is_gone: bool = False) -> None:
        """Take one object that is new, has changed or is gone."""
        self._take(kind, _key(obj), None if is_gone else obj)

    def close(self, nodes: set[str]) -> None:
        """Take these nodes for closed to new pods, and no others."""
        for node in nodes ^ self._closed:
            self._touch(node)
        self._closed = set(nodes)

    def _take(self, kind: ObjectKind, key: str, obj: Object | None) -> None:
        if kind == kinds.POD:
            self._take_pod(key, obj)
        elif kind == kinds.NODE:
            with self._rebuilt_if_new(key):
                _put(self.nodes, key, obj)
        elif kind == kinds.COMPUTE_NODE:
            self._take_compute_node(key, obj)
        elif kind == kinds.RUNTIME_PROFILE:
            self._take_profile(key, obj)
        elif kind in self._claimed.objects:
            _put(self._claimed.objects[kind], key, obj)
            self._has_claims_news = True
        elif kind in self._plain:
            _put(self._plain[kind], key, obj)
        elif kind in kinds.SUSPENDABLE:
            self._take_job(f"{kind.kind}/{key}", obj)

    def _take_compute_node(self, name: str, obj: Object | None) -> None:
        fingerprint: Fingerprint | None = self._read(kinds.COMPUTE_NODE, name, obj, fingerprint_of)
        before = self.fingerprints.get(name)
        with self._rebuilt_if_new(name):
            _put(self.compute_nodes, name, obj)
            _put(self.fingerprints, name, fingerprint)
        was, now = (seen.held if seen is not None else {} for seen in (before, fingerprint))
        self.gangs.held_changed(pod for pod in {*was, *now} if was.get(pod) != now.get(pod))

    @contextmanager
    def _rebuilt_if_new(self, node: str) -> Iterator[None]:
        """Build the index again where a node comes or goes: it needs both its objects."""
        was_there = node in self.nodes and node in self.fingerprints
        yield
        if (node in self.nodes and node in self.fingerprints) != was_there:
            self._are_others = True
        self._touch(node)

    def _take_profile(self, name: str, obj: Object | None) -> None:
        before = self._own_profiles.get(name)
        profile = self._read(kinds.RUNTIME_PROFILE, name, obj, profile_of)
        _put(self._own_profiles, name, profile)
        self.profiles = tuple(own for _, own in sorted(self._own_profiles.items())) or self._bundled
        self.grown += before != profile
        if (before is None or profile is None or before.resource != profile.resource) and before != profile:
            self._index = None  # whose devices a resource counts may have changed, on any node

    def _take_job(self, gang: str, obj: Object | None) -> None:
        job = None if obj is None else read_job(obj)
        _put(self.jobs, gang, job)
        _put(self.faults, gang, (job and job.fault) or None)
        self.gangs.take_job(gang, job, None if job is None else self._of_job(job))

    def _of_job(self, job: Job) -> Placement | None:
        """Return a job's placement with what its pods will request: the devices as its profile counts them."""
        if job.placement is None:
            return None
        amounts = dict(job.requests.amounts)
        if job.placement.pods and job.placement.pods[0].memory_bytes is None:
            resources = (each.resource for each in self.profiles if each.name == job.placement.profile)
            amounts |= dict.fromkeys(resources, job.placement.devices_per_pod)
        return replace(job.placement, requests=PodRequests(amounts, job.requests.ports))

    def _take_pod(self, key: str, obj: Object | None) -> None:
        _put(self.gated, key, obj if obj is not None and _is_gated(obj) else None)
        _put(self.unbound, key, obj if obj is not None and _is_unbound(obj) else None)
        seen = None if obj is None else pod_seen(obj)
        self._take_bound(key, seen)
        self.gangs.take_pod(key, seen)

    def _take_bound(self, key: str, seen: PodSeen | None) -> None:
        """Note what a pod requests of the node it is bound to, whoever's it is."""
        node = "" if seen is None or seen.is_over else seen.node
        before = self._node_of_pod.get(key, "")
        if before and before != node:
            self._bound[before].pop(key)
            self._touch(before)
        _put(self._node_of_pod, key, node or None)
        if seen is not None and node and self._bound.setdefault(node, {}).get(key) != seen.requests:
            self._bound[node][key] = seen.requests
            self._touch(node)

    def _read(self, kind: ObjectKind, key: str, obj: Object | None, read: Any) -> Any:
        """Return what an object says; None, and a note, where it cannot be read."""
        where = f"{kind.kind}/{key}"
        self.faults.pop(where, None)
        if obj is None:
            return None
        try:
            return read(obj)
        except BadFile as error:
            self.faults[where] = str(error)
            return None

    def _touch(self, node: str) -> None:
        if node in self.fingerprints and node in self.nodes:
            self._dirty.add(node)

    def _names(self) -> set[str]:
        return self.nodes.keys() & self.fingerprints.keys()

    def _known(self, kind: ObjectKind) -> set[str]:
        if kind in kinds.SUSPENDABLE:
            prefix = f"{kind.kind}/"
            return {key.removeprefix(prefix) for key in self.jobs if key.startswith(prefix)}
        of_kind: Mapping[ObjectKind, Mapping[str, Any]] = {
            **self._plain,
            **self._claimed.objects,
            kinds.NODE: self.nodes,
            kinds.COMPUTE_NODE: self.compute_nodes,
            kinds.RUNTIME_PROFILE: self._own_profiles,
            kinds.POD: dict.fromkeys(self.gangs.pods) | self._node_of_pod | self.gated,
        }
        return set(of_kind[kind])

    def _vendors(self) -> dict[str, str]:
        return {profile.resource: profile.vendor for profile in self.profiles}

    def _state(self, name: str) -> NodeState:
        """Return a node as the router sees it."""
        fingerprint = self.fingerprints[name]
        return node_state(
            self.nodes[name],
            fingerprint,
            agent_status=(self.compute_nodes.get(name) or {}).get("status") or {},
            uses=[*self.gangs.uses_on(name), *self._claimed.uses(fingerprint)],
            bound=self._bound.get(name, {}).values(),
            vendors=self._vendors(),
            is_closed=name in self._closed,
        )


def _key(obj: Object) -> str:
    about = meta(obj)
    return "/".join(filter(None, (about.get("namespace"), about.get("name"))))


def _put(into: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        into.pop(key, None)
    else:
        into[key] = value


def _is_gated(pod: Object) -> bool:
    gates = (pod.get("spec") or {}).get("schedulingGates") or ()
    return any(gate.get("name") == GATE for gate in gates) and not meta(pod).get("deletionTimestamp")


def _is_unbound(pod: Object) -> bool:
    if not {PLACEMENT, GANG} <= annotations_of(pod).keys() or meta(pod).get("deletionTimestamp"):
        return False
    return any(
        (condition.get("type"), condition.get("reason")) == ("PodScheduled", "Unschedulable")
        for condition in conditions_of(pod)
    )
