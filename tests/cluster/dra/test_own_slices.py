"""Our own ResourceSlice: which devices it offers, and that what it says of them is read back as it was."""

from __future__ import annotations

from dataclasses import replace

from strata.cluster.dra.own_slices import device_name, offered, resource_slice
from strata.fleet.catalogue import accelerator
from strata.fleet.discovery.resource_slices import slice_devices
from strata.fleet.fingerprint import Device, Fingerprint

CARD = accelerator("A100-SXM4-80GB")


def gpu(i: int, **more) -> Device:
    made = Device(
        i, f"GPU-0000000{i}-AB", CARD.name, CARD.vendor, CARD.memory_bytes, CARD, bus_id=f"0000:1{i}:00.0"
    )
    return replace(made, **more)


def test_what_a_slice_says_is_read_back_as_the_devices_that_are_there():
    node = Fingerprint("n1", (gpu(0, numa_node=0), gpu(1, health=0.75, board="b")))
    made = resource_slice(node, generation=7, owner_uid="u")
    read = slice_devices([made])
    assert [(each.node, each.pool, each.device.uuid, each.device.model) for each in read] == [
        ("n1", "n1", device.uuid, CARD.name) for device in node.devices
    ]
    assert [each.device.memory_bytes for each in read] == [CARD.memory_bytes] * 2
    assert [each.name for each in read] == ["gpu-00000000-ab", "gpu-00000001-ab"]
    first, second = (each["attributes"] for each in made["spec"]["devices"])
    assert (first["numaNode"], first["acuFP16"], first["healthPercent"]) == (
        {"int": 0},
        {"int": 100},
        {"int": 100},
    )
    assert (second["board"], second["healthPercent"]) == ({"string": "b"}, {"int": 75})
    assert "numaNode" not in second
    assert made["spec"]["pool"] == {"name": "n1", "generation": 7, "resourceSliceCount": 1}
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u"


def test_devices_that_are_broken_or_whose_runtime_takes_more_than_a_variable_are_not_offered():
    others = (gpu(1, health=0.0, faults=("lost",)), gpu(2, vendor="Hygon"), gpu(3, vendor=""))
    assert offered(Fingerprint("n1", (gpu(0), *others))) == [gpu(0)]


def test_where_a_device_plugin_gives_devices_out_none_is_offered_twice():
    node = Fingerprint("n1", (gpu(0), gpu(1)))
    assert offered(replace(node, held={"default/p": {"nvidia.com/gpu": ("GPU-00000000-AB",)}})) == []
    assert len(offered(replace(node, held={"default/p": {"rdma/hca": ("mlx5_0",)}}))) == 2


def test_a_devices_name_is_a_label_whatever_its_uuid():
    assert device_name(gpu(0, uuid="/Odd__UUID:" + "x" * 90)) == "odd-uuid-" + "x" * 54
