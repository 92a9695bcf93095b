"""Faults as they happen: errors that the kernel has counted on a device's bus since the last look.

A look reads three small files a device that stay open, some microseconds each; ten a second cost next to nothing.
Corrected errors are left to the slow loop: single ones are no fault, and their rate needs time.

A device whose link broke is not asked any more, so its own counter misses the fatal error that broke it: seen on
Linux 6.1 with the kernel's aer_inject. The count of the root port above it has the error.

A device of any vendor that drops off the bus has a configuration that reads as all ones, or not at all. While the
kernel resets a link, reading it waits (2 s were seen): nothing else may wait for it.

Where tracefs may be had (root, usually) and the kernel handles AER itself, its tracepoint `ras:aer_event` tells of
errors some tenths of a second sooner, in a trace of our own.

References
----------
Linux Documentation/trace/ftrace.rst (instances); the line's form: include/ras/ras_event.h, aer_event.
PCI Express Base 2.3.2: a read of a configuration that nobody answers gives all ones.
Linux Documentation/ABI: testing/sysfs-bus-pci-devices-aer_stats.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from strata.fleet.local import aer_count, pci_address

LOOKS: Final = 2
"""Looks in a row at which a device must be off the bus: a reset takes it off for some milliseconds."""

_NOBODY: Final = b"\xff\xff"
MOUNTS: Final = ("kernel/tracing", "kernel/debug/tracing")
EVENT: Final = "events/ras/aer_event/enable"

_LINE: Final = re.compile(r" aer_event: (\S+) PCIe Bus Error: severity=(Fatal|Uncorrected, non-fatal), ")
_MAX_LINE: Final = 1 << 16
_PORT: Final = "aer_rootport_total_err_fatal"


@dataclass(frozen=True, slots=True)
class DeviceFault:
    """What befell a device, and when. word: of `fleet.health`; device: its uuid or its address on the bus.

    Without a device it only says that something happened, and that one should look.
    """

    at_s: float
    word: str = ""
    device: str = ""


@dataclass(slots=True)
class _Count:
    """A file that counts errors, what it held, and the watched devices it counts for."""

    fd: int
    kind: str
    text: bytes
    devices: list[str] = field(default_factory=list)


class BusWatch:
    """The bus errors of some devices. What is not there, or may not be read, is not watched."""

    def __init__(self, addresses: Iterable[str], *, root: Path = Path("/sys")) -> None:
        self.addresses = tuple(addresses)
        self._counts: dict[Path, _Count] = {}
        for address in self.addresses:
            folder = (root / "bus/pci/devices" / address).resolve()
            for kind in ("fatal", "nonfatal"):
                self._add(folder / f"aer_dev_{kind}", kind, address)
            for above in folder.parents:
                if self._add(above / _PORT, "fatal", address):
                    break

    def _add(self, path: Path, kind: str, address: str) -> bool:
        if path not in self._counts:
            if (fd := _opened(path)) is None:
                return False
            self._counts[path] = _Count(fd, kind, _read(fd))
        self._counts[path].devices.append(address)
        return True

    def poll(self, now_s: float) -> list[DeviceFault]:
        """Return what was counted since the last look."""
        faults = []
        for count in self._counts.values():
            before, now = count.text, _read(count.fd)
            if now and now != before:
                count.text = now
                if _has_grown(now, before, count.kind):
                    # Of several devices below one port nobody knows which; the tools will, if it is one.
                    whose = count.devices[0] if len(count.devices) == 1 else ""
                    faults.append(DeviceFault(now_s, f"aer-{count.kind}", whose))
        return list(dict.fromkeys(faults))

    def close(self) -> None:
        """Close the files."""
        for count in self._counts.values():
            os.close(count.fd)
        self._counts = {}


class AerTrace:
    """An instance of the tracer with one event on. `fd` is readable when a line has come."""

    def __init__(self, instance: Path, fd: int) -> None:
        self.instance, self.fd = instance, fd
        self._begun = b""

    def read(self, now_s: float) -> list[DeviceFault]:
        """Return what has come, without waiting; corrected errors are left out."""
        try:
            text = self._begun + os.read(self.fd, _MAX_LINE)
        except BlockingIOError:
            return []
        whole, _, self._begun = text.rpartition(b"\n")
        self._begun = self._begun[-_MAX_LINE:]
        return [
            DeviceFault(now_s, "aer-fatal" if severity == "Fatal" else "aer-nonfatal", pci_address(name))
            for name, severity in _LINE.findall(whole.decode("ascii", errors="replace"))
        ]

    def close(self) -> None:
        """Take the instance away again."""
        os.close(self.fd)
        with suppress(OSError):  # somebody else reads it, or the mount is gone
            self.instance.rmdir()


def start_trace(root: Path = Path("/sys"), *, name: str = "strata") -> AerTrace | None:
    """Start tracing; None where the kernel, the mount or our rights do not allow it."""
    for mount in MOUNTS:
        instance = root / mount / "instances" / name
        try:
            instance.mkdir(exist_ok=True)  # one that a killed agent left is taken over
            (instance / EVENT).write_text("1", encoding="ascii")
            return AerTrace(instance, os.open(instance / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError:
            with suppress(OSError):
                instance.rmdir()
    return None


class Presence:
    """Whether some devices are on the bus. Those that may sleep are left alone: a look would wake them."""

    def __init__(self, addresses: Iterable[str], *, root: Path = Path("/sys")) -> None:
        self.addresses = tuple(addresses)
        folders = {address: root / "bus/pci/devices" / address for address in self.addresses}
        descriptors = {
            address: _opened(folder / "config") for address, folder in folders.items() if not _may_sleep(folder)
        }
        self._configs = {address: fd for address, fd in descriptors.items() if fd is not None}
        self._absent = dict.fromkeys(self._configs, 0)

    def poll(self, now_s: float) -> list[DeviceFault]:
        """Return the devices that are gone since the last looks, each once."""
        faults = []
        for address, fd in self._configs.items():
            self._absent[address] = self._absent[address] + 1 if _is_absent(fd) else 0
            if self._absent[address] == LOOKS:
                faults.append(DeviceFault(now_s, "lost", address))
        return faults

    def close(self) -> None:
        """Close the files."""
        for fd in self._configs.values():
            os.close(fd)
        self._configs = {}


def _opened(path: Path) -> int | None:
    """Return a file's descriptor; None where the kernel or the device has no such file, or we no right to it."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _read(fd: int) -> bytes:
    try:
        return os.pread(fd, 4096, 0)
    except OSError:  # the kernel has taken the device away; `Presence` tells
        return b""


def _has_grown(now: bytes, before: bytes, kind: str) -> bool:
    count, earlier = (_number(text.decode("ascii", errors="replace"), kind) for text in (now, before))
    # A count that fell was restarted: what it shows happened since.
    return count is not None and earlier is not None and count != earlier and count > 0


def _number(text: str, kind: str) -> int | None:
    bare = text.strip()  # a port's is a number alone
    return int(bare) if bare.isdecimal() and bare.isascii() else aer_count(text, kind)


def _may_sleep(folder: Path) -> bool:
    with suppress(OSError):
        return (folder / "power/control").read_text(encoding="ascii").strip() == "auto"
    return False


def _is_absent(fd: int) -> bool:
    try:
        return os.pread(fd, 2, 0) == _NOBODY
    except OSError:
        return True
