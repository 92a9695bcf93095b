"""Hygon's `hy-smi`: percents only. Sizes and names come from its other commands, where they work."""

from __future__ import annotations

import re
from typing import Final

from strata.fleet.discovery import table
from strata.fleet.discovery.observation import MIB, BadOutput, Found, card_of
from strata.fleet.fingerprint import Device

TOOL: Final = "hy-smi"
VENDOR: Final = "Hygon"
UNNAMED: Final = "DCU"

_MEMORY: Final = re.compile(r"(?:HCU|DCU|GPU)\[(\d+)\]\s*:\s*vram Total (Used )?Memory \((MiB|B)\):\s*(\d+)", re.I)
_NAME: Final = re.compile(r"(?:HCU|DCU|GPU)\[(\d+)\]\s*:\s*Card [Ss]eries\s*:\s*(\S.*?)\s*$", re.M)


def parse(text: str, *, memory: str = "", names: str = "") -> Found:
    """Read the table of `hy-smi`, with the outputs of `--showmeminfo vram` and `--showproductname` where there.

    Without `memory` a device has the size of its catalogue card, else 0, and no bytes used: a percent of a size
    that nobody stated is no figure. Raises BadOutput.
    """
    sizes = {
        (int(i), bool(used)): int(n) * (MIB if u == "MiB" else 1) for i, used, u, n in _MEMORY.findall(memory)
    }
    models = {int(i): name for i, name in _NAME.findall(names)}
    header: list[str] = []
    devices: list[Device] = []
    last, is_closed = 0, False
    for number, line in table.lines_of(text):
        words = line.split()
        if not words:
            continue
        if not header:
            header = words if words[0] in ("DCU", "HCU") else []
        elif set(line.strip()) == {"="} or line.startswith("="):
            is_closed = True
            break
        elif words[0].isdecimal():
            if len(words) != len(header):
                raise BadOutput(TOOL, number, f"values for {', '.join(header)}", line)
            devices.append(_device(dict(zip(header, words, strict=True)), number, sizes, models, header[0]))
            last = number
    if not header:
        raise BadOutput(TOOL, 0, "a table whose header begins with DCU or HCU", text[:80])
    if devices and not is_closed:
        raise BadOutput(TOOL, last, "the line of = below the table; the output ends too early")
    return Found("hy-smi", "", tuple(devices))


def _device(
    values: dict[str, str],
    number: int,
    sizes: dict[tuple[int, bool], float],
    models: dict[int, str],
    kind: str,
) -> Device:
    def figure(key: str, unit: str) -> float | None:
        return table.quantity(values.get(key, ""), tool=TOOL, number=number, what=key, unit=unit)

    index = int(table.needed(values[kind], tool=TOOL, number=number, what=kind))
    total = sizes.get((index, False), 0.0)
    card = card_of(models[index], total) if index in models else None
    busy = figure(f"{kind}%", "%")
    mode = values.get("Mode", "")
    # A mode other than Normal costs speed (Hygon's own page); N/A is what old versions always say.
    is_normal = not table.is_known(mode) or mode == "Normal"
    return Device(
        index=index,
        uuid="",
        model=card.name if card is not None else models.get(index, UNNAMED),
        vendor=VENDOR,
        memory_bytes=total or (card.memory_bytes if card is not None else 0.0),
        card=card,
        memory_used_bytes=sizes.get((index, True)),
        utilisation=None if busy is None else busy / 100,
        temperature_c=figure("Temp", "C"),
        power_w=figure("AvgPwr", "W"),
        health=1.0 if is_normal else 0.5,
        faults=() if is_normal else (f"mode-{mode.lower()}",),
    )
