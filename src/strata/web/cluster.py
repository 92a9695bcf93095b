"""Clusters for the pages: their ComputeClaims, the jobs they are of and the jobs' pods, and their devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from strata.cluster.api import kinds
from strata.cluster.api.crd.claim_schema import ClaimStatus, DecidedClaim
from strata.cluster.api.crd.document import ObjectDocument
from strata.cluster.api.kinds import Object, annotations_of, labels_of, meta, name_of, namespace_of
from strata.cluster.api.placement_annotation import decode
from strata.cluster.api.profile_schema import bundled_profiles
from strata.cluster.cache.capacity import DeviceCapacity, parts
from strata.cluster.cache.gather import Objects, cache_of, from_server, silent
from strata.control.drivers.kube_objects import ATTEMPT
from strata.errors import StrataError, need
from strata.fleet.schema import DriverEntry, KubeEntry

Look = Callable[[], Objects]
"""Lists a cluster's objects. Raises StrataError where it cannot be reached, or a file has faults."""

_MOST_NODES: Final = 40
"""That are drawn as a row each; of a larger cluster a row is a domain's devices of a model."""


def server_look(kubeconfig: str | None, context: str | None) -> Look:
    """Return what asks an API server. Raises MissingPart and UsageError where it cannot be asked from here."""
    need("lightkube", extra="cluster")
    from strata.cluster.api.client import connect

    connect(kubeconfig=kubeconfig, context=context).close()  # asks nothing yet

    def look() -> Objects:
        with closing(connect(kubeconfig=kubeconfig, context=context)) as api:
            return from_server(api)

    return look


def looks_of(drivers: Mapping[str, DriverEntry], base: Path) -> dict[str, Look]:
    """Return what asks the clusters that a fleet's domains are run on, each once, by its domains.

    base: the fleet file's folder. Raises as `server_look`.
    """
    domains: dict[tuple[str | None, str | None], list[str]] = {}
    for name, entry in drivers.items():
        if isinstance(entry, KubeEntry):
            config = str((base / entry.kubeconfig).resolve()) if entry.kubeconfig else None
            domains.setdefault((config, entry.context), []).append(name)
    return {", ".join(names): server_look(*where) for where, names in domains.items()}


@dataclass(frozen=True, slots=True)
class Seen:
    """Clusters as they were listed, as plain data for the templates. faults: what could not be read."""

    objects: dict[str, Objects] = field(default_factory=dict)
    claims: list[dict[str, Any]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def movable(self) -> list[dict[str, Any]]:
        """Those that wait and would fit if others moved, the cheapest first."""
        return sorted((claim for claim in self.claims if claim["moves"]), key=lambda claim: claim["cost_device_s"])

    @property
    def slices(self) -> list[dict[str, Any]]:
        """Those that hold parts of devices."""
        return [
            {**place, "claim": claim, "cores_share": claim["cores_share"]}
            for claim in self.claims
            for place in claim["places"]
            if place["memory_bytes"] is not None
        ]

    @property
    def capacity(self) -> list[dict[str, Any]]:
        """Return their devices as `acu_map` draws them: those of a node, of a larger cluster those of a domain."""
        rows = []
        for cluster, objects in self.objects.items():
            cache = cache_of(objects, bundled_profiles())
            cache.close(silent(objects, datetime.now(UTC)))
            rows += [{**row, "cluster": cluster} for row in _capacity(parts(cache.index.nodes))]
        return rows


def _capacity(devices: Iterable[DeviceCapacity]) -> list[dict[str, Any]]:
    devices = tuple(devices)
    key = "node" if len({device.node for device in devices}) <= _MOST_NODES else "domain"
    groups: dict[tuple[str, str], list[DeviceCapacity]] = {}
    for device in devices:
        groups.setdefault((getattr(device, key), device.model), []).append(device)
    return [
        {
            "name": name,
            "accelerator": model,
            "num_devices": len(some),
            "devices_per_node": -(-len(some) // len({device.node for device in some})),
            "num_free": sum(device.is_free for device in some),
            "acu": sum(amounts.get("fp16", 0.0) for amounts in (some[0].used, some[0].free, some[0].out)) or None,
        }
        for (name, model), some in sorted(groups.items())
    ]


def seen(looks: Mapping[str, Look]) -> Seen | None:
    """Ask clusters what they have; None where none was named. That one does not answer is an answer."""
    if not looks:
        return None
    every = Seen()
    for name, look in looks.items():
        try:
            every.objects[name] = look()
        except StrataError as error:
            every.faults.append(f"{name}: " * bool(name) + "; ".join(error.lines()))
            continue
        claimed = _claimed(every.objects[name])
        every.claims.extend({**claim, "cluster": name} for claim in claimed.claims)
        every.faults.extend(f"{name}: " * bool(name) + fault for fault in claimed.faults)
    return every


def _claimed(objects: Objects) -> Seen:
    pods: dict[tuple[str, str], list[Object]] = {}
    for pod in objects[kinds.POD]:
        job = labels_of(pod).get("batch.kubernetes.io/job-name") or labels_of(pod).get("job-name") or name_of(pod)
        pods.setdefault((namespace_of(pod), job), []).append(pod)
    attempts = {_key(job): annotations_of(job).get(ATTEMPT, "") for job in objects[kinds.JOB]}
    cluster = Seen()
    for obj in objects[kinds.COMPUTE_CLAIM]:
        if not obj.get("status"):
            continue
        try:
            claim = _claim(obj, ObjectDocument(obj).check(DecidedClaim).status)
        except StrataError as error:
            cluster.faults.append("; ".join(error.lines()))
            continue
        key = claim["namespace"], claim["name"]
        cluster.claims.append(
            {**claim, "attempt": attempts.get(key, ""), "pods": [_pod(pod) for pod in pods.get(key, ())]}
        )
    return cluster


def _key(obj: Object) -> tuple[str, str]:
    return namespace_of(obj), name_of(obj)


def _claim(obj: Object, status: ClaimStatus) -> dict[str, Any]:
    """Return whose a claim is, what was decided when and why, its places, and who could move for it."""
    own = {"kind": "ComputeClaim", "name": name_of(obj)}
    owner = next(iter(meta(obj).get("ownerReferences") or ()), own)
    placement = decode(status.placement, where=f"claim {name_of(obj)}") if status.placement else None
    decision, moments = status.decision, [each.last_transition_time for each in status.conditions]
    moves = decision.moves if decision else []
    return {
        "namespace": namespace_of(obj),
        "name": str(owner["name"]),
        "object": f"{owner['kind']}/{namespace_of(obj)}/{owner['name']}",
        "at_s": max((datetime.fromisoformat(moment).timestamp() for moment in moments), default=0.0),
        "is_routed": placement is not None,
        "model": status.model,
        "devices": status.devices,
        "profile": status.profile,
        "trust": decision and decision.trust,
        "reasons": [
            {"token": each.token, "text": each.message} for each in (decision.reasons if decision else ())
        ],
        "moves": [move.model_dump() for move in moves],
        "cost_device_s": sum(move.cost_device_seconds for move in moves),
        "others": [{"name": each.node, "token": each.reason, "text": each.message} for each in status.nodes],
        "cores_share": placement and placement.cores_share,
        "places": [
            {"node": pod.node, "devices": list(pod.devices), "memory_bytes": pod.memory_bytes}
            for pod in (placement.pods if placement else ())
        ],
    }


def _pod(pod: Object) -> dict[str, Any]:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    return {"name": name_of(pod), "node": spec.get("nodeName") or "", "phase": status.get("phase") or "Pending"}
