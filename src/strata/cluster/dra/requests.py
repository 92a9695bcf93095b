"""What a pod asks, as a DeviceRequest: the card it was written for, then others in order of exchange.

kube-scheduler takes the first alternative that it can satisfy, so the order is the preference; each has a count of
its own, as the exchange comes out for that card.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from strata.cluster.api.kinds import Object
from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.conversion import PodDemand, Refusal, demands
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.cluster.scheduling.snapshot import Cluster, NodeState
from strata.decision import Reason
from strata.errors import BadFile, Fault
from strata.fleet.discovery.resource_slices import SliceDevice, slice_fingerprints

CLASS: Final = "ai.compute"
"""The DeviceClass of all requests: any device, of any driver; a request's expression says which."""
MOST: Final = 8
"""Alternatives of a request."""


def device_request(
    claim: Claim, devices: Sequence[SliceDevice], profiles: Sequence[RuntimeProfile]
) -> tuple[dict[str, Any], list[Reason]]:
    """Return a pod's request of the cards that slices have, and why it is not for others of these.

    Cards of which no node has as many as a pod would take are not asked for. Raises BadFile for fractions, and
    where no card may stand for what is asked.
    """
    where = f"claim {claim.namespace}/{claim.name}"
    if claim.is_fractional:
        raise BadFile([Fault(where, "asks for part of a device, and a DeviceRequest is for whole ones")])
    states = [
        NodeState(node, tuple(each.memory_bytes for each in node.devices), (1.0,) * len(node.devices))
        for node in slice_fingerprints(devices)
    ]
    answers = list(demands(Index.of(Cluster(tuple(states))), claim, profiles))
    refusals = [each.reason for each in answers if isinstance(each, Refusal)]
    possible = [each for each in answers if isinstance(each, PodDemand)]
    possible = [each for each in possible if not each.is_substitute or claim.substitution == "allow"]
    for each in tuple(possible):
        total, node = _most_on_a_node(each.model, states)
        if each.devices > total:
            possible.remove(each)
            data = {"resource": each.model, "need": each.devices, "total": total}
            refusals.append(Reason("request-exceeds-node", node, data))
    if not possible:
        words = "; ".join(map(str, refusals)) or "no ResourceSlice has devices"
        raise BadFile([Fault(where, f"no card may stand for it: {words}")])
    # Who leaves least unused goes before others, and of those alike who takes fewer devices.
    possible.sort(key=lambda each: (each.is_substitute, -each.fit, each.devices, each.model))
    requests = [_exactly(each, devices) for each in possible[:MOST]]
    if len(requests) == 1:
        return {"name": "devices", "exactly": requests[0]}, refusals
    names = [re.sub(r"[^a-z0-9]+", "-", f"{i}-{each.model}".lower()) for i, each in enumerate(possible)]
    named = [{"name": name[:63].rstrip("-"), **each} for name, each in zip(names, requests, strict=False)]
    return {"name": "devices", "firstAvailable": named}, refusals


def _most_on_a_node(model: str, nodes: Sequence[NodeState]) -> tuple[int, str]:
    """Return of how many devices of a model a pod could have at most, and on which node."""
    counts = ((sum(each.model == model for each in node.fingerprint.devices), node.name) for node in nodes)
    return max(counts, key=lambda count: count[0], default=(0, ""))


def _exactly(demand: PodDemand, devices: Sequence[SliceDevice]) -> dict[str, Any]:
    selectors = sorted({each.selector for each in devices if each.device.model == demand.model})
    expression = " || ".join(f"({each})" for each in selectors)
    return {"deviceClassName": CLASS, "count": demand.devices, "selectors": [{"cel": {"expression": expression}}]}


def claim_template(name: str, namespace: str, request: Object) -> list[Object]:
    """Return the template of pods' ResourceClaims, and the DeviceClass that it names."""
    metadata = {"name": f"{name}-devices"[:253], **({"namespace": namespace} if namespace else {})}
    spec = {"spec": {"devices": {"requests": [request]}}}
    version = "resource.k8s.io/v1"
    return [
        {"apiVersion": version, "kind": "DeviceClass", "metadata": {"name": CLASS}, "spec": {}},
        {"apiVersion": version, "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": spec},
    ]
