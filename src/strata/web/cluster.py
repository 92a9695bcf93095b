"""A cluster's decisions for the pages: its ComputeClaims, the jobs they are of, and the jobs' pods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from strata.cluster.api import kinds
from strata.cluster.api.crd.claim_schema import ClaimStatus, DecidedClaim
from strata.cluster.api.crd.document import ObjectDocument
from strata.cluster.api.kinds import Object, annotations_of, labels_of, meta, name_of, namespace_of
from strata.cluster.api.placement_annotation import decode
from strata.cluster.cache.gather import Objects
from strata.control.drivers.kube_objects import ATTEMPT
from strata.errors import StrataError

Look = Callable[[], Objects]
"""Lists a cluster's objects. Raises StrataError where it cannot be reached, or a file has faults."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A cluster's claims as they were listed, as plain data for the templates. faults: what could not be read."""

    claims: list[dict[str, Any]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def movable(self) -> list[dict[str, Any]]:
        """Those that wait and would fit if others moved, the cheapest first."""
        return sorted((claim for claim in self.claims if claim["moves"]), key=lambda claim: claim["cost_device_s"])


def seen(look: Look | None) -> Seen | None:
    """Ask a cluster for its claims; None where none was named. That it does not answer is an answer."""
    if look is None:
        return None
    try:
        objects = look()
    except StrataError as error:
        return Seen(faults=["; ".join(error.lines())])
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
