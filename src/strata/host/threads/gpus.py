"""Accelerators and the NUMA nodes they hang off, from sysfs and the driver's folder; their processes from NVML.

scx_layered binds a process that uses several GPUs to the node of whichever it saw last; here all are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from strata.fleet import local, nvml
from strata.host.threads.snapshot import Gpu

CLASSES: Final = (0x0300, 0x0302, 0x0380, 0x1200)
"""PCI: display, 3D and other display controllers, processing accelerators."""
VENDORS: Final[Mapping[int, str]] = {
    0x10DE: "/dev/nvidia{}",
    0x19E5: "/dev/davinci{}",
    0x1002: "",
    0x1D94: "",
    0xCABC: "/dev/cambricon_dev{}",
    0x1ED5: "/dev/mtgpu.{}",
}
"""Makers of accelerators by PCI number (NVIDIA, Huawei, AMD, Hygon, Cambricon, Moore Threads), and their files."""


def gpus(root: Path = Path("/")) -> tuple[Gpu, ...]:
    """Return the accelerators below a root with proc and sys, in order of their PCI addresses.

    Processes are those NVML names; without NVML, or below another root, there are none.
    """
    machine = local.probe(root / "sys")
    minors = _minors(root / "proc/driver/nvidia/gpus")
    gpus: list[Gpu] = []
    counts: dict[int, int] = {}
    for address, device in sorted(machine.devices.items()):
        if device.class_id >> 8 not in CLASSES or device.vendor_id not in VENDORS:
            continue
        number = counts.setdefault(device.vendor_id, 0)
        counts[device.vendor_id] += 1
        file = VENDORS[device.vendor_id].format(minors.get(address, number))
        cpus = machine.cpus.get(device.numa_node, ()) if device.numa_node is not None else ()
        gpus.append(Gpu(len(gpus), address, file, device.numa_node, cpus))
    return with_processes(tuple(gpus), nvml.load()) if root == Path("/") else tuple(gpus)


def with_processes(gpus: tuple[Gpu, ...], library: Any | None) -> tuple[Gpu, ...]:
    """Return GPUs with the processes NVML names for them."""
    if library is None:
        return gpus
    by_address = {gpu.address: gpu for gpu in gpus}
    for index in range(library.nvmlDeviceGetCount()):
        try:
            handle = library.nvmlDeviceGetHandleByIndex(index)
            bus = library.nvmlDeviceGetPciInfo(handle).busId
            running = library.nvmlDeviceGetComputeRunningProcesses(handle)
        except library.NVMLError:  # a device that just fell off the bus; the others still answer
            continue
        address = local.pci_address(bus.decode() if isinstance(bus, bytes) else bus)
        if address in by_address:
            pids = frozenset(int(process.pid) for process in running)
            by_address[address] = replace(by_address[address], pids=pids)
    return tuple(by_address.values())


def _minors(folder: Path) -> dict[str, int]:
    """Return the number of each NVIDIA card's file, by PCI address."""
    numbers = {}
    for card in folder.glob("*"):
        try:
            text = (card / "information").read_text(encoding="ascii", errors="replace")
        except OSError:  # a card that is just going away
            continue
        if (number := re.search(r"Device Minor:\s*(\d+)", text)) is not None:
            numbers[local.pci_address(card.name)] = int(number[1])
    return numbers
