"""Jobs that share a domain share no device."""

import pytest

from strata.control.drivers.devices import free, visible


@pytest.mark.parametrize(
    ("num_devices", "count", "taken", "given"),
    [(4, 2, set(), [0, 1]), (4, 2, {0, 2}, [1, 3]), (4, 2, {0, 1, 2}, None), (1, 0, {0}, [])],
)
def test_the_lowest_free_devices_are_given_or_none(num_devices, count, taken, given):
    assert free(num_devices, count, taken=taken) == given


@pytest.mark.parametrize(
    ("vendor", "ours", "name", "seen"),
    [
        ("NVIDIA", {}, "CUDA_VISIBLE_DEVICES", ["2,3", "2,3", "5"]),
        ("AMD", {}, "HIP_VISIBLE_DEVICES", ["2,3", "2,3", "5"]),
        ("NVIDIA", {"CUDA_VISIBLE_DEVICES": "4,5,6,7,0,1"}, "CUDA_VISIBLE_DEVICES", ["6,7", "6,7", "1"]),
        ("cpu", {"CUDA_VISIBLE_DEVICES": "4"}, "STRATA_DEVICES", ["2,3", "2,3", "5"]),
    ],
)
def test_each_rank_sees_the_devices_of_its_node_and_finds_its_own_by_its_local_rank(vendor, ours, name, seen):
    ranks = {4: {"RANK": "4"}, 5: {"RANK": "5"}, 6: {"RANK": "6"}}
    result = visible(ranks, [(4, 5), (6,)], [2, 3, 5], vendor=vendor, ours=ours)
    assert [environment[name] for environment in result] == seen
    assert [(e["RANK"], e["LOCAL_RANK"]) for e in result] == [("4", "0"), ("5", "1"), ("6", "0")]
