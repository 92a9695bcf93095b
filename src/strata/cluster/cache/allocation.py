"""Who holds which devices: pods against the places their gang was given, and what that leaves of a node.

A device plugin chooses the devices, and the kubelet says which it gave: in the pod's status
(`allocatedResourcesStatus`; alpha in 1.31, beta in 1.36), and to our agent (PodResources, as `held` in the
ComputeNode). That is what a pod holds. Until it is there, a pod holds the devices its placement names; one without
a placement (not ours), or that was bound elsewhere, holds as many of its vendor's devices as it asks for, and
those are taken to be the first that nobody else holds.

References
----------
KEP-4680, "Add Resource Health Status to the Pod Status for Device Plugin and DRA" (kubernetes/enhancements).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from strata.cluster.api.kinds import Object, meta
from strata.cluster.api.placement_annotation import PLACEMENT, decode, gang_of, place_of
from strata.cluster.api.pod_requests import requests_of
from strata.cluster.scheduling.host import NOTHING, PodRequests
from strata.cluster.scheduling.snapshot import Placement, PodPlace
from strata.errors import BadFile
from strata.fleet.device_ids import place_of_id
from strata.fleet.fingerprint import Fingerprint
from strata.fleet.vendor_resources import vendor_of

_OVER: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod as far as devices go. node: empty until it is bound. place: its own, None where it may be any.

    counts: of each extended resource. allocated: the ids of the devices the kubelet gave it, by resource. One
    whose placement cannot be read counts as not ours. requests: of its node.
    """

    key: str
    gang: str
    node: str = ""
    placement: Placement | None = None
    place: PodPlace | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    is_over: bool = False
    allocated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    requests: PodRequests = NOTHING


@dataclass(frozen=True, slots=True)
class Use:
    """What a pod holds on a node: these devices, or of each resource so many that nobody named.

    allocated: device ids by resource, where the kubelet said them; they count instead of all else.
    requests: of the node, by a pod that is not bound yet; those that are count by themselves.
    """

    devices: tuple[int, ...] = ()
    memory_bytes: float | None = None
    cores_share: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)
    allocated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    requests: PodRequests = NOTHING


def pod_seen(pod: Object) -> PodSeen:
    """Return what a pod holds, or will once it is bound."""
    about = meta(pod)
    key = f"{about.get('namespace') or ''}/{about.get('name') or ''}"
    annotations, placement = about.get("annotations") or {}, None
    if PLACEMENT in annotations:
        with suppress(BadFile):
            placement = decode(annotations[PLACEMENT], where=f"pod {key}")
    return PodSeen(
        key,
        gang_of(pod),
        str((pod.get("spec") or {}).get("nodeName") or ""),
        placement,
        None if placement is None else place_of(pod, placement),
        _counts(pod),
        (pod.get("status") or {}).get("phase") in _OVER,
        _allocated(pod),
        requests_of(pod),
    )


def extended_resources(container: Mapping[str, Any]) -> dict[str, int]:
    """Return the extended resources (`domain/name`) a container asks for."""
    resources = container.get("resources") or {}
    amounts = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return {
        name: int(amount)
        for name, amount in amounts.items()
        if "/" in name and not name.startswith("kubernetes.io/") and str(amount).isdigit()
    }


def _counts(pod: Object) -> Mapping[str, int]:
    spec = pod.get("spec") or {}
    total: Counter[str] = Counter()
    for container in spec.get("containers") or ():
        total += Counter(extended_resources(container))
    for container in spec.get("initContainers") or ():
        total |= Counter(extended_resources(container))
    return total


def _allocated(pod: Object) -> Mapping[str, tuple[str, ...]]:
    """Return the ids of whole devices that the kubelet gave a pod's containers, by resource."""
    status = pod.get("status") or {}
    ids: dict[str, dict[str, None]] = {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        for resource in container.get("allocatedResourcesStatus") or ():
            of_resource = ids.setdefault(str(resource.get("name")), {})
            of_resource.update({str(entry.get("resourceID")): None for entry in resource.get("resources") or ()})
    return {name: tuple(sorted(of_resource)) for name, of_resource in ids.items() if of_resource}


def uses_of(
    placement: Placement | None, pods: Sequence[PodSeen], *, is_reserved: bool
) -> Iterator[tuple[str, Use]]:
    """Yield what a gang holds, by node: each pod once, and with `is_reserved` the places no pod has taken yet."""
    left = Counter(placement.pods if placement is not None else ())
    share = (placement.cores_share or 0.0) if placement is not None else 0.0
    late: list[PodSeen] = []
    anywhere: list[PodSeen] = []
    for pod in sorted((pod for pod in pods if not pod.is_over), key=lambda pod: pod.key):
        place = pod.place
        if place is None:
            anywhere.append(pod)
        elif left[place] and pod.node in ("", place.node):
            left[place] -= 1
            yield place.node, _of_pod(place, share, pod)
        else:
            late.append(pod)
    on_node: dict[str, list[PodPlace]] = {}
    for place in left.elements():
        on_node.setdefault(place.node, []).append(place)
    for pod in anywhere:
        if here := on_node.get(pod.node):
            yield pod.node, _of_pod(here.pop(0), share, pod)
        else:
            late.append(pod)
    for pod in late:
        if pod.node:
            yield pod.node, replace(_elsewhere(pod, share), allocated=pod.allocated)
    if is_reserved:
        requests = NOTHING if placement is None else placement.requests
        for node, places in on_node.items():
            for place in places:
                yield node, Use(place.devices, place.memory_bytes, share, requests=requests)


def _of_pod(place: PodPlace, share: float, pod: PodSeen) -> Use:
    requests = NOTHING if pod.node else pod.requests
    return Use(place.devices, place.memory_bytes, share, allocated=pod.allocated, requests=requests)


def _use(place: PodPlace, share: float) -> Use:
    return Use(place.devices, place.memory_bytes, share)


def _elsewhere(pod: PodSeen, share: float) -> Use:
    """Return what a pod holds that is not where its gang's placement has it now."""
    if pod.place is not None and pod.placement is not None and pod.node == pod.place.node:
        return _use(pod.place, pod.placement.cores_share or 0.0)  # of a placement before this one
    memory = pod.placement.pods[0].memory_bytes if pod.placement and pod.placement.pods else None
    # A fraction asks for no resource: which device it got where it was not sent nobody knows, so the first.
    return Use(counts=pod.counts) if memory is None else Use((0,), memory, share)


class Free(NamedTuple):
    """What is free of each device: bytes, and share of its cores.

    withheld: devices that nobody holds and the node's device plugin does not offer; nothing of them is free.
    """

    bytes: tuple[float, ...]
    share: tuple[float, ...]
    withheld: frozenset[int]


def devices_of(fingerprint: Fingerprint, use: Use, *, vendors: Mapping[str, str]) -> Sequence[int]:
    """Return the places of the devices a use is of: those the kubelet named, else those it was meant to have."""
    places = _places(fingerprint, use, vendors)
    return use.devices if places is None else places


def free_of(
    fingerprint: Fingerprint,
    uses: Sequence[Use],
    *,
    vendors: Mapping[str, str],
    allocatable: Mapping[str, Any],
    min_health: float,
) -> Free:
    """Return what is free of each device.

    vendors: by a resource that counts their devices, besides those everybody knows. allocatable: how many of a
    resource the node lets pods have; devices beyond that are not free, since no pod that needs one could be bound.
    A plugin offers no device that it takes for broken, so those below `min_health` are the first it withholds.
    """
    devices = fingerprint.devices
    free_bytes, free_share = [device.memory_bytes for device in devices], [1.0] * len(devices)

    def take(device: int, memory_bytes: float | None, share: float) -> None:
        if 0 <= device < len(devices):
            is_whole = memory_bytes is None
            free_bytes[device] = 0.0 if is_whole else max(0.0, free_bytes[device] - (memory_bytes or 0.0))
            free_share[device] = 0.0 if is_whole else max(0.0, free_share[device] - share)

    unnamed: Counter[str] = Counter()
    unsaid: list[Use] = []
    for use in uses:
        places = _places(fingerprint, use, vendors)
        for place in places or ():
            take(place, None, 0.0)
        if places is None:
            unsaid.append(use)
    for use in sorted(unsaid, key=lambda use: use.memory_bytes is None):
        for device in use.devices:
            if use.memory_bytes is None and 0 <= device < len(devices) and free_bytes[device] <= 0.0:
                unnamed[devices[device].vendor] += 1  # its plugin gave it to another: this pod gets some other one
            else:
                take(device, use.memory_bytes, use.cores_share)
        for resource, count in use.counts.items():
            unnamed[vendors.get(resource) or vendor_of(resource)] += count

    def is_whole(i: int) -> bool:
        return free_share[i] == 1.0 and free_bytes[i] == devices[i].memory_bytes

    def of_vendor(vendor: str) -> list[int]:
        return sorted(
            (i for i, device in enumerate(devices) if device.vendor == vendor), key=lambda i: (not is_whole(i), i)
        )

    withheld: set[int] = set()
    for resource, offered in allocatable.items():
        if (vendor := vendors.get(resource) or vendor_of(resource)) and str(offered).isdigit():
            some = sorted(of_vendor(vendor), key=lambda i: (not is_whole(i), devices[i].health >= min_health))
            for device in some[: max(0, len(some) - int(offered))]:
                withheld |= {device} if is_whole(device) else set()
                take(device, None, 0.0)
    for vendor, count in unnamed.items():
        for device in of_vendor(vendor)[:count]:
            # Where pods hold more than is offered, the plugin gave them these before it withheld any.
            withheld.discard(device)
            take(device, None, 0.0)
    return Free(tuple(free_bytes), tuple(free_share), frozenset(withheld))


def _places(fingerprint: Fingerprint, use: Use, vendors: Mapping[str, str]) -> list[int] | None:
    """Return the places of the devices the kubelet named; None where it named none, or one the node does not have.

    Resources that count no whole devices (a NIC's, a part's) are left out.
    """
    places: list[int] = []
    for resource, ids in use.allocated.items():
        vendor = vendors.get(resource) or vendor_of(resource)
        for device_id in ids if vendor else ():
            place = place_of_id(fingerprint, device_id, vendor=vendor)
            if place is None:
                return None
            places.append(place)
    return places or None
