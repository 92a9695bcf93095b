"""Moore Threads' `mthreads-gmi`: two or three rows a card (1.14, 2.0; 2.4.1 adds Perf)."""

from __future__ import annotations

import re
from typing import Final

from strata.fleet.discovery import table
from strata.fleet.discovery.observation import MIB, BadOutput, Found, card_of
from strata.fleet.fingerprint import Device

TOOL: Final = "mthreads-gmi"
VENDOR: Final = "Moore Threads"

_DRIVER: Final = re.compile(r"Driver Version:\s*(\S+)")
_FIRST: Final = re.compile(
    r"(?P<index>\d+)\s+(?P<name>\S.*?)\s*\|\s*(?P<bus>[0-9A-Fa-f:.]+)\s*\|\s*(?P<busy>\S+)\s+(?P<memory>\S.*?)\s*"
)
_SECOND: Final = re.compile(r"\s+(?P<kind>[A-Za-z]\S*)[^|]*\|\s*\d+x\(\d+x\)\s*\|\s*(?P<temp>\S+).*")
_MEMORY: Final = re.compile(r"(\d+)MiB\s*\(\s*(\d+)MiB\s*\)")


def parse(text: str) -> Found:
    """Read the card table. Raises BadOutput."""
    driver, has_header = "", False
    first: re.Match[str] | None = None
    last, is_closed = 0, False
    devices: list[Device] = []
    for number, line in table.lines_of(text):
        if match := _DRIVER.search(line):
            driver = match[1]
        if line.strip().startswith("Processes"):
            break
        if not has_header:
            has_header = bool(re.match(r"ID\s+Name\b", line))
        elif first is not None:
            second = _SECOND.fullmatch(line)
            if second is None:
                raise BadOutput(
                    TOOL, number, "the card's second row with its lanes and temperature", line or "nothing"
                )
            devices.append(_device(first, second, number))
            first, is_closed, last = None, False, number
        elif re.match(r"\d", line) and "|" in line:
            first, last = _FIRST.fullmatch(line.rstrip()), number
            if first is None:
                raise BadOutput(TOOL, number, "ID, Name, PCIe address, %GPU and memory", line)
        elif line.startswith(("-----", "+-----")):
            is_closed = True
    if not has_header:
        raise BadOutput(TOOL, 0, "a table whose header begins with ID and Name", text[:80])
    if first is not None or (devices and not is_closed):
        raise BadOutput(TOOL, last, "the rest of the table; the output ends too early")
    return Found("mthreads-gmi", driver, tuple(devices))


def _device(first: re.Match[str], second: re.Match[str], number: int) -> Device:
    memory = _MEMORY.fullmatch(first["memory"])
    if memory is None or int(memory[1]) > int(memory[2]) or int(memory[2]) == 0:
        raise BadOutput(TOOL, number - 1, "memory as used MiB(total MiB)", first["memory"])
    busy = table.quantity(first["busy"], tool=TOOL, number=number - 1, what="%GPU", unit="%")
    card = card_of(first["name"], int(memory[2]) * MIB)
    return Device(
        index=int(first["index"]),
        uuid="",
        model=card.name if card is not None else first["name"],
        vendor=VENDOR,
        memory_bytes=int(memory[2]) * MIB,
        card=card,
        memory_used_bytes=int(memory[1]) * MIB,
        bus_id=first["bus"],
        utilisation=None if busy is None else busy / 100,
        temperature_c=table.quantity(second["temp"], tool=TOOL, number=number, what="Temp", unit="C"),
    )
