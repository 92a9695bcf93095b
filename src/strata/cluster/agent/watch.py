"""Faults as they happen: bus errors a device has counted since the last look, and devices that are off the bus.

A look reads four small files a device that stay open (`BusWatch.poll`), some microseconds each; ten a second cost
next to nothing. Corrected errors are left to the slow loop: single ones are no fault, and their rate needs time.

A device whose link broke is not asked any more, so its own counter misses the fatal error that broke it: seen on
Linux 6.1 with the kernel's aer_inject. The count of the root port above it has the error.

References
----------
Linux Documentation/ABI: testing/sysfs-bus-pci-devices-aer_stats. PCI Express Base 2.3.2: a read of a configuration
that nobody answers gives all ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from strata.fleet.local import aer_count

GONE_LOOKS: Final = 2
"""Looks in a row at which a device must be off the bus: a reset takes it off for some milliseconds."""

_KINDS: Final = ("fatal", "nonfatal")
_NOBODY: Final = b"\xff\xff"


@dataclass(frozen=True, slots=True)
class Fault:
    """What befell a device, and when. word: of `fleet.health`; device: its uuid or its address on the bus.

    Without a device it only says that something happened, and that one should look.
    """

    at_s: float
    word: str = ""
    device: str = ""


@dataclass(slots=True)
class _Device:
    address: str
    counters: dict[str, int]
    config: int | None
    texts: dict[str, bytes] = field(default_factory=dict)
    gone_looks: int = 0


@dataclass(slots=True)
class _Port:
    """A root port's count of fatal errors, and the watched devices below it."""

    fd: int
    text: bytes
    devices: list[str] = field(default_factory=list)


class BusWatch:
    """The bus errors of some devices. What is not there, or may not be read, is not watched."""

    def __init__(self, addresses: Iterable[str], *, root: Path = Path("/sys")) -> None:
        self.addresses = tuple(addresses)
        self._ports = _ports(root / "bus/pci/devices" / one for one in self.addresses)
        self._devices = [_opened(root / "bus/pci/devices" / one) for one in self.addresses]
        for device in self._devices:
            device.texts = {kind: _read(fd) for kind, fd in device.counters.items()}

    def poll(self, now_s: float) -> list[Fault]:
        """Return what happened since the last look; a device that is gone is told once."""
        faults = []
        for device in self._devices:
            for kind, fd in device.counters.items():
                before, now = device.texts[kind], _read(fd)
                if now and now != before:
                    device.texts[kind] = now
                    if _grown(now, before, kind):
                        faults.append(Fault(now_s, f"aer-{kind}", device.address))
            device.gone_looks = device.gone_looks + 1 if _is_gone(device) else 0
            if device.gone_looks == GONE_LOOKS:
                faults.append(Fault(now_s, "lost", device.address))
        for port in self._ports:
            before, port.text = port.text, _read(port.fd) or port.text
            if port.text != before and port.text.strip().isdigit() and int(port.text) > 0:
                # Of several devices below it nobody knows which; the tools will, if it is one.
                whose = port.devices[0] if len(port.devices) == 1 else ""
                faults.append(Fault(now_s, "aer-fatal", whose))
        return faults

    def close(self) -> None:
        """Close the files."""
        for device in self._devices:
            for fd in (*device.counters.values(), *([] if device.config is None else [device.config])):
                os.close(fd)
        for port in self._ports:
            os.close(port.fd)
        self._devices, self._ports = [], []


def _ports(folders: Iterable[Path]) -> list[_Port]:
    found: dict[Path, _Port] = {}
    for folder in folders:
        for above in folder.resolve().parents:
            path = above / "aer_rootport_total_err_fatal"
            if path not in found and (fd := _open(path)) is not None:
                found[path] = _Port(fd, _read(fd))
            if path in found:
                found[path].devices.append(folder.name)
                break
    return list(found.values())


def _opened(folder: Path) -> _Device:
    counters = {kind: fd for kind in _KINDS if (fd := _open(folder / f"aer_dev_{kind}")) is not None}
    # Reading the configuration would keep awake a device that may sleep.
    may_sleep = False
    with suppress(OSError):
        may_sleep = (folder / "power/control").read_text(encoding="ascii").strip() == "auto"
    return _Device(folder.name, counters, None if may_sleep else _open(folder / "config"))


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # the kernel does not count, or the device does not
        return None


def _read(fd: int) -> bytes:
    try:
        return os.pread(fd, 4096, 0)
    except OSError:  # the kernel has taken the device away; its configuration tells
        return b""


def _grown(now: bytes, before: bytes, kind: str) -> bool:
    count, earlier = (aer_count(text.decode("ascii", errors="replace"), kind) for text in (now, before))
    # A count that fell was restarted: what it shows happened since.
    return count is not None and earlier is not None and count != earlier and count > 0


def _is_gone(device: _Device) -> bool:
    if device.config is None:
        return False
    try:
        return os.pread(device.config, 2, 0) == _NOBODY
    except OSError:
        return True
