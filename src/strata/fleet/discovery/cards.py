"""What a fleet file says of devices that are alike: their card, how they are joined."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Final

from strata.decision import Trust
from strata.fleet.accelerator import Accelerator
from strata.fleet.catalogue import card_named
from strata.fleet.discovery.fleet_file import UNKNOWN_MEMORY, Card, Told
from strata.fleet.fingerprint import Device, Fingerprint

_RATES: Final = {
    "fp16": ("fp16_flops", "fp16_flops_measured"),
    "fp32": ("fp32_flops", "fp32_flops_measured"),
    "fp8": ("fp8_flops", None),
    "memory_bandwidth": ("memory_bandwidth_bytes_per_s", "memory_bandwidth_measured_bytes_per_s"),
}


def card_of_devices(devices: Sequence[Device], *, source: str) -> Card:
    """Return the card of devices of one model: by its name where it is as the catalogue has it, else inline.

    What a benchmark measured on these devices stands beside what the catalogue has on paper; of several the least.
    """
    first = devices[0]
    if first.card is None:
        return Card(Told(first.model, Trust.MEASURED, source), _own(first, source))
    usual = card_named(first.card.name)
    name = Told(first.card.name, Trust.MEASURED, f"{source}: {first.model}")
    rates: dict[str, Told] = {}
    for key, (nominal, measured) in _RATES.items():
        on_paper: float | None = getattr(first.card, nominal)
        here = _measured(devices, measured, usual)
        if on_paper is not None:
            rates[key] = Told(_rate(key, on_paper), first.card.trust, "the catalogue, on paper")
        if here:
            figure = Told(_rate(key, min(here)), Trust.MEASURED, f"{source}'s benchmark, slowest of {len(here)}")
            rates.setdefault(key, figure)
            rates[f"{key}_measured"] = figure
    if usual is not None and not any(key.endswith("_measured") for key in rates):
        return Card(name)
    return Card(name, _own(first, source) | rates)


def _measured(devices: Sequence[Device], attribute: str | None, usual: Accelerator | None) -> list[float]:
    """Return what was measured on these devices, not elsewhere on their like."""
    if attribute is None:
        return []
    rates = [getattr(device.card, attribute) for device in devices if device.card is not None]
    known = None if usual is None else getattr(usual, attribute)
    return [rate for rate in rates if rate not in (None, known)]


def intra_bandwidth(print_: Fingerprint, places: Sequence[int], *, source: str) -> Told | None:
    """Return the slowest link of some devices of a node, None for a single one."""
    pairs = set(combinations(sorted(places), 2))
    if not pairs:
        return None
    matrix = print_.bandwidth()
    trust = Trust.MEASURED if print_.measured.keys() >= pairs else Trust.ASSUMED
    links = ", ".join(sorted({print_.links.get(pair, "sys") for pair in pairs}))
    return Told(show_rate(min(float(matrix[pair]) for pair in pairs)), trust, f"{source}: {links}")


def show_rate(bytes_per_s: float) -> str:
    """Return a bandwidth as a fleet file has it."""
    return f"{bytes_per_s / 1e9:.4g}GB/s"


def _own(device: Device, source: str) -> dict[str, Told]:
    memory = Told(f"{device.memory_bytes / 1e9:.4g}GB", Trust.MEASURED, source)
    if device.memory_bytes <= 0:
        memory = Told(UNKNOWN_MEMORY, Trust.ASSUMED, f"{source} does not say")
    return {"vendor": Told(device.vendor, Trust.MEASURED, source), "memory": memory}


def _rate(key: str, per_s: float) -> str:
    return show_rate(per_s) if key == "memory_bandwidth" else f"{per_s / 1e12:.4g}TFLOPS"
