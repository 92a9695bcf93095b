"""RDMA ports of this machine, InfiniBand and RoCE, as sysfs shows them.

References
----------
Linux Documentation/ABI: stable/sysfs-class-infiniband (state, rate, link_layer, gids, gid_attrs/types).
InfiniBand Architecture Specification, volume 1, 4.1.1: a GID's upper 64 bits are its subnet's prefix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from strata.fleet.local import Distance, LocalTopology, PciDevice, distance

Fabric = Literal["infiniband", "roce-v2", "roce-v1", "ethernet"]
"""ethernet: a port without an address for RoCE, or iWARP."""

_RATE: Final = re.compile(r"([0-9.]+) Gb/sec")
_NO_GID: Final = ":".join(["0000"] * 8)
_DISTANCES: Final = get_args(Distance)


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """One port of one card. rate_bytes_per_s: one direction, as negotiated; 0 where nothing is plugged in.

    subnet: the prefix of an InfiniBand subnet. distance: of the accelerator that is nearest; "" where there is
    none or its place is not known.
    """

    card: str
    port: int
    fabric: Fabric
    is_active: bool = False
    rate_bytes_per_s: float = 0.0
    subnet: str = ""
    bus_id: str = ""
    numa_node: int | None = None
    distance: Distance | Literal[""] = ""


def read_ports(
    machine: LocalTopology, bus_ids: Iterable[str], *, root: Path = Path("/sys")
) -> tuple[RdmaPort, ...]:
    """Return the ports of physical cards, by card and port. bus_ids: of the accelerators.

    A virtual function is left out where its card is here: both send over one wire.
    """
    accelerators = [machine.devices[bus_id] for bus_id in bus_ids if bus_id in machine.devices]
    ports: list[RdmaPort] = []
    for card in sorted((root / "class/infiniband").glob("*")):
        address = (card / "device").resolve().name
        if (card / "device/physfn").resolve().name in machine.devices:
            continue
        folders = sorted((card / "ports").glob("[0-9]*"), key=lambda folder: int(folder.name))
        ports.extend(_port(card.name, folder, machine.devices.get(address), accelerators) for folder in folders)
    return tuple(ports)


def send_bytes_per_s(ports: Sequence[RdmaPort]) -> float | None:
    """Return what the accelerators of a node send to other nodes at most, one direction; None without a port.

    Ports across sockets from every accelerator are for storage or the host where others are nearer.
    """
    active = [port for port in ports if port.is_active and port.rate_bytes_per_s > 0]
    near = [port for port in active if port.distance not in ("", "sys")]
    return sum(port.rate_bytes_per_s for port in near or active) or None


def rdma_group(ports: Sequence[RdmaPort]) -> str:
    """Return a word that nodes of one InfiniBand subnet share; "" without one.

    Of RoCE sysfs does not tell who is reached: labels say that. Subnets of the default prefix look like one.
    """
    subnets = sorted({port.subnet for port in ports if port.is_active and port.subnet})
    return f"ib-{subnets[0].replace(':', '')}" if subnets else ""


def _port(card: str, folder: Path, pci: PciDevice | None, accelerators: Sequence[PciDevice]) -> RdmaPort:
    gids = {int(path.name): _text(path) for path in (folder / "gids").glob("[0-9]*")}
    used = sorted(index for index, gid in gids.items() if gid not in ("", _NO_GID))
    is_infiniband = _text(folder / "link_layer") == "InfiniBand"
    rate = _RATE.match(_text(folder / "rate"))
    distances = [distance(pci, accelerator) for accelerator in accelerators] if pci is not None else []
    is_active = _text(folder / "state").endswith("ACTIVE")
    return RdmaPort(
        card,
        int(folder.name),
        "infiniband" if is_infiniband else _roce(_text(folder / f"gid_attrs/types/{index}") for index in used),
        is_active=is_active,
        rate_bytes_per_s=float(rate[1]) * 1e9 / 8 if rate is not None and is_active else 0.0,
        subnet=gids[used[0]][:19] if is_infiniband and used else "",
        bus_id=pci.address if pci is not None else "",
        numa_node=pci.numa_node if pci is not None else None,
        distance=min(distances, key=_DISTANCES.index, default=""),
    )


def _roce(types: Iterable[str]) -> Fabric:
    kinds = set(types)
    if "RoCE v2" in kinds:
        return "roce-v2"
    return "roce-v1" if "IB/RoCE v1" in kinds else "ethernet"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:  # an index without an address, or a card that is just going away
        return ""
