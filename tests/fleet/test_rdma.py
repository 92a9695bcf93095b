"""RDMA ports, from trees as Documentation/ABI/stable/sysfs-class-infiniband describes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata.fleet import local
from strata.fleet.rdma import RdmaPort, rdma_group, read_ports, send_bytes_per_s

SWITCH = "pci0000:00/0000:00:01.0/0000:01:00.0"
GPU, NEAR, FAR = (
    f"{SWITCH}/0000:02:00.0/0000:03:00.0",
    f"{SWITCH}/0000:02:01.0/0000:04:00.0",
    "pci0000:80/0000:81:00.0",
)
DEFAULT_GID, NO_GID = "fe80:0000:0000:0000:0c42:a103:0065:b1ee", "0000:0000:0000:0000:0000:0000:0000:0000"
IPV4_GID = "0000:0000:0000:0000:0000:ffff:0a01:0203"
NDR = {"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}
ROCE = {"state": "4: ACTIVE", "rate": "100 Gb/sec (4X EDR)", "link_layer": "Ethernet"}


def add_pci(root: Path, path: str, numa: int = 0) -> Path:
    folder = root / "devices" / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "numa_node").write_text(f"{numa}\n")
    (root / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
    (root / "bus/pci/devices" / folder.name).symlink_to(folder)
    return folder


def add_port(
    root: Path, card: str, pci: Path, *, port: int = 1, gids=(DEFAULT_GID,), types=(), **files: str
) -> None:
    folder = root / f"class/infiniband/{card}/ports/{port}"
    (folder / "gids").mkdir(parents=True)
    (folder / "gid_attrs/types").mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")
    for index, gid in enumerate(gids):
        (folder / f"gids/{index}").write_text(gid + "\n")
    for index, kind in enumerate(types):
        (folder / f"gid_attrs/types/{index}").write_text(kind + "\n")
    if not (root / f"class/infiniband/{card}/device").exists():
        (root / f"class/infiniband/{card}/device").symlink_to(pci)


def ports(root: Path) -> tuple[RdmaPort, ...]:
    return read_ports(local.probe(root), ["0000:03:00.0"], root=root)


def test_a_machine_without_cards_has_no_ports(tmp_path):
    assert ports(tmp_path) == ()
    assert send_bytes_per_s(()) is None
    assert rdma_group(()) == ""


def test_an_infiniband_port_says_its_rate_its_subnet_and_how_near_an_accelerator_is(tmp_path):
    add_pci(tmp_path, GPU)
    add_port(tmp_path, "mlx5_0", add_pci(tmp_path, NEAR), gids=(DEFAULT_GID, NO_GID), **NDR)
    (port,) = ports(tmp_path)
    assert port == RdmaPort(
        "mlx5_0", 1, "infiniband", is_active=True, rate_bytes_per_s=50e9, subnet="fe80:0000:0000:0000",
        bus_id="0000:04:00.0", numa_node=0, distance="pix",
    )  # fmt: skip
    assert rdma_group([port]) == "ib-fe80000000000000"


@pytest.mark.parametrize(
    ("gids", "types", "fabric"),
    [
        ((DEFAULT_GID, DEFAULT_GID, IPV4_GID), ("IB/RoCE v1", "RoCE v2", "RoCE v2"), "roce-v2"),
        ((DEFAULT_GID,), ("IB/RoCE v1",), "roce-v1"),
        ((NO_GID,), (), "ethernet"),
    ],
)
def test_on_ethernet_the_types_of_the_gid_table_say_which_roce_it_is(tmp_path, gids, types, fabric):
    add_port(tmp_path, "mlx5_0", add_pci(tmp_path, NEAR), gids=gids, types=types, **ROCE)
    (port,) = ports(tmp_path)
    assert (port.fabric, port.subnet, port.distance) == (fabric, "", "")
    assert rdma_group([port]) == ""


def test_a_port_that_is_down_sends_nothing_and_joins_no_group(tmp_path):
    add_port(tmp_path, "mlx5_0", add_pci(tmp_path, NEAR), **{**NDR, "state": "1: DOWN"})
    (port,) = ports(tmp_path)
    assert (port.is_active, port.rate_bytes_per_s, rdma_group([port]), send_bytes_per_s([port])) == (
        False,
        0,
        "",
        None,
    )


def test_a_card_on_the_other_socket_is_not_the_accelerators(tmp_path):
    add_pci(tmp_path, GPU)
    add_port(tmp_path, "mlx5_0", add_pci(tmp_path, NEAR), **NDR)
    add_port(tmp_path, "mlx5_1", add_pci(tmp_path, FAR, numa=1), **ROCE)
    assert [port.distance for port in ports(tmp_path)] == ["pix", "sys"]
    assert send_bytes_per_s(ports(tmp_path)) == 50e9


def test_without_a_near_card_the_far_ones_send(tmp_path):
    add_pci(tmp_path, GPU)
    add_port(tmp_path, "mlx5_1", add_pci(tmp_path, FAR, numa=1), **ROCE)
    add_port(tmp_path, "mlx5_1", tmp_path, port=2, **ROCE)
    assert send_bytes_per_s(ports(tmp_path)) == 25e9


def test_a_virtual_function_is_not_counted_beside_its_card(tmp_path):
    card = add_pci(tmp_path, NEAR)
    function = add_pci(tmp_path, f"{SWITCH}/0000:02:01.0/0000:04:00.1")
    (function / "physfn").symlink_to(card)
    add_port(tmp_path, "mlx5_0", card, **NDR)
    add_port(tmp_path, "mlx5_1", function, **NDR)
    assert [port.card for port in ports(tmp_path)] == ["mlx5_0"]


def test_what_is_not_readable_is_left_out(tmp_path):
    add_port(tmp_path, "rxe0", tmp_path, gids=(), state="4: ACTIVE", rate="what")
    assert ports(tmp_path) == (RdmaPort("rxe0", 1, "ethernet", is_active=True),)
