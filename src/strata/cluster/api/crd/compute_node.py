"""ComputeNode: a node's fingerprint as an object of the API server, and back.

What is written is checked by the same rules as what is read, so that no agent writes what no controller reads.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, Literal, get_args

from strata.cluster.agent.benchmark import Timing, measured_card
from strata.cluster.api.crd.document import ObjectDocument
from strata.cluster.api.crd.fields import LONGEST, LONGEST_WORD, MOST_DEVICES, MOST_HELD, MOST_NOTES, camel
from strata.cluster.api.crd.node_schema import ComputeNode, DeviceStatus, Worth
from strata.cluster.api.kinds import COMPUTE_NODE, Object, moment, name_of
from strata.decision import Trust
from strata.errors import BadFile, Fault, StrataError
from strata.fleet.accelerator import Accelerator
from strata.fleet.acu import FIGURES, REFERENCE, AcuVector, acu, at_clock, deliverable
from strata.fleet.catalogue import accelerator, card_named
from strata.fleet.discovery.observation import die_of
from strata.fleet.fingerprint import Device, DeviceLoad, Fingerprint, Probe
from strata.fleet.rdma import RdmaPort, rdma_group

Measurable = Literal["fp16", "fp32", "memory_bandwidth"]
MEASURABLE: Final[tuple[Measurable, ...]] = get_args(Measurable)
"""Figures of a card that a benchmark on the node measures."""

_AGREE: Final = 1e-9
_DIE: Final = "-die"


def compute_node(
    fingerprint: Fingerprint,
    *,
    at: str,
    version: str = "",
) -> Object:
    """Return the whole object, for a server-side apply of its status.

    at: when it was looked at, RFC 3339. version: of the agent. Notes and pods' devices beyond what the object
    holds are cut. Raises BadFile where a figure is not finite, or negative: it is not to be believed.
    """
    status = {
        "observedAt": at,
        "agentVersion": version,
        "driver": fingerprint.driver[:LONGEST],
        "tool": fingerprint.tool[:LONGEST],
        "notes": [note[:LONGEST] for note in fingerprint.notes[:MOST_NOTES]],
        "canP2p": fingerprint.can_p2p,
        "trust": fingerprint.trust.value,
        "devices": [_device(device) for device in fingerprint.devices],
        "links": _links(fingerprint),
        "held": _held(fingerprint),
        "ports": [_changed(port) for port in fingerprint.ports[:MOST_DEVICES]],
        "rdmaGroup": rdma_group(fingerprint.ports),
        "summary": _summary(fingerprint),
    }
    obj = {
        "apiVersion": COMPUTE_NODE.api_version,
        "kind": COMPUTE_NODE.kind,
        "metadata": {"name": fingerprint.node},
        "status": {key: value for key, value in status.items() if value not in ("", [], None)},
    }
    fingerprint_of(obj)
    return obj


def fingerprint_of(obj: Object) -> Fingerprint:
    """Return the fingerprint an object holds. Raises BadFile with every fault, by `status.devices[i].field`.

    A card is the catalogue's, with the figures that were measured on the node instead of its own. Agents newer
    than this may say more; that is left out.
    """
    document = ObjectDocument(obj)
    status = document.check(ComputeNode).status
    faults: list[Fault] = []
    devices: list[Device] = []
    places: dict[str, int] = {}
    for place, device_status in enumerate(status.devices):
        if places.setdefault(device_status.uuid, place) != place:
            message = f"is also that of status.devices[{places[device_status.uuid]}]"
            faults.append(document.fault(("status", "devices", place, "uuid"), message))
        card = None
        try:
            card = _card_of(device_status)
        except StrataError as error:
            faults.append(document.fault(("status", "devices", place, "acu"), str(error)))
        device = _device_of(device_status, card)
        if device_status.probe is not None:
            try:
                at_s = datetime.fromisoformat(device_status.probe.at).timestamp()
            except ValueError as error:  # the form of a date, but none
                faults.append(document.fault(("status", "devices", place, "probe", "at"), str(error)))
            else:
                device = replace(
                    device, probe=Probe(at_s, device_status.probe.rate_flops, device_status.probe.power_w)
                )
        if (load := device_status.load) is not None:
            figures = load.model_dump(exclude={"throttled"})
            device = _at_its_clock(replace(device, load=DeviceLoad(**figures, throttled=tuple(load.throttled))))
        devices.append(device)
    links: dict[tuple[int, int], str] = {}
    measured: dict[tuple[int, int], float] = {}
    for place, link in enumerate(status.links):
        if not link.a < link.b < len(devices):
            message = f"joins {link.a} and {link.b} of {len(devices)} devices; the smaller comes first"
            faults.append(document.fault(("status", "links", place), message))
        if link.kind:
            links[link.a, link.b] = link.kind
        if link.bytes_per_s is not None:
            measured[link.a, link.b] = link.bytes_per_s
    if faults:
        raise BadFile(faults)
    held: dict[str, dict[str, tuple[str, ...]]] = {}
    for entry in status.held:
        held.setdefault(entry.pod, {})[entry.resource] = tuple(entry.ids)
    return Fingerprint(
        name_of(obj),
        tuple(devices),
        links,
        measured,
        can_p2p=status.can_p2p,
        driver=status.driver,
        tool=status.tool,
        trust=Trust(status.trust),
        notes=tuple(status.notes),
        held=held,
        ports=tuple(RdmaPort(**port.model_dump()) for port in status.ports),
    )


def _device(device: Device) -> dict[str, Any]:
    status = _changed(device, without=("card", "probe", "load")) | {
        "health": device.health,
        "memoryBytes": _whole(device.memory_bytes),
    }
    if device.memory_used_bytes is not None:
        status["memoryUsedBytes"] = _whole(device.memory_used_bytes)
    if device.card is not None:
        status["acu"] = _vector(_worth(device.card))
    if probe := device.probe:
        power = {} if probe.power_w is None else {"powerW": probe.power_w}
        status["probe"] = {"at": moment(probe.at_s, "milliseconds"), "rateFlops": probe.rate_flops, **power}
    if device.load is not None:
        status["load"] = _changed(device.load)
    return status


def _changed(item: Device | DeviceLoad | RdmaPort, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the fields that are not their defaults."""
    return {
        camel(each.name): getattr(item, each.name)
        for each in fields(item)
        if each.name not in without and getattr(item, each.name) != each.default
    }


def _whole(count: float) -> float:
    """Return bytes as a whole number; what is not finite stays, for the check to name."""
    return round(count) if math.isfinite(count) else count


def _vector(vector: AcuVector) -> dict[str, Any]:
    return {
        camel(figure): {"value": getattr(vector, figure), "trust": vector.trust[figure].value}
        for figure in FIGURES
        if getattr(vector, figure) is not None
    }


def _links(fingerprint: Fingerprint) -> list[dict[str, Any]]:
    links = []
    for a, b in sorted({*fingerprint.links, *fingerprint.measured}):
        link: dict[str, Any] = {"a": a, "b": b}
        if kind := fingerprint.links.get((a, b)):
            link["kind"] = kind
        if (rate := fingerprint.measured.get((a, b))) is not None:
            link["bytesPerS"] = rate
        links.append(link)
    return links


def _held(fingerprint: Fingerprint) -> list[dict[str, Any]]:
    entries = [
        {"pod": pod, "resource": resource, "ids": list(ids)}
        for pod, by_resource in sorted(fingerprint.held.items())
        for resource, ids in sorted(by_resource.items())
        if len(ids) <= MOST_HELD and all(len(word) <= LONGEST_WORD for word in (resource, *ids))
    ]
    return entries[:MOST_HELD]


def _summary(fingerprint: Fingerprint) -> dict[str, Any]:
    devices = fingerprint.devices
    if not devices:
        return {"devices": 0}
    summary: dict[str, Any] = {
        "devices": len(devices),
        "model": ", ".join(dict.fromkeys(device.model for device in devices))[:LONGEST],
        "health": min(device.health for device in devices),
    }
    known = [_worth(device.card).fp16 for device in devices if device.card is not None]
    amounts = [amount for amount in known if amount is not None]
    # A sum that leaves a device out would pass for the node's.
    return summary | ({"acu": round(sum(amounts), 1)} if len(amounts) == len(devices) else {})


@lru_cache(maxsize=1024)
def _worth(card: Accelerator) -> AcuVector:
    return acu(card)


def _device_of(status: DeviceStatus, card: Accelerator | None) -> Device:
    used = status.memory_used_bytes
    same = status.model_dump(exclude={"memory_bytes", "memory_used_bytes", "faults", "acu", "probe", "load"})
    return Device(
        **same,
        memory_bytes=float(status.memory_bytes),
        memory_used_bytes=None if used is None else float(used),
        faults=tuple(status.faults),
        card=card,
    )


def _at_its_clock(device: Device) -> Device:
    """Return a device whose card is worth what the clock allows that it kept while it was busy."""
    share = device.load.median_sm_clock_share if device.load is not None else None
    if device.card is None or share is None:
        return device
    return replace(device, card=at_clock(device.card, share))


def _card_of(status: DeviceStatus) -> Accelerator | None:
    """Return a device's card; None where its agent knew none: a slice has the name of a card, not its rates.

    Raises StrataError where a figure is far above what the card can do on paper.
    """
    if status.acu is None:
        return None
    card = _known(status.model)
    own = None if card is None else _worth(card)
    timings = []
    for figure in MEASURABLE:
        worth: Worth | None = getattr(status.acu, figure)
        if worth is None or Trust(worth.trust) is not Trust.MEASURED:
            continue
        here = None if own is None else getattr(own, figure)
        if here is not None and math.isclose(here, worth.value, rel_tol=_AGREE):
            continue  # somebody else's measurement, which the catalogue has
        unit = deliverable(accelerator(REFERENCE), figure)
        assert unit is not None, "the reference card has every figure"
        timings.append(Timing(figure, worth.value * unit[0] / 100, (1.0,)))
    if not timings:
        return card
    return measured_card(_device_of(status, card), timings)


@lru_cache(maxsize=1024)
def _known(model: str) -> Accelerator | None:
    card, whole = card_named(model), card_named(model.removesuffix(_DIE))
    return card or (die_of(whole) if whole else None)
