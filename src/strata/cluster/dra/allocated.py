"""Which devices ResourceClaims hold: kube-scheduler's word, beside what device plugins gave out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from strata.cluster.api.kinds import RESOURCE_CLAIM, RESOURCE_SLICE, Object, ObjectKind, annotations_of
from strata.cluster.cache.allocation import Use
from strata.fleet.discovery.resource_slices import slice_devices
from strata.fleet.fingerprint import Device, Fingerprint

EXTENDED: Final = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of claims that kube-scheduler makes for a pod's extended resource: the pod counts that itself."""


@dataclass
class ClaimedDevices:
    """What claims hold, by node; told of slices and claims as they change."""

    objects: dict[ObjectKind, dict[str, Object]] = field(
        default_factory=lambda: {RESOURCE_SLICE: {}, RESOURCE_CLAIM: {}}
    )
    _by_node: dict[str, list[Device]] = field(default_factory=dict)

    def look(self) -> set[str]:
        """Read all anew after something changed; return the nodes whose devices are other ones than before."""
        devices = {
            (each.driver, each.pool, each.name): each
            for each in slice_devices(self.objects[RESOURCE_SLICE].values())
        }
        before, self._by_node = self._by_node, {}
        for _, claim in sorted(self.objects[RESOURCE_CLAIM].items()):
            allocation = (claim.get("status") or {}).get("allocation") or {}
            for result in (allocation.get("devices") or {}).get("results") or ():
                held = devices.get((result.get("driver"), result.get("pool"), result.get("device")))
                # Who has admin access looks at devices that others hold.
                if held is not None and not result.get("adminAccess") and EXTENDED not in annotations_of(claim):
                    self._by_node.setdefault(held.node, []).append(held.device)
        nodes = before.keys() | self._by_node.keys()
        return {node for node in nodes if before.get(node) != self._by_node.get(node)}

    def uses(self, fingerprint: Fingerprint) -> Iterator[Use]:
        """Yield what claims hold of a node's devices, by the uuid or the address that its agent found, too."""
        for device in self._by_node.get(fingerprint.node, ()):
            for place, other in enumerate(fingerprint.devices):
                is_same = device.uuid.lower() == other.uuid.lower()
                if is_same or (device.bus_id and device.bus_id == other.bus_id.lower()):
                    yield Use((place,))
                    break
