"""Kubernetes' ResourceSlices, whoever publishes them: the devices of its nodes as their drivers describe them.

A driver's name of the product leads to the catalogue's card where it has one, as a tool's does.

References
----------
k8s.io/api resource/v1 (Kubernetes 1.34 and newer): an attribute without a domain is its driver's; of a pool the
newest generation counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from strata import units
from strata.errors import UsageError
from strata.fleet.discovery.observation import card_of
from strata.fleet.fingerprint import Device, Fingerprint

PRODUCT: Final = ("model", "productName")
BUS: Final = ("resource.kubernetes.io/pciBusID", "pciBusID", "pcieBusID", "pciAddr")
"""Attributes that drivers use: NVIDIA's and AMD's, as recalled, and the standard's."""


@dataclass(frozen=True, slots=True)
class SliceDevice:
    """A device by the names an allocation has for it. selector: CEL that is true of its like alone."""

    node: str
    driver: str
    pool: str
    name: str
    device: Device
    selector: str


def slice_devices(slices: Iterable[Mapping[str, Any]]) -> list[SliceDevice]:
    """Return the devices of all slices that belong to a node."""
    specs = [spec for each in slices if (spec := each.get("spec") or {}).get("nodeName")]
    newest: dict[tuple[str, str], int] = {}
    for spec in specs:
        newest[_pool(spec)] = max(newest.get(_pool(spec), 0), _generation(spec))
    current = [spec for spec in specs if _generation(spec) == newest[_pool(spec)]]
    return [_read(spec, device) for spec in current for device in spec.get("devices") or ()]


def _pool(spec: Mapping[str, Any]) -> tuple[str, str]:
    return str(spec.get("driver")), str((spec.get("pool") or {}).get("name"))


def _generation(spec: Mapping[str, Any]) -> int:
    return int((spec.get("pool") or {}).get("generation") or 0)


def _read(spec: Mapping[str, Any], device: Mapping[str, Any]) -> SliceDevice:
    (driver, pool), name = _pool(spec), str(device.get("name"))
    of_driver = {key.removeprefix(f"{driver}/"): value for key, value in (device.get("attributes") or {}).items()}
    words = {key: str(value["string"]) for key, value in of_driver.items() if value.get("string")}
    attribute = next((key for key in PRODUCT if key in words), "")
    product = words.get(attribute, "")
    memory = _bytes(((device.get("capacity") or {}).get("memory") or {}).get("value"))
    card = card_of(product, memory) if product else None
    bus_id = next((words[key].lower() for key in BUS if key in words), "")
    read = Device(
        -1,
        words.get("uuid") or f"{pool}/{name}",
        card.name if card is not None else product or "unknown",
        card.vendor if card is not None else "",
        memory,
        card,
        bus_id=bus_id,
    )
    # What a driver publishes is quoted, or it could become part of the expression; an attribute that is not there
    # would be an error of the whole request.
    selector = f"device.driver == {json.dumps(driver)}"
    if attribute:
        attributes = f"device.attributes[{json.dumps(driver)}]"
        selector += f' && "{attribute}" in {attributes} && {attributes}.{attribute} == {json.dumps(product)}'
    return SliceDevice(str(spec["nodeName"]), driver, pool, name, read, selector)


def _bytes(quantity: Any) -> float:
    text = str(quantity or "0")
    try:
        return float(text) if text.isdecimal() else units.parse(text, "bytes")
    except UsageError:  # in thousandths, say, which no memory is given in
        return 0.0


def slice_fingerprints(devices: Iterable[SliceDevice]) -> list[Fingerprint]:
    """Return a fingerprint of each node that has slices: what is known where no agent of ours runs."""
    by_node: dict[str, dict[str, Device]] = {}
    for each in devices:
        # Two drivers may publish one device; it is one.
        by_node.setdefault(each.node, {}).setdefault(each.device.uuid, each.device)
    return [Fingerprint(node, tuple(some.values()), tool="DRA") for node, some in sorted(by_node.items())]
