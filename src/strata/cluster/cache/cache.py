"""The cluster as the API server tells it, object by object, and as the router wants it: an index, always current.

Objects go in as they are listed or change, in any order; `index` then costs what changed. Not thread-safe: who
shares a cache holds the informer's lock, for as long as it takes to make a `snapshot`; that never changes, so
decisions on it need no lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from strata.cluster.api import kinds
from strata.cluster.api.crd.compute_node import fingerprint_of
from strata.cluster.api.crd.runtime_profile import profile_of
from strata.cluster.api.jobs import Job, read_job
from strata.cluster.api.kinds import Object, ObjectKind, annotations_of, conditions_of, is_true, meta
from strata.cluster.api.placement_annotation import GANG, GATE, PLACEMENT, as_written, gang_of
from strata.cluster.api.pod_requests import amounts_of
from strata.cluster.cache.allocation import PodSeen, Use, devices_of, free_of, pod_seen, uses_of
from strata.cluster.cache.snapshot import ClusterSnapshot
from strata.cluster.dra.allocated import ClaimedDevices
from strata.cluster.scheduling.host import PodRequests, sum_of
from strata.cluster.scheduling.index import Index, has_room
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.cluster.scheduling.snapshot import Cluster, NodeState, Placement, PodPlace
from strata.errors import BadFile
from strata.fleet.fingerprint import Fingerprint

RDMA_LABELS: Final = ("ai.compute/rdma-group", "network.topology.nvidia.com/leaf")
RACK_LABELS: Final = ("ai.compute/rack", "network.topology.nvidia.com/spine")
"""Node labels that say who reaches whom fast: ours, then those of NVIDIA's topology discovery."""

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


@dataclass
class _Gang:
    """placement: as its job says, None where no job does. is_reserved: places without pods are held as well."""

    placement: Placement | None = None
    is_reserved: bool = False
    assumed: Placement | None = None
    assumed_until_s: float = 0.0
    pods: dict[str, PodSeen] = field(default_factory=dict)
    uses: tuple[tuple[str, Use], ...] = ()


class ClusterCache:
    """profiles: those used until the API server has some of its own.

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
        self._bundled = tuple(profiles)
        self._gangs: dict[str, _Gang] = {}
        self._gang_of_pod: dict[str, str] = {}
        self._on_node: dict[str, set[str]] = {}
        self._bound: dict[str, dict[str, PodRequests]] = {}
        self._node_of_pod: dict[str, str] = {}
        self._claimed, self._has_claims_news = ClaimedDevices(), False
        self._index: Index | None = None
        self._dirty: set[str] = set()
        self._closed: set[str] = set()

    @property
    def profiles(self) -> tuple[RuntimeProfile, ...]:
        """The profiles in use: the API server's where it has any, by name."""
        own = tuple(self._own_profiles[name] for name in sorted(self._own_profiles))
        return own or self._bundled

    @property
    def placements(self) -> Mapping[str, Placement]:
        """What is placed, by gang: of its job, else of its pods."""
        placements = {key: _placement(gang) for key, gang in self._gangs.items()}
        return {key: placement for key, placement in placements.items() if placement is not None}

    def placement_of(self, gang: str) -> Placement | None:
        """Return what a gang holds, as `placements` has it."""
        entry = self._gangs.get(gang)
        return None if entry is None else _placement(entry)

    def free_places(self, gang: str) -> list[PodPlace]:
        """Return the places of a gang that no pod of it has."""
        entry = self._gangs.get(gang)
        left = list(placement.pods) if entry and (placement := _placement(entry)) else []
        for pod in entry.pods.values() if entry else ():
            if not pod.is_over and pod.place in left:
                left.remove(pod.place)
        return left

    def pods_of(self, gang: str) -> tuple[str, ...]:
        """Return the pods of a gang that hold something, as `namespace/name`."""
        entry = self._gangs.get(gang)
        return tuple(sorted(key for key, pod in entry.pods.items() if not pod.is_over)) if entry else ()

    @property
    def index(self) -> Index:
        """The index of all that was told."""
        if self._has_claims_news:
            self._has_claims_news = False
            for node in self._claimed.look():
                self._touch(node)
        if self._index is None:
            self._index = Index.of(Cluster(tuple(self._state(name) for name in sorted(self._names()))))
            self.grown += 1
        elif self._dirty:
            old, new = self._index, [self._state(name) for name in sorted(self._dirty)]
            try:
                self._index = old.with_nodes(new)
                self.grown += any(_may_fit_more(old.nodes[old.node_number[node.name]], node) for node in new)
            except ValueError:  # built otherwise: all shapes are looked at again
                self._index = None
                return self.index
        self._dirty.clear()
        return self._index

    def snapshot(self, now_s: float) -> ClusterSnapshot:
        """Return all that a scheduling cycle looks at, without what was assumed for too long."""
        self.expire(now_s)
        index = self.index  # first: it may change `grown`
        gated = {gang_of(pod) for pod in self.gated.values()} & self._gangs.keys()
        unbound = {gang_of(pod) for pod in self.unbound.values()}
        placements = ((gang, self.placement_of(gang)) for gang in self.jobs.keys() | gated)
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
            {gang: tuple(self.free_places(gang)) for gang in gated},
            {gang: self.pods_of(gang) for gang in unbound},
            frozenset(gang for gang, held in self._gangs.items() if held.assumed is not None),
        )

    def holds(self) -> dict[str, dict[str, frozenset[int]]]:
        """Return the places of the devices that placed gangs hold, by gang and node: as the kubelet gave them."""
        vendors = self._vendors()
        held: dict[str, dict[str, frozenset[int]]] = {}
        for gang, entry in self._gangs.items():
            if _placement(entry) is None:
                continue
            by_node = held.setdefault(gang, {})
            for node, use in entry.uses:
                if (fingerprint := self.fingerprints.get(node)) is not None:
                    devices = devices_of(fingerprint, use, vendors=vendors)
                    by_node[node] = by_node.get(node, frozenset()) | frozenset(devices)
        return held

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

    def assume(self, gang: str, placement: Placement, *, until_s: float) -> None:
        """Hold a gang's places that the API server does not show yet."""
        entry = self._gangs.setdefault(gang, _Gang())
        # Requests are not written; its pods show them.
        entry.assumed = replace(as_written(placement), requests=placement.requests)
        entry.assumed_until_s = until_s
        self._recount(gang)

    def forget(self, gang: str) -> None:
        """Take back what was assumed: it did not come about."""
        if entry := self._gangs.get(gang):
            entry.assumed = None
            self._recount(gang)

    def expire(self, now_s: float) -> None:
        """Take back what was assumed and did not show up in time."""
        late = [
            key
            for key, entry in self._gangs.items()
            if entry.assumed is not None and entry.assumed_until_s <= now_s
        ]
        for gang in late:
            self.forget(gang)

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
        changed = {pod for pod in {*was, *now} if was.get(pod) != now.get(pod)} & self._gang_of_pod.keys()
        for gang in sorted({self._gang_of_pod[pod] for pod in changed}):
            self._recount(gang)

    @contextmanager
    def _rebuilt_if_new(self, node: str) -> Iterator[None]:
        """Build the index again where a node comes or goes: it needs both its objects."""
        was_there = node in self.nodes and node in self.fingerprints
        yield
        if (node in self.nodes and node in self.fingerprints) != was_there:
            self._index = None
        self._touch(node)

    def _take_profile(self, name: str, obj: Object | None) -> None:
        before = self._own_profiles.get(name)
        profile = self._read(kinds.RUNTIME_PROFILE, name, obj, profile_of)
        _put(self._own_profiles, name, profile)
        self.grown += before != profile
        if (before is None or profile is None or before.resource != profile.resource) and before != profile:
            self._index = None  # whose devices a resource counts may have changed, on any node

    def _take_job(self, gang: str, obj: Object | None) -> None:
        job = None if obj is None else read_job(obj)
        _put(self.jobs, gang, job)
        _put(self.faults, gang, (job and job.fault) or None)
        entry = self._gangs.setdefault(gang, _Gang())
        entry.placement, entry.is_reserved = (None, False) if job is None else (self._of_job(job), job.runs)
        if job is None or (entry.placement == entry.assumed and not (job.is_suspended and not job.is_finished)):
            entry.assumed = None
        self._recount(gang)

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
        old = self._gang_of_pod.get(key)
        if old is not None and (seen is None or seen.gang != old):
            self._gangs[old].pods.pop(key, None)
            del self._gang_of_pod[key]
            self._recount(old)
        if seen is None or (seen.placement is None and not seen.counts and old is None):
            return
        entry = self._gangs.setdefault(seen.gang, _Gang())
        entry.pods[key] = seen
        self._gang_of_pod[key] = seen.gang
        if seen.placement is not None and seen.placement == entry.assumed:
            entry.assumed = None
        self._recount(seen.gang)

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

    def _recount(self, gang: str) -> None:
        """Look again at what a gang holds, and where that changes something."""
        entry = self._gangs[gang]
        placement, pods = _placement(entry), [self._as_held(pod) for pod in entry.pods.values()]
        is_held = entry.is_reserved or entry.assumed is not None
        uses = tuple(uses_of(placement, pods, is_reserved=is_held))
        if uses != entry.uses:
            for node in {node for node, _ in entry.uses}:
                self._on_node[node].discard(gang)
                self._touch(node)
            for node in {node for node, _ in uses}:
                self._on_node.setdefault(node, set()).add(gang)
                self._touch(node)
            entry.uses = uses
        if not entry.pods and entry.placement is None and entry.assumed is None:
            del self._gangs[gang]

    def _as_held(self, pod: PodSeen) -> PodSeen:
        """Return a pod with what its node's kubelet told our agent, where its own status does not say it (yet)."""
        if pod.allocated or (fingerprint := self.fingerprints.get(pod.node)) is None:
            return pod
        held = fingerprint.held.get(pod.key)
        return replace(pod, allocated=held) if held else pod

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
            kinds.POD: self._gang_of_pod | self._node_of_pod | self.gated,
        }
        return set(of_kind[kind])

    def _vendors(self) -> dict[str, str]:
        return {profile.resource: profile.vendor for profile in self.profiles}

    def _state(self, name: str) -> NodeState:
        """Return a node as the router sees it."""
        node, fingerprint = self.nodes[name], self.fingerprints[name]
        spec, labels = node.get("spec") or {}, meta(node).get("labels") or {}
        uses = [
            use for gang in sorted(self._on_node.get(name, ())) for at, use in self._gangs[gang].uses if at == name
        ]
        uses += self._claimed.uses(fingerprint)
        vendors = self._vendors()
        allocatable = (node.get("status") or {}).get("allocatable") or {}
        on_it = [*self._bound.get(name, {}).values(), *(use.requests for use in uses)]
        free_bytes, free_share = free_of(fingerprint, uses, vendors=vendors, allocatable=allocatable)
        agent_status = (self.compute_nodes.get(name) or {}).get("status") or {}
        return NodeState(
            fingerprint,
            free_bytes,
            free_share,
            labels=dict(labels),
            taints=tuple(_taint(taint) for taint in spec.get("taints") or ()),
            is_schedulable=name not in self._closed and not spec.get("unschedulable") and is_true(node, "Ready"),
            rdma_group=_first(labels, RDMA_LABELS) or str(agent_status.get("rdmaGroup") or ""),
            rack=_first(labels, RACK_LABELS) or str(agent_status.get("rack") or ""),
            allocatable=amounts_of(allocatable),
            requested=sum_of(on_it),
        )


def _placement(gang: _Gang) -> Placement | None:
    if gang.assumed is not None or gang.placement is not None:
        return gang.assumed or gang.placement
    return next((pod.placement for pod in gang.pods.values() if pod.placement is not None), None)


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


def _may_fit_more(before: NodeState, after: NodeState) -> bool:
    """Return whether a pod that did not fit on a node might now."""

    def eligibility(node: NodeState) -> tuple[object, ...]:
        well = tuple(device.health for device in node.fingerprint.devices)
        return node.labels, node.taints, node.is_schedulable, well

    if before.allocatable != after.allocatable or before.requested.ports - after.requested.ports:
        return True
    now_requested = after.requested.amounts
    if any(now_requested.get(name, 0) < amount for name, amount in before.requested.amounts.items()):
        return True
    free = zip(before.free_bytes + before.free_share, after.free_bytes + after.free_share, strict=True)
    return any(is_now > was for was, is_now in free) or eligibility(before) != eligibility(after)


def _taint(taint: Mapping[str, Any]) -> str:
    return f"{taint.get('key', '')}={taint.get('value') or ''}:{taint.get('effect', '')}"


def _first(labels: Mapping[str, str], keys: Sequence[str]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")
