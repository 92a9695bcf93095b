"""`nvidia-smi`, for nodes without `nvidia-ml-py`: a query as CSV, and the matrix of `topo -m`."""

from __future__ import annotations

import csv
from typing import Final

from strata.fleet.discovery import table
from strata.fleet.discovery.observation import MIB, BadOutput, Found, card_of
from strata.fleet.discovery.table import Matrix
from strata.fleet.fingerprint import Device

TOOL: Final = "nvidia-smi --query-gpu"
FIELDS: Final = (
    "index",
    "uuid",
    "name",
    "pci.bus_id",
    "memory.total",
    "memory.used",
    "utilization.gpu",
    "temperature.gpu",
    "power.draw",
    "driver_version",
)
COMMAND: Final = ("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")


def parse_query(text: str) -> Found:
    """Read the output of `COMMAND`. Raises BadOutput, also for `No devices were found`, which is no CSV."""
    devices, driver = [], ""
    if not text.endswith("\n"):
        raise BadOutput(TOOL, text.count("\n") + 1, "a whole line for each card", text.rpartition("\n")[2])
    for number, line in table.lines_of(text):
        if not line.strip():
            continue
        words = [word.strip() for word in next(csv.reader([line]))]
        if len(words) != len(FIELDS):
            raise BadOutput(TOOL, number, f"{len(FIELDS)} values: {', '.join(FIELDS)}", line)
        values = dict(zip(FIELDS, words, strict=True))
        devices.append(_device(values, number))
        driver = values["driver_version"]
    if not devices:
        raise BadOutput(TOOL, 0, "a line for each card")
    return Found("nvidia-smi", driver, tuple(devices))


def parse_topology(text: str) -> Matrix:
    """Read `nvidia-smi topo -m`: NICs are left out, NV# is NVLink. Raises BadOutput."""
    return table.matrix(text, tool="nvidia-smi topo -m", prefixes=("GPU",))


def _device(values: dict[str, str], number: int) -> Device:
    def figure(key: str) -> float | None:
        return table.quantity(values[key], tool=TOOL, number=number, what=key)

    total = table.needed(values["memory.total"], tool=TOOL, number=number, what="memory.total") * MIB
    used, busy = figure("memory.used"), figure("utilization.gpu")
    card = card_of(values["name"], total)
    return Device(
        index=int(table.needed(values["index"], tool=TOOL, number=number, what="index")),
        uuid=values["uuid"] if table.is_known(values["uuid"]) else "",
        model=card.name if card is not None else values["name"],
        vendor="NVIDIA",
        memory_bytes=total,
        card=card,
        memory_used_bytes=None if used is None else used * MIB,
        bus_id=values["pci.bus_id"],
        utilisation=None if busy is None else busy / 100,
        temperature_c=figure("temperature.gpu"),
        power_w=figure("power.draw"),
    )
