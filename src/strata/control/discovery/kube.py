"""A Kubernetes cluster: a domain for each place and kind of device, as our agent found it, else as labels say.

Where the two differ, the agent is believed: it asked the devices, and labels outlive them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from strata import units
from strata.cluster.api.kinds import COMPUTE_NODE, NODE, POD, Object, is_true, meta, name_of
from strata.cluster.cache.allocation import pod_seen
from strata.cluster.cache.cache import ClusterCache
from strata.cluster.cache.capacity import DOMAIN_LABELS
from strata.cluster.scheduling.index import MIN_HEALTH
from strata.cluster.scheduling.snapshot import NodeState
from strata.decision import Trust
from strata.fleet.catalogue import card_named
from strata.fleet.discovery.cards import card_of_devices, intra_bandwidth
from strata.fleet.discovery.fleet_file import Card, FoundDomain, Told, card_called, slowest
from strata.fleet.discovery.observation import FITS
from strata.fleet.rdma import send_bytes_per_s
from strata.fleet.vendor_resources import vendor_of
from strata.names import first_of

PRODUCT_LABELS: Final = (
    "nvidia.com/gpu.product", "amd.com/gpu.product-name", "accelerator-type", "node.kubernetes.io/npu.chip.name",
    "cambricon.com/mlu.product", "cloud.google.com/gke-accelerator", "cloud.google.com/gke-tpu-accelerator",
)  # fmt: skip
"""Node labels that name the card: of the vendors' feature discovery, then of one cloud."""
_MEMORY_MIB: Final = "nvidia.com/gpu.memory"
_AGENT: Final = "our agent"


@dataclass(frozen=True, slots=True)
class _Devices:
    """Like devices of one node. free: None where nobody may look. joined: the slowest link of two of them."""

    node: str
    count: int
    free: int | None
    card: Card
    is_by_agent: bool = False
    joined: Told | None = None
    network_bytes_per_s: float = 0.0


def domains_of_kube(
    context: str, nodes: Sequence[Object], compute_nodes: Sequence[Object], pods: Sequence[Object] | None = None
) -> list[FoundDomain]:
    """Return the domains. compute_nodes: what our agents published; none where they are not installed.

    pods: what holds devices; None where we may not see them, and what is free is then not said.
    """
    cache = ClusterCache()
    for kind, objects in ((NODE, nodes), (COMPUTE_NODE, compute_nodes), (POD, pods or ())):
        cache.listed(kind, objects)
    states = {state.name: state for state in cache.index.nodes}
    requested: dict[str, Counter[str]] = {}
    for pod in map(pod_seen, pods or ()):
        if pod.node and not pod.is_over:
            requested.setdefault(pod.node, Counter()).update(pod.counts)
    groups: dict[tuple[str, str, str], list[_Devices]] = {}
    doubts: dict[str, dict[str, list[str]]] = {}
    for node in sorted(nodes, key=name_of):
        name, labels = name_of(node), meta(node).get("labels") or {}
        place = next((str(labels[key]) for key in DOMAIN_LABELS if labels.get(key)), "")
        for resource, count in _resources(node):
            taken = None if pods is None else requested.get(name, Counter())[resource]
            like = list(_of_node(node, resource, count, states.get(name), taken))
            for devices in like:
                groups.setdefault((place, resource, str(devices.card.name.value)), []).append(devices)
            fault = cache.faults.get(f"ComputeNode/{name}")
            for doubt in _doubts(labels, resource, count, states.get(name), fault):
                key = like[0].card.name.value if like else ""
                doubts.setdefault(f"{place}/{resource}/{key}", {}).setdefault(doubt, []).append(name)
    made = []
    for (place, resource, model), held in sorted(groups.items()):
        alone = len({other for at, _, other in groups if at == place}) == 1
        title = "-".join(filter(None, (context, place, "" if alone else model)))
        note = f"driver: {{kind: kubernetes, context: {context}, resource: {resource}, image: YOURS}}"
        contradictions = doubts.get(f"{place}/{resource}/{model}", {})
        card = slowest([devices.card for devices in held])
        keys = dict(_keys(place, resource, held, card))
        messages = tuple(f"{first_of(names, 3)}: {doubt}" for doubt, names in contradictions.items())
        made.append(FoundDomain(title, card, keys, note=note, doubts=messages))
    return made


def _keys(place: str, resource: str, held: Sequence[_Devices], card: Card) -> Iterator[tuple[str, Told]]:
    counts = [devices.count for devices in held]
    capacity = f"capacity of {resource}"
    yield "num_gpus", Told(sum(counts), Trust.MEASURED, f"{capacity}: {len(counts)} nodes")
    free = [devices.free for devices in held if devices.free is not None]
    if len(free) == len(held):
        by_agent = sum(devices.is_by_agent for devices in held)
        # Requests say how many a pod may have, and only the kubelet which, and whether they are well.
        trust = Trust.MEASURED if by_agent == len(held) else Trust.ANALYTIC
        how = "well, and held by no pod" if by_agent == len(held) else "allocatable, less what pods request"
        yield "free_gpus", Told(sum(free), trust, how)
    yield "gpus_per_node", Told(Counter(counts).most_common(1)[0][0], Trust.MEASURED, f"{capacity}: most nodes")
    if place:
        yield "region", Told(place, Trust.MEASURED, "label of its nodes")
    if rate := min(devices.network_bytes_per_s for devices in held):
        source = "RDMA ports, as negotiated, of the slowest node"
        yield "network_bandwidth", Told(f"{rate * 8 / 1e9:g}Gbps", Trust.ANALYTIC, source)
    known = card_named(str(card.name.value))
    joined = [devices.joined for devices in held if devices.joined is not None]
    if joined and all(figure.trust is Trust.MEASURED for figure in joined):
        yield "intra_bandwidth", min(joined, key=_rate)
    elif known is None or known.interconnect_bytes_per_s is None:
        usual = Told("12GB/s", Trust.ASSUMED, "PCIe; nobody told")
        yield "intra_bandwidth", min(joined, key=_rate, default=usual)


def _rate(figure: Told) -> float:
    return units.parse(figure.value, "bandwidth")


def _resources(node: Object) -> list[tuple[str, int]]:
    capacity = (node.get("status") or {}).get("capacity") or {}
    return [
        (resource, int(count))
        for resource, count in capacity.items()
        if vendor_of(resource) and str(count).isdecimal() and int(count)
    ]


def _of_node(
    node: Object, resource: str, capacity: int, state: NodeState | None, taken: int | None
) -> Iterator[_Devices]:
    """Yield the devices that a resource of a node counts, by model. taken: what its pods request of it."""
    name, vendor = name_of(node), vendor_of(resource)
    by_model: dict[str, list[int]] = {}
    for place, device in enumerate(state.fingerprint.devices if state is not None else ()):
        if device.vendor == vendor:
            by_model.setdefault(device.model, []).append(place)
    if state is None or not by_model:
        status = node.get("status") or {}
        allocatable = str((status.get("allocatable") or {}).get(resource, capacity))
        is_open = is_true(node, "Ready") and not (node.get("spec") or {}).get("unschedulable")
        left = int(allocatable) if allocatable.isdecimal() and is_open else 0
        free = None if taken is None else min(capacity, max(0, left - taken))
        yield _Devices(name, capacity, free, _card(meta(node).get("labels") or {}, vendor))
        return
    left = capacity
    for places in by_model.values():
        devices = [state.fingerprint.devices[place] for place in places]
        count = min(left, len(places))
        left -= count
        unused = sum(
            state.is_schedulable and state.free_share[place] >= 1 and device.health >= MIN_HEALTH
            for place, device in zip(places, devices, strict=True)
        )
        free = None if taken is None else min(count, unused)
        card = card_of_devices(devices, source=_AGENT)
        joined = intra_bandwidth(state.fingerprint, places, source=_AGENT)
        network = send_bytes_per_s(state.fingerprint.ports) or 0.0
        if count:
            yield _Devices(name, count, free, card, is_by_agent=True, joined=joined, network_bytes_per_s=network)


def _doubts(
    labels: Mapping[str, Any], resource: str, capacity: int, state: NodeState | None, fault: str | None
) -> Iterator[str]:
    """Yield where a node's labels and resource say other than its agent, and which of them is believed."""
    if fault:
        yield f"what its agent published cannot be read, so labels are believed: {fault[:200]}"
    vendor = vendor_of(resource)
    devices = [device for device in (state.fingerprint.devices if state else ()) if device.vendor == vendor]
    if not devices:
        return
    models = sorted({device.card.name if device.card is not None else device.model for device in devices})
    believed = "the agent is believed: it asked the devices"
    for key in PRODUCT_LABELS:
        labelled = card_named(str(labels.get(key) or ""))
        if labelled is not None and labelled.vendor == vendor and labelled.name not in models:
            yield f"label {key} says {labelled.name}, the agent {', '.join(models)}; {believed}"
    mib, has_mib = str(labels.get(_MEMORY_MIB) or ""), devices[0].memory_bytes / 2**20
    if vendor == "NVIDIA" and mib.isdecimal() and has_mib > 0 and not FITS[0] <= int(mib) / has_mib <= FITS[1]:
        yield f"label {_MEMORY_MIB} says {mib} MiB, the agent {has_mib:.0f} MiB; {believed}"
    counts = f"{resource} counts {capacity} devices, the agent {len(devices)}"
    if len(devices) > capacity:
        yield f"{counts}; the resource is believed: pods get no more"
    elif len(devices) < capacity:
        yield f"{counts}; the agent is believed: a resource may count shares"


def _card(labels: Mapping[str, Any], vendor: str) -> Card:
    """Return the card that labels name."""
    key = next((key for key in PRODUCT_LABELS if labels.get(key)), None)
    mib = str(labels.get(_MEMORY_MIB) or "")
    memory = None
    if mib.isdecimal() and int(mib):
        memory = Told(f"{int(mib) * 2**20 / 1e9:.4g}GB", Trust.MEASURED, f"label {_MEMORY_MIB}")
    if key is None:
        card = card_called(f"{vendor} device", trust=Trust.ASSUMED, source="no label names it", memory=memory)
    else:
        card = card_called(str(labels[key]), trust=Trust.MEASURED, source=f"label {key}", memory=memory)
    vendor_told = {"vendor": Told(vendor, Trust.MEASURED, "its resource")}
    return Card(card.name, {**card.inline, **vendor_told}) if card.inline else card
