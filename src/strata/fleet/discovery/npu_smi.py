"""Huawei's `npu-smi info`, two rows a chip, and `npu-smi info -t topo`.

Read by their headers, so that widths (24.1, 26.0) and columns (`Phy-ID` of dual-die packages, `Device` of the 310,
`Chip-Logic-ID` of old ones) may change.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from strata.fleet.discovery import table
from strata.fleet.discovery.observation import MIB, BadOutput, Found, card_of
from strata.fleet.discovery.table import Matrix
from strata.fleet.fingerprint import Device

TOOL: Final = "npu-smi info"
VENDOR: Final = "Huawei"
_PACKAGE: Final = "Ascend910C-die"
_NO_ID: Final = -1


def parse_info(text: str) -> Found:
    """Read the device table; an empty one (a driver, no chip) gives no devices. Raises BadOutput."""
    version = re.search(r"\bVersion:\s*(\S+)", text)
    rows = table.card_rows(
        text,
        tool=TOOL,
        headers=("NPU", "Name", "Health"),
        under=r"AICore\(%\)|NPU Util\(%\)|Memory-Usage",
        ends="Process id",
    )
    devices = [(upper["NPU"], _device(upper, upper_at, lower, number)) for upper, upper_at, lower, number in rows]
    return Found("npu-smi", version[1] if version else "", _boards(devices))


def parse_topology(text: str) -> Matrix:
    """Read the link matrix, by logic ids (NPU0) or physical ids (Phy-ID0). Raises BadOutput."""
    return table.matrix(text, tool=f"{TOOL} -t topo", prefixes=("NPU", "Phy-ID"))


def _device(upper: dict[str, str], upper_at: int, lower: dict[str, str], at: int) -> Device:
    def figure(values: dict[str, str], key: str, number: int) -> float | None:
        return table.quantity(values.get(key, ""), tool=TOOL, number=number, what=key)

    used, total = _memory(lower, at)
    ids = [figure(lower, key, at) for key in ("Phy-ID", "Chip-Logic-ID", "Device")]
    busy = figure(lower, "AICore(%)", at)
    name, health = upper["Name"], upper.get("Health", "")
    is_well = health.upper() == "OK"
    return Device(
        index=next((int(device_id) for device_id in ids if device_id is not None), _NO_ID),
        uuid="",
        model=name,
        vendor=VENDOR,
        memory_bytes=total,
        memory_used_bytes=used,
        bus_id=lower.get("Bus-Id", ""),
        utilisation=None if busy is None else busy / 100,
        temperature_c=figure(upper, "Temp(C)", upper_at),
        power_w=figure(upper, "Power(W)", upper_at),
        # Warning, Alarm, Critical, UNKNOWN: only a warning may still be used.
        health=1.0 if is_well else 0.5 if health.upper() == "WARNING" else 0.0,
        faults=() if is_well else (f"npu-{health.lower()}",),
    )


def _memory(lower: dict[str, str], at: int) -> tuple[float, float]:
    # Training cards show 0/0 for DDR and their memory as HBM; the 310 has DDR only.
    pairs = [lower[key] for key in ("HBM-Usage(MB)", "Memory-Usage(MB)") if key in lower]
    for pair in pairs:
        match = re.fullmatch(r"(\d+)/(\d+)", pair)
        if match is None and table.is_known(pair):
            raise BadOutput(TOOL, at, "memory as used / total", pair)
        if match is not None and int(match[2]) > 0:
            if int(match[1]) > int(match[2]):
                raise BadOutput(TOOL, at, "no more memory used than there is", pair)
            return int(match[1]) * MIB, int(match[2]) * MIB
    raise BadOutput(TOOL, at, "a memory size above 0", " ".join(pairs))


def _boards(npu_devices: list[tuple[str, Device]]) -> tuple[Device, ...]:
    npus = [npu for npu, _ in npu_devices]
    devices = []
    for position, (npu, device) in enumerate(npu_devices):
        dies = npus.count(npu)
        # Packages of two dies say only `Ascend910`; of those there is but one kind, the 910C.
        name = _PACKAGE if dies == 2 and device.model.lower() in ("ascend910", "910") else device.model
        card = card_of(name, device.memory_bytes)
        model = card.name if card is not None else device.model
        # In a container the ids may start anywhere; the NPU's own is what the topology and the drivers use.
        own = int(npu) if len(set(npus)) == len(npus) and npu.isdecimal() else position
        index = own if device.index == _NO_ID else device.index
        board = f"npu{npu}" if dies > 1 else ""
        devices.append(replace(device, index=index, model=model, card=card, board=board))
    return tuple(devices)
