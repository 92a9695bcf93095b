"""The machine this runs on, as sysfs shows it: NUMA nodes, PCI devices, how far apart they are, their bus errors.

Nothing here needs a driver or a right. What the kernel does not show is None or left out, never guessed.

References
----------
Linux Documentation/ABI: testing/sysfs-bus-pci (numa_node), testing/sysfs-bus-pci-devices-aer_stats (AER counters).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

Distance = Literal["pix", "pxb", "phb", "node", "sys"]
"""How far apart two PCI devices are, nearest first; the words of `nvidia-smi topo -m` and of fingerprints."""

AER_TOTALS: Final[Mapping[str, str]] = {
    "correctable": "TOTAL_ERR_COR",
    "nonfatal": "TOTAL_ERR_NONFATAL",
    "fatal": "TOTAL_ERR_FATAL",
}
"""Kinds of bus errors, in the order of `Aer`, and the name of each kind's total in its file."""

_ADDRESS: Final = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?")


@dataclass(frozen=True, slots=True)
class Aer:
    """Errors a PCIe device has reported since it was found, by what they did to the link."""

    correctable: int = 0
    nonfatal: int = 0
    fatal: int = 0


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One PCI function.

    path: host bridge, then each bridge's address, then its own. numa_node: None where the firmware does not say.
    aer: None where the device or the kernel does not count.
    """

    address: str
    path: tuple[str, ...]
    vendor_id: int = 0
    device_id: int = 0
    class_id: int = 0
    numa_node: int | None = None
    aer: Aer | None = None


@dataclass(frozen=True, slots=True)
class LocalTopology:
    """The CPUs of each NUMA node, and the PCI devices by address."""

    cpus: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    devices: Mapping[str, PciDevice] = field(default_factory=dict)

    def numa_node_of_cpu(self, cpu: int) -> int | None:
        """Return the NUMA node of a CPU."""
        return next((node for node, cpus in self.cpus.items() if cpu in cpus), None)


def probe(root: Path = Path("/sys")) -> LocalTopology:
    """Read the machine below a sysfs root. Folders that are not there give an empty part, not an error."""
    cpus = {
        int(folder.name.removeprefix("node")): cpu_list(_text(folder / "cpulist"))
        for folder in sorted((root / "devices/system/node").glob("node[0-9]*"))
    }
    links = sorted((root / "bus/pci/devices").glob("*"))
    devices = [_device(link) for link in links if _ADDRESS.fullmatch(link.name)]
    return LocalTopology(dict(sorted(cpus.items())), {device.address: device for device in devices})


def distance(a: PciDevice, b: PciDevice) -> Distance:
    """Return what two devices' traffic must cross.

    pix: one switch at most; pxb: several, but no host bridge; phb: one host bridge; node: two of one NUMA node;
    sys: the link between sockets, also where a device's NUMA node is not known.
    """
    if a.path[:1] != b.path[:1]:
        return "node" if a.numa_node is not None and a.numa_node == b.numa_node else "sys"
    shared = 0
    while shared < min(len(a.path), len(b.path)) and a.path[shared] == b.path[shared]:
        shared += 1
    if shared < 2:
        return "phb"
    # Below a shared switch each path has that switch's own port, then the device.
    return "pix" if max(len(a.path), len(b.path)) - shared <= 2 else "pxb"


def pci_address(text: str) -> str:
    """Return an address as sysfs writes it: `00000000:3B:00.0` is `0000:3b:00.0`; "" for what is none."""
    match = _ADDRESS.fullmatch(text.strip().lower())
    if match is None:
        return ""
    domain, bus, slot, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(slot, 16):02x}.{function or '0'}"


def cpu_list(text: str | None) -> tuple[int, ...]:
    """Read `0-3,8` as the kernel writes it; empty for nothing or for what is not a list."""
    cpus: list[int] = []
    for part in (text or "").split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            return ()
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def aer_count(text: str | None, kind: str) -> int | None:
    """Return how many errors a file `aer_dev_<kind>` counts: its total, or the sum of what it lists."""
    counts = {name: int(count) for name, count in re.findall(r"^(\S+) (\d+)$", text or "", re.MULTILINE)}
    if not counts:
        return None
    return counts.get(AER_TOTALS[kind], sum(counts.values()))


def _device(link: Path) -> PciDevice:
    parts = link.resolve().parts
    start = next((i for i, part in enumerate(parts) if part.startswith("pci")), None)
    numa = _text(link / "numa_node")
    counts = [aer_count(_text(link / f"aer_dev_{kind}"), kind) for kind in AER_TOTALS]
    return PciDevice(
        link.name,
        tuple(parts[start:]) if start is not None else (link.name,),
        vendor_id=_hex(_text(link / "vendor")),
        device_id=_hex(_text(link / "device")),
        class_id=_hex(_text(link / "class")),
        numa_node=int(numa) if numa is not None and numa.isdecimal() else None,  # -1: not known
        aer=None if all(count is None for count in counts) else Aer(*(count or 0 for count in counts)),
    )


def _hex(text: str | None) -> int:
    return int(text, 16) if text and re.fullmatch(r"0x[0-9a-fA-F]+", text) else 0


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:  # an attribute this kernel has not, or a device that is just going away
        return None
