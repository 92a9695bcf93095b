"""Cambricon's `cnmon`: two rows a card, read by their headers (v4.20 and v5.10 have different ones)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from strata.fleet.discovery import table
from strata.fleet.discovery.observation import MIB, BadOutput, Found, card_of
from strata.fleet.fingerprint import Device

TOOL: Final = "cnmon"
VENDOR: Final = "Cambricon"


def parse(text: str) -> Found:
    """Read the card table. Raises BadOutput."""
    devices = []
    match = re.search(r"\bDriver\s+v?(\d[\w.]*)", text)
    driver = match[1] if match else ""
    rows = table.card_rows(text, tool=TOOL, headers=("Card", "Name"), under="Memory-Usage", ends="Processes")
    for upper, _, lower, number in rows:
        shown = re.fullmatch(r"v?(\d[\w.]*)", upper.get("Driver", ""))
        driver = driver or (shown[1] if shown else "")
        devices.append(_device(upper, lower, number))
    return Found("cnmon", driver, _boards(devices))


def _device(upper: dict[str, str], lower: dict[str, str], number: int) -> Device:
    def figure(text: str | None, what: str, unit: str = "") -> float | None:
        return table.quantity(text or "", tool=TOOL, number=number, what=what, unit=unit)

    memory = re.fullmatch(r"(\d+)MiB/(\d+)MiB", lower.get("Memory-Usage", ""))
    if memory is None or int(memory[1]) > int(memory[2]) or int(memory[2]) == 0:
        raise BadOutput(TOOL, number, "memory as used MiB / total MiB", lower.get("Memory-Usage", ""))
    index = table.needed(upper["Card"], tool=TOOL, number=number, what="Card")
    busy = figure(upper.get("Util"), "Util", "%")
    errors = figure(upper.get("Ecc-Error"), "Ecc-Error")
    faults = {"not-inited": upper.get("Inited", "On") != "On", "ecc-error": bool(errors)}
    card = card_of(upper["Name"], int(memory[2]) * MIB)
    return Device(
        index=int(index),
        uuid="",
        model=card.name if card is not None else upper["Name"],
        vendor=VENDOR,
        memory_bytes=int(memory[2]) * MIB,
        card=card,
        memory_used_bytes=int(memory[1]) * MIB,
        bus_id=upper.get("Bus-Id", ""),
        utilisation=None if busy is None else busy / 100,
        temperature_c=figure(lower.get("Temp"), "Temp", "C"),
        power_w=figure(lower.get("Pwr:Usage/Cap", "").partition("/")[0], "power", "W"),
        # cnmon counts errors since boot, so one alone says little; a card that is not initialised cannot be used.
        health=0.0 if faults["not-inited"] else 0.5 if faults["ecc-error"] else 1.0,
        faults=tuple(word for word, holds in faults.items() if holds),
    )


def _boards(devices: list[Device]) -> tuple[Device, ...]:
    """Pair the dies of dual-die boards: cnmon's neighbours, which is assumed, and only if none is left."""
    models = {device.model for device in devices if device.card is not None and device.model.endswith("-die")}
    boards: dict[int, str] = {}
    for model in sorted(models):
        dies = sorted(device.index for device in devices if device.model == model)
        if len(dies) % 2 == 0:
            boards.update({index: f"mlu{dies[i - i % 2]}" for i, index in enumerate(dies)})
    return tuple(replace(device, board=boards.get(device.index, "")) for device in devices)
