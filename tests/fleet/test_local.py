"""The probe of the local machine, on trees of files that look like /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata.fleet import local
from strata.fleet.local import Aer, Distance

SWITCH = "pci0000:00/0000:00:01.0/0000:01:00.0"


def add_device(root: Path, path: str, **attributes: str) -> None:
    """A PCI device at its place below /sys/devices, linked from /sys/bus/pci/devices."""
    folder = root / "devices" / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in attributes.items():
        (folder / name).write_text(text + "\n")
    bus = root / "bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    (bus / folder.name).symlink_to(folder)


def add_numa_node(root: Path, node: int, cpus: str) -> None:
    folder = root / f"devices/system/node/node{node}"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text(cpus + "\n")


def test_numa_nodes_come_with_their_cpus(tmp_path: Path) -> None:
    add_numa_node(tmp_path, 0, "0-2,8")
    add_numa_node(tmp_path, 10, "3-4")
    add_numa_node(tmp_path, 2, "")
    machine = local.probe(tmp_path)
    assert machine.cpus == {0: (0, 1, 2, 8), 2: (), 10: (3, 4)}
    assert machine.numa_node_of_cpu(4) == 10
    assert machine.numa_node_of_cpu(99) is None


def test_a_device_knows_its_ids_its_numa_node_and_its_bridges(tmp_path: Path) -> None:
    add_device(
        tmp_path,
        f"{SWITCH}/0000:02:00.0/0000:03:00.0",
        vendor="0x10de",
        device="0x2335",
        **{"class": "0x030200", "numa_node": "1"},
    )
    (device,) = local.probe(tmp_path).devices.values()
    assert (device.address, device.vendor_id, device.device_id) == ("0000:03:00.0", 0x10DE, 0x2335)
    assert (device.class_id, device.numa_node, device.aer) == (0x030200, 1, None)
    assert device.path == ("pci0000:00", "0000:00:01.0", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0")


def test_a_numa_node_of_minus_one_is_not_known(tmp_path: Path) -> None:
    add_device(tmp_path, "pci0000:00/0000:00:05.0", numa_node="-1")
    assert local.probe(tmp_path).devices["0000:00:05.0"].numa_node is None


@pytest.mark.parametrize(
    ("other", "numa", "expected"),
    [
        (f"{SWITCH}/0000:02:01.0/0000:04:00.0", "0", "pix"),
        (f"{SWITCH}/0000:02:01.0/0000:04:00.0/0000:05:00.0/0000:06:00.0", "0", "pxb"),
        ("pci0000:00/0000:00:02.0/0000:07:00.0", "0", "phb"),
        ("pci0000:80/0000:80:01.0/0000:81:00.0", "0", "node"),
        ("pci0000:80/0000:80:01.0/0000:81:00.0", "1", "sys"),
        ("pci0000:80/0000:80:01.0/0000:81:00.0", "-1", "sys"),
    ],
)
def test_distance_is_what_the_traffic_crosses(tmp_path: Path, other: str, numa: str, expected: Distance) -> None:
    add_device(tmp_path, f"{SWITCH}/0000:02:00.0/0000:03:00.0", numa_node="0")
    add_device(tmp_path, other, numa_node=numa)
    machine = local.probe(tmp_path)
    one, two = machine.devices["0000:03:00.0"], machine.devices[other.rsplit("/", 1)[1]]
    assert local.distance(one, two) == expected
    assert local.distance(two, one) == expected


def test_bus_errors_are_counted_by_their_totals(tmp_path: Path) -> None:
    add_device(
        tmp_path,
        "pci0000:00/0000:00:05.0",
        aer_dev_correctable="RxErr 3\nBadTLP 4\nTOTAL_ERR_COR 9",
        aer_dev_nonfatal="Undefined 0\nTOTAL_ERR_NONFATAL 2",
        aer_dev_fatal="DLP 1\nTLP 1",
    )
    assert local.probe(tmp_path).devices["0000:00:05.0"].aer == Aer(correctable=9, nonfatal=2, fatal=2)


def test_nothing_there_is_an_empty_machine(tmp_path: Path) -> None:
    assert local.probe(tmp_path / "nowhere") == local.LocalTopology()


def test_strange_files_do_not_matter(tmp_path: Path) -> None:
    add_device(tmp_path, "pci0000:00/0000:00:05.0", vendor="?", numa_node="many", aer_dev_fatal="no numbers")
    add_device(tmp_path, "pci0000:00/not-an-address")
    (device,) = local.probe(tmp_path).devices.values()
    assert (device.vendor_id, device.numa_node, device.aer) == (0, None, None)


def test_this_very_machine_can_be_probed() -> None:
    machine = local.probe()
    assert all(cpus == tuple(sorted(set(cpus))) for cpus in machine.cpus.values())
    for device in machine.devices.values():
        assert device.path[-1] == device.address
        assert local.distance(device, device) in ("pix", "phb")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:C1:00.0", "0000:c1:00.0"),
        ("3b:00.1", "0000:3b:00.1"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("NA", ""),
        ("", ""),
    ],
)
def test_addresses_of_tools_become_those_of_the_kernel(text: str, address: str) -> None:
    assert local.pci_address(text) == address


def test_a_broken_cpu_list_is_no_list() -> None:
    assert local.cpu_list("0-3,x") == ()
    assert local.cpu_list(None) == ()
