"""A node's devices as our own ResourceSlice: what our agent knows of them, for kube-scheduler to give out.

References
----------
k8s.io/api resource/v1: an attribute's name is a C identifier, of its driver's domain; a slice has at most 128
devices; a pool whose devices changed has another generation.
"""

from __future__ import annotations

import re
from typing import Any, Final

from strata.cluster.api.kinds import COMPUTE_NODE, RESOURCE_SLICE, Object
from strata.cluster.scheduling.index import MIN_HEALTH
from strata.fleet.acu import acu
from strata.fleet.fingerprint import Device, Fingerprint
from strata.fleet.vendor_resources import is_accelerator

DRIVER: Final = "ai.compute"

VISIBLE: Final = {
    "NVIDIA": "NVIDIA_VISIBLE_DEVICES",
    "Huawei": "ASCEND_VISIBLE_DEVICES",
    "Moore Threads": "MTHREADS_VISIBLE_DEVICES",
}
"""By vendor, the variable by which its container runtime gives devices to a container. Others' runtimes need more
than a variable, so their devices are in no slice of ours."""

_MOST_DEVICES: Final = 128
_LONGEST: Final = 64


def slice_name(node: str) -> str:
    """Return the name of a node's slice."""
    return f"{node}-{DRIVER}"[-253:].lstrip(".-")


def device_name(device: Device) -> str:
    """Return a device's name in its slice, the same whatever place and number it has after a restart."""
    return re.sub(r"[^a-z0-9]+", "-", device.uuid.lower()).strip("-")[:63].strip("-")


def offered(fingerprint: Fingerprint) -> list[Device]:
    """Return the devices that may be given out: well enough for a gang, of a vendor whose runtime we can tell.

    None where pods hold devices by a vendor's device plugin: what both gave out would be given twice.
    """
    resources = {resource for held in fingerprint.held.values() for resource in held}
    if any(map(is_accelerator, resources)):
        return []
    devices = [each for each in fingerprint.devices if each.vendor in VISIBLE and each.health >= MIN_HEALTH]
    return devices[:_MOST_DEVICES]


def resource_slice(fingerprint: Fingerprint, *, generation: int, owner_uid: str) -> dict[str, Any]:
    """Return the slice of a node's devices. owner_uid: of its ComputeNode, with which it goes."""
    owner = {
        "apiVersion": COMPUTE_NODE.api_version,
        "kind": COMPUTE_NODE.kind,
        "name": fingerprint.node,
        "uid": owner_uid,
    }
    pool = {"name": fingerprint.node, "generation": generation, "resourceSliceCount": 1}
    return {
        "apiVersion": RESOURCE_SLICE.api_version,
        "kind": RESOURCE_SLICE.kind,
        "metadata": {"name": slice_name(fingerprint.node), "ownerReferences": [owner]},
        "spec": {
            "driver": DRIVER,
            "nodeName": fingerprint.node,
            "pool": pool,
            "devices": [_entry(device) for device in offered(fingerprint)],
        },
    }


def _entry(device: Device) -> Object:
    words = {"model": device.model, "vendor": device.vendor, "uuid": device.uuid, "pciBusID": device.bus_id}
    words |= {"board": device.board}
    numbers: dict[str, int] = {"healthPercent": round(100 * device.health)}
    if device.numa_node is not None:
        numbers["numaNode"] = device.numa_node
    if device.card is not None:
        worth = acu(device.card)
        known = {"acuFP16": worth.fp16, "acuMemoryBandwidth": worth.memory_bandwidth}
        numbers |= {name: round(value) for name, value in known.items() if value is not None}
    attributes: dict[str, Any] = {key: {"string": word[:_LONGEST]} for key, word in words.items() if word}
    attributes |= {key: {"int": number} for key, number in numbers.items()}
    capacity = {"memory": {"value": str(int(device.memory_bytes))}}
    return {"name": device_name(device), "attributes": attributes, "capacity": capacity}
