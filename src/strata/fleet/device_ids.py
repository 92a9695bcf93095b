"""Which device of a node a device plugin means by an id: plugins name devices each in a way of its own.

NVIDIA's gives the UUID (or, so configured, the number; a shared one with `::` and which share); AMD's and Hygon's
the address on the bus; Huawei's a name that ends in the number its own tool has, as `Ascend910-3`.
"""

from __future__ import annotations

import re
from typing import Final

from strata.fleet.fingerprint import Fingerprint

_NUMBERED: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9]*-)?([0-9]{1,3})")
_BUS: Final = re.compile(r"(?:([0-9a-f]+):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")


def place_of_id(fingerprint: Fingerprint, device_id: str, *, vendor: str) -> int | None:
    """Return the place in `devices` of what a plugin of `vendor` calls so; None where that is none, or several."""
    name = device_id.partition("::")[0].lower()
    of_vendor = [(place, device) for place, device in enumerate(fingerprint.devices) if device.vendor == vendor]
    named = [place for place, device in of_vendor if device.uuid.lower() == name]
    if not named and (address := _address(name)):
        named = [place for place, device in of_vendor if _address(device.bus_id.lower()) == address]
    if not named and (number := _NUMBERED.fullmatch(name)):
        named = [place for place, device in of_vendor if device.index == int(number[1])]
    return named[0] if len(named) == 1 else None


def _address(text: str) -> tuple[int, str] | None:
    """Return a PCI address's domain and the rest: tools write the domain in four digits, in eight, or not."""
    match = _BUS.fullmatch(text)
    return None if match is None else (int(match[1] or "0", 16), match[2])
