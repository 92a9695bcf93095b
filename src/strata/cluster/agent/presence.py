"""Devices that drop off the bus, of any vendor: their configuration then reads as all ones, or not at all.

While the kernel resets a link, reading the configuration waits (2 s were seen): nothing else may wait for it.

References
----------
PCI Express Base 2.3.2: a read of a configuration that nobody answers gives all ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from strata.cluster.agent.watch import Fault, opened

LOOKS: Final = 2
"""Looks in a row at which a device must be off the bus: a reset takes it off for some milliseconds."""

_NOBODY: Final = b"\xff\xff"


class Presence:
    """Whether some devices are on the bus. Those that may sleep are left alone: a look would wake them."""

    def __init__(self, addresses: Iterable[str], *, root: Path = Path("/sys")) -> None:
        self.addresses = tuple(addresses)
        folders = {address: root / "bus/pci/devices" / address for address in self.addresses}
        descriptors = {
            address: opened(folder / "config") for address, folder in folders.items() if not _may_sleep(folder)
        }
        self._configs = {address: fd for address, fd in descriptors.items() if fd is not None}
        self._absent = dict.fromkeys(self._configs, 0)

    def poll(self, now_s: float) -> list[Fault]:
        """Return the devices that are gone since the last looks, each once."""
        faults = []
        for address, fd in self._configs.items():
            self._absent[address] = self._absent[address] + 1 if _is_absent(fd) else 0
            if self._absent[address] == LOOKS:
                faults.append(Fault(now_s, "lost", address))
        return faults

    def close(self) -> None:
        """Close the files."""
        for fd in self._configs.values():
            os.close(fd)
        self._configs = {}


def _may_sleep(folder: Path) -> bool:
    with suppress(OSError):
        return (folder / "power/control").read_text(encoding="ascii").strip() == "auto"
    return False


def _is_absent(fd: int) -> bool:
    try:
        return os.pread(fd, 2, 0) == _NOBODY
    except OSError:
        return True
