"""One machine's fingerprint from all that can be asked: vendors' tools, NVML, sysfs. What is missing is noted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from strata.errors import StrataError
from strata.fleet import health, local
from strata.fleet.discovery import cnmon, hy_smi, mthreads_gmi, npu_smi, nvidia_smi, nvml, tools
from strata.fleet.discovery.observation import Found
from strata.fleet.discovery.table import Matrix
from strata.fleet.fingerprint import Device, Fingerprint
from strata.fleet.health import DeviceReading
from strata.fleet.nvml import load
from strata.fleet.rdma import read_ports

T = TypeVar("T")

Run = Callable[[Sequence[str]], str | None]
"""Returns a command's output, None where it is not here; raises StrataError. `tools.run` in earnest."""


@dataclass(frozen=True, slots=True)
class Collected:
    """A fingerprint, and the counters its health was judged by: give them to a later `collect`.

    answered: vendors whose tool told of their devices. failed: those whose tool is here but gave no answer, so
    that nothing is known; of the others there is no tool, or no driver that is loaded.
    """

    fingerprint: Fingerprint
    readings: Mapping[str, DeviceReading] = field(default_factory=dict)
    answered: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()


def collect(
    node: str,
    *,
    now_s: float,
    before: Mapping[str, DeviceReading] | None = None,
    root: Path = Path("/sys"),
    run: Run = tools.run,
    load_nvml: Callable[[], Any] = load,
) -> Collected:
    """Return what this machine has. A tool that is missing is nothing; one that fails or babbles leaves a note.

    before: readings of an earlier time, by uuid. Figures that are no numbers are left out.
    """
    machine = local.probe(root)
    notes: list[str] = []
    observations: list[Found] = []
    answered: set[str] = set()
    failed: set[str] = set()
    sources: Mapping[str, Callable[[], Found | None]] = {
        nvml.VENDOR: lambda: _nvidia(run, load_nvml, machine, notes, now_s),
        npu_smi.VENDOR: lambda: _huawei(run, machine, notes),
        cnmon.VENDOR: lambda: _observation(run, ["cnmon"], cnmon.parse),
        hy_smi.VENDOR: lambda: _hygon(run, notes),
        mthreads_gmi.VENDOR: lambda: _observation(run, ["mthreads-gmi"], mthreads_gmi.parse),
    }
    for vendor, source in sources.items():
        try:
            observation = source()
        except StrataError as error:
            notes.append(str(error))
            failed.add(vendor)
        else:
            if observation is not None:
                answered.add(vendor)
                observations.append(observation)
    devices: list[Device] = []
    links: dict[tuple[int, int], str] = {}
    readings: dict[str, DeviceReading] = {}
    for observation in observations:
        places = {device.index: len(devices) + i for i, device in enumerate(observation.devices)}
        links |= {
            (places[i], places[j]): link
            for (i, j), link in observation.links.items()
            if i in places and j in places
        }
        for device in observation.devices:
            placed = _placed(device, node, machine)
            reading = observation.readings.get(device.index) or DeviceReading(
                now_s, temperature_c=device.temperature_c
            )
            pci = machine.devices.get(placed.bus_id)
            reading = replace(reading, aer=pci.aer if pci is not None else None)
            readings[placed.uuid] = reading
            devices.append(_judged(placed, health.score(reading, (before or {}).get(placed.uuid))))
    fingerprint = Fingerprint(
        node,
        tuple(devices),
        _with_distances(links, devices, machine),
        can_p2p=all(observation.can_p2p is not False for observation in observations),
        driver=", ".join(observation.driver for observation in observations if observation.driver),
        tool=", ".join(observation.tool for observation in observations),
        notes=tuple(notes),
        ports=read_ports(machine, [device.bus_id for device in devices], root=root),
    )
    return Collected(fingerprint, readings, frozenset(answered), frozenset(failed))


def _noted(source: Callable[[], T], notes: list[str]) -> T | None:
    try:
        return source()
    except StrataError as error:
        notes.append(str(error))
        return None


def _observation(run: Run, command: Sequence[str], parse: Callable[[str], Found]) -> Found | None:
    text = run(command)
    return None if text is None else parse(text)


def _nvidia(
    run: Run, load_nvml: Callable[[], Any], machine: local.LocalTopology, notes: list[str], now_s: float
) -> Found | None:

    def ask() -> Found | None:
        library = load_nvml()
        return None if library is None else nvml.read(library, now_s=now_s)

    # A driver that hangs hangs whoever asks it; nvidia-smi then would as well, so it is not tried.
    observation = tools.limited(ask, nvml.TOOL)
    if observation is not None:
        return observation
    observation = _observation(run, nvidia_smi.COMMAND, nvidia_smi.parse_query)
    return _with_topology(
        observation, ["nvidia-smi", "topo", "-m"], nvidia_smi.parse_topology, run, machine, notes
    )


def _huawei(run: Run, machine: local.LocalTopology, notes: list[str]) -> Found | None:
    observation = _observation(run, ["npu-smi", "info"], npu_smi.parse_info)
    return _with_topology(
        observation, ["npu-smi", "info", "-t", "topo"], npu_smi.parse_topology, run, machine, notes
    )


def _hygon(run: Run, notes: list[str]) -> Found | None:
    text = run(["hy-smi"])
    if text is None:
        return None
    memory = _noted(lambda: run(["hy-smi", "--showmeminfo", "vram"]), notes)
    names = _noted(lambda: run(["hy-smi", "--showproductname"]), notes)
    return hy_smi.parse(text, memory=memory or "", names=names or "")


def _with_topology(
    observation: Found | None,
    command: Sequence[str],
    parse: Callable[[str], Matrix],
    run: Run,
    machine: local.LocalTopology,
    notes: list[str],
) -> Found | None:
    """Add the tool's own matrix: its links, and the NUMA node it names or its CPUs belong to."""
    if observation is None or len(observation.devices) < 2:
        return observation
    text = _noted(lambda: run(command), notes)
    matrix = _noted(lambda: parse(text), notes) if text is not None else None
    if matrix is None:
        return observation
    devices = []
    for device in observation.devices:
        cpus = local.cpu_list(matrix.cpus.get(device.index))
        by_cpu = machine.numa_node_of_cpu(cpus[0]) if cpus else None
        devices.append(replace(device, numa_node=matrix.numa_nodes.get(device.index, by_cpu)))
    return replace(observation, devices=tuple(devices), links=matrix.links)


def _placed(device: Device, node: str, machine: local.LocalTopology) -> Device:
    """Give a device its address as the kernel writes it, the NUMA node of that, and an id no other node has."""
    address = local.pci_address(device.bus_id)
    pci = machine.devices.get(address)
    numa = device.numa_node if pci is None or pci.numa_node is None else pci.numa_node
    own = f"{device.vendor}-{address or device.index}".lower().replace(" ", "-")
    return replace(
        device,
        uuid=device.uuid or f"{node}/{own}",
        bus_id=address,
        numa_node=numa,
        memory_bytes=_finite(device.memory_bytes) or 0.0,
        memory_used_bytes=_finite(device.memory_used_bytes),
        utilisation=_finite(device.utilisation),
        temperature_c=_finite(device.temperature_c),
        power_w=_finite(device.power_w),
    )


def _finite(figure: float | None) -> float | None:
    return figure if figure is not None and math.isfinite(figure) else None


def _judged(device: Device, judgement: health.Health) -> Device:
    # The tool's own word and ours; the worse counts, since they often mean the same fault.
    return replace(
        device,
        health=min(device.health, judgement.score),
        faults=tuple(dict.fromkeys((*device.faults, *judgement.faults))),
    )


def _with_distances(
    links: dict[tuple[int, int], str], devices: Sequence[Device], machine: local.LocalTopology
) -> dict[tuple[int, int], str]:
    """Add, where no tool named a pair's link, how far apart sysfs has them."""
    filled = dict(links)
    for j, other in enumerate(devices):
        for i, device in enumerate(devices[:j]):
            a, b = machine.devices.get(device.bus_id), machine.devices.get(other.bus_id)
            if (i, j) not in filled and a is not None and b is not None:
                filled[i, j] = local.distance(a, b)
    return dict(sorted(filled.items()))
