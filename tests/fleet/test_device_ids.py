from __future__ import annotations

import pytest

from strata.fleet.device_ids import place_of_id
from strata.fleet.fingerprint import Device, Fingerprint

DEVICES = (
    Device(0, "GPU-5b3a8a10-aa", "A100", "NVIDIA", 1.0, bus_id="00000000:19:00.0"),
    Device(1, "GPU-77c1d2e0-bb", "A100", "NVIDIA", 1.0, bus_id="00000000:1A:00.0"),
    Device(0, "n/huawei-0000:c1:00.0", "Ascend910B3", "Huawei", 1.0, bus_id="0000:C1:00.0"),
    Device(7, "n/huawei-0000:c2:00.0", "Ascend910B3", "Huawei", 1.0, bus_id="0000:C2:00.0"),
    Device(0, "n/amd-0000:03:00.0", "MI300X", "AMD", 1.0, bus_id="0000:03:00.0"),
)
NODE = Fingerprint("n", DEVICES)


@pytest.mark.parametrize(
    ("vendor", "device_id", "place"),
    [
        ("NVIDIA", "GPU-77c1d2e0-bb", 1),
        ("NVIDIA", "GPU-77C1D2E0-BB::3", 1),
        ("NVIDIA", "0", 0),
        ("NVIDIA", "00000000:1a:00.0", 1),
        ("NVIDIA", "MIG-77c1d2e0-bb", None),
        ("NVIDIA", "2", None),
        ("Huawei", "Ascend910-7", 3),
        ("Huawei", "Ascend910-0", 2),
        ("AMD", "0000:03:00.0", 4),
        ("AMD", "03:00.0", 4),
        ("AMD", "GPU-77c1d2e0-bb", None),
        ("Hygon", "0", None),
    ],
)
def test_a_plugins_id_names_one_device_of_its_vendor(vendor, device_id, place):
    assert place_of_id(NODE, device_id, vendor=vendor) == place


def test_a_number_that_two_devices_have_names_none():
    twice = Fingerprint("n", (*DEVICES, Device(7, "other", "Ascend910B3", "Huawei", 1.0)))
    assert place_of_id(twice, "Ascend910-7", vendor="Huawei") is None
