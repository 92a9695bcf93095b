"""A Kubernetes cluster: a domain for each place and kind of device, as our agent found it, else as labels say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from strata.cluster.api.crd.compute_node import fingerprint_of
from strata.cluster.api.kinds import Object, meta, name_of
from strata.cluster.cache.capacity import DOMAIN_LABELS
from strata.control.discovery.fleet_file import Card, FoundDomain, Told, card_called
from strata.decision import Trust
from strata.fleet.rdma import send_bytes_per_s
from strata.fleet.vendor_resources import vendor_of

PRODUCT_LABELS: Final = (
    "nvidia.com/gpu.product", "amd.com/gpu.product-name", "accelerator-type", "node.kubernetes.io/npu.chip.name",
    "cambricon.com/mlu.product", "cloud.google.com/gke-accelerator", "cloud.google.com/gke-tpu-accelerator",
)  # fmt: skip
"""Node labels that name the card: of the vendors' feature discovery, then of one cloud."""
_MEMORY_MIB: Final = "nvidia.com/gpu.memory"


def domains_of_kube(context: str, nodes: Sequence[Object], compute_nodes: Sequence[Object]) -> list[FoundDomain]:
    """Return the domains. compute_nodes: what our agents published; none where they are not installed."""
    agents = {name_of(obj): obj for obj in compute_nodes}
    groups: dict[tuple[str, str, str], list[tuple[int, Card]]] = {}
    rates = {at: send_bytes_per_s(fingerprint_of(agent).ports) for at, agent in agents.items()}
    slowest: dict[tuple[str, str, str], float] = {}
    for node in sorted(nodes, key=name_of):
        labels = meta(node).get("labels") or {}
        place = next((str(labels[key]) for key in DOMAIN_LABELS if labels.get(key)), "")
        for resource, count in _devices(node):
            card = _card(node, labels, vendor_of(resource), agents.get(name_of(node)))
            group = (place, resource, str(card.name.value))
            groups.setdefault(group, []).append((count, card))
            rate = rates.get(name_of(node)) or 0.0
            slowest[group] = min(slowest.get(group, rate), rate)
    made = []
    for (place, resource, model), held in sorted(groups.items()):
        counts = [count for count, _ in held]
        card = held[0][1]
        capacity = f"capacity of {resource}"
        keys = {
            "num_gpus": Told(sum(counts), Trust.MEASURED, f"{capacity}: {len(counts)} nodes"),
            "gpus_per_node": Told(Counter(counts).most_common(1)[0][0], Trust.MEASURED, f"{capacity}: most nodes"),
        }
        if place:
            keys["region"] = Told(place, Trust.MEASURED, "label of its nodes")
        if rate := slowest[place, resource, model]:
            source = "RDMA ports, as negotiated, of the slowest node"
            keys["network_bandwidth"] = Told(f"{rate * 8 / 1e9:g}Gbps", Trust.ANALYTIC, source)
        if card.inline:
            keys["intra_bandwidth"] = Told("12GB/s", Trust.ASSUMED, "PCIe; nobody told")
        alone = len({other for at, _, other in groups if at == place}) == 1
        name = "-".join(filter(None, (context, place, "" if alone else model)))
        note = f"driver: {{kind: kubernetes, context: {context}, resource: {resource}, image: YOURS}}"
        made.append(FoundDomain(name, card, keys, note=note))
    return made


def _devices(node: Object) -> list[tuple[str, int]]:
    capacity = (node.get("status") or {}).get("capacity") or {}
    return [
        (resource, int(count))
        for resource, count in capacity.items()
        if vendor_of(resource) and str(count).isdecimal() and int(count)
    ]


def _card(node: Object, labels: Mapping[str, Any], vendor: str, agent: Object | None) -> Card:
    devices = fingerprint_of(agent).devices if agent is not None else ()
    device = next((device for device in devices if device.vendor == vendor), None)
    if device is not None:
        memory = Told(f"{device.memory_bytes / 1e9:.4g}GB", Trust.MEASURED, "our agent")
        model = device.card.name if device.card is not None else device.model
        card = card_called(model, trust=Trust.MEASURED, source="our agent", memory=memory)
        return _of(card, vendor)
    key = next((key for key in PRODUCT_LABELS if labels.get(key)), None)
    mib = str(labels.get(_MEMORY_MIB) or "")
    known = (
        Told(f"{int(mib) * 2**20 / 1e9:.4g}GB", Trust.MEASURED, f"label {_MEMORY_MIB}")
        if mib.isdecimal()
        else None
    )
    if key is None:
        return _of(
            card_called(f"{vendor} device", trust=Trust.ASSUMED, source="no label names it", memory=known), vendor
        )
    return _of(card_called(str(labels[key]), trust=Trust.MEASURED, source=f"label {key}", memory=known), vendor)


def _of(card: Card, vendor: str) -> Card:
    if not card.inline:
        return card
    return Card(card.name, {**card.inline, "vendor": Told(vendor, Trust.MEASURED, "its resource")})
