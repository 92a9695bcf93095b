"""What the parsers of the vendors' tools make of their outputs, version by version."""

from __future__ import annotations

import pytest

from strata.fleet.catalogue import accelerator
from strata.fleet.discovery import cnmon, hy_smi, mthreads_gmi, npu_smi, nvidia_smi
from strata.fleet.discovery.observation import MIB, BadOutput
from tests.fleet.discovery.tool_outputs import sample


def test_npu_smi_reads_two_rows_a_chip() -> None:
    found = npu_smi.parse_info(sample("npu_smi_24.1.rc1.txt"))
    assert found.driver == "24.1.rc1"
    one = found.devices[0]
    assert (one.index, one.model, one.vendor, one.bus_id) == (0, "Ascend910B3", "Huawei", "0000:C1:00.0")
    assert (one.memory_used_bytes, one.memory_bytes) == (3318 * MIB, 65536 * MIB)
    assert (one.power_w, one.temperature_c, one.utilisation) == (101.8, 43.0, 0.0)
    assert one.card == accelerator("910B3")
    assert (one.health, one.faults, one.board) == (1.0, (), "")


def test_npu_smi_reads_memory_without_a_space_before_the_slash() -> None:
    one = npu_smi.parse_info(sample("npu_smi_24.1.rc1.txt")).devices[1]
    assert (one.memory_used_bytes, one.utilisation) == (59356 * MIB, 0.37)


def test_npu_smi_unknown_models_stay_without_figures_and_sick_ones_lose_health() -> None:
    _, _, unknown, sick = npu_smi.parse_info(sample("npu_smi_24.1.rc1.txt")).devices
    assert (unknown.model, unknown.card) == ("910B2C", None)
    assert (unknown.health, unknown.faults) == (0.5, ("npu-warning",))
    assert (sick.health, sick.faults) == (0.0, ("npu-alarm",))
    assert (sick.power_w, sick.temperature_c) == (None, None)


def test_npu_smi_may_grow_wider() -> None:
    found = npu_smi.parse_info(sample("npu_smi_26.0.rc1.txt"))
    (one,) = found.devices
    assert (found.driver, one.model, one.memory_used_bytes) == ("26.0.rc1", "Ascend910B4", 2871 * MIB)


def test_npu_smi_dies_of_one_package_share_a_board_and_count_by_physical_id() -> None:
    devices = npu_smi.parse_info(sample("npu_smi_24.1.rc3_910c.txt")).devices
    assert [one.index for one in devices] == [0, 1, 2, 3]
    assert [one.board for one in devices] == ["npu0", "npu0", "npu1", "npu1"]
    assert {one.card for one in devices} == {accelerator("910C-die")}
    assert devices[1].power_w is None


def test_npu_smi_dies_may_go_by_their_packages_name() -> None:
    text = sample("npu_smi_24.1.rc3_910c.txt").replace("Ascend910 ", "910C      ")
    devices = npu_smi.parse_info(text).devices
    assert {one.card for one in devices} == {accelerator("910C-die")}


def test_npu_smi_in_a_container_keeps_the_ids_of_the_host() -> None:
    text = sample("npu_smi_26.0.rc1.txt").replace("| 0     910B4", "| 6     910B4")
    assert [one.index for one in npu_smi.parse_info(text).devices] == [6]


def test_npu_smi_of_a_310_has_no_hbm() -> None:
    (one,) = npu_smi.parse_info(sample("npu_smi_old_310.txt")).devices
    assert (one.index, one.model, one.memory_bytes) == (0, "Ascend310P3", 21527 * MIB)


def test_npu_smi_of_old_counts_by_logic_id_and_needs_no_bus_id() -> None:
    (one,) = npu_smi.parse_info(sample("npu_smi_old_logic_id.txt")).devices
    assert (one.index, one.bus_id, one.model, one.memory_used_bytes) == (6, "", "Ascend910A", 2048 * MIB)


def test_npu_smi_topology_is_by_logic_or_by_physical_ids() -> None:
    flat = npu_smi.parse_topology(sample("npu_smi_topo.txt"))
    assert set(flat.links.values()) == {"hccs"}
    assert len(flat.links) == 6
    assert (flat.cpus[0], flat.cpus[3]) == ("144-167", "0-23")
    dies = npu_smi.parse_topology(sample("npu_smi_topo_910c.txt"))
    assert (dies.links[0, 1], dies.links[1, 2], dies.links[2, 3]) == ("sio", "hccs", "sio")


def test_cnmon_4_has_the_driver_in_a_column_and_no_bus_id() -> None:
    found = cnmon.parse(sample("cnmon_4.20.11.txt"))
    assert found.driver == "4.20.11"
    one, two, off = found.devices
    assert (one.model, one.card, one.bus_id) == ("MLU370-X4", accelerator("MLU370-X4"), "")
    assert (two.memory_used_bytes, two.power_w, two.temperature_c) == (20015 * MIB, 125.0, 33.0)
    assert (two.utilisation, two.faults) == (0.86, ("ecc-error",))
    assert (off.utilisation, off.health, off.faults) == (None, 0.0, ("not-inited",))


def test_cnmon_5_shows_the_dies_of_one_board_as_two_cards_of_half_its_figures() -> None:
    found = cnmon.parse(sample("cnmon_5.10.13.txt"))
    board = accelerator("MLU370-X8")
    assert found.driver == "5.10.13"
    assert [one.board for one in found.devices] == ["mlu0", "mlu0"]
    assert [one.bus_id for one in found.devices] == ["0000:39:00.0", "0000:3D:00.0"]
    assert board.fp16_flops is not None
    for one in found.devices:
        assert one.card is not None
        assert (one.model, one.memory_bytes) == ("MLU370-X8-die", 23374 * MIB)
        assert (one.card.fp16_flops, one.card.memory_bytes) == (board.fp16_flops / 2, board.memory_bytes / 2)


def test_a_die_whose_other_half_is_missing_has_no_board() -> None:
    text = sample("cnmon_5.10.13.txt")
    start = text.index("| 1     /")
    found = cnmon.parse(text[:start] + text[text.index("\n\n", start) - 80 :])
    assert [one.board for one in found.devices] == [""]


def test_hy_smi_alone_gives_percents_and_so_no_bytes() -> None:
    one, two = hy_smi.parse(sample("hy_smi.txt")).devices
    assert (one.model, one.card, one.memory_bytes, one.memory_used_bytes) == ("DCU", None, 0.0, None)
    assert (one.temperature_c, one.power_w, one.utilisation) == (49.0, 118.0, 0.0)
    assert (two.utilisation, two.health, two.faults) == (0.74, 1.0, ())


def test_hy_smi_with_sizes_and_names_gives_bytes_and_cards() -> None:
    found = hy_smi.parse(
        sample("hy_smi_hcu.txt"), memory=sample("hy_smi_meminfo.txt"), names=sample("hy_smi_names.txt")
    )
    one, two = found.devices
    assert (one.model, one.card) == ("Hygon-K100-AI", accelerator("K100-AI"))
    assert (one.memory_bytes, one.memory_used_bytes) == (65520 * MIB, 64210 * MIB)
    assert (two.model, two.card, two.power_w, two.utilisation) == ("BW", None, None, 0.125)
    assert (two.health, two.faults) == (0.5, ("mode-slow",))


@pytest.mark.parametrize(
    ("version", "driver", "models", "used", "temperatures"),
    [
        ("1.14.0", "2.7.0", ["MTT S80"], [2], [49.0]),
        ("2.0.0", "3.0.0", ["MTT-S4000"] * 2, [662, 4], [41.0, None]),
        ("2.4.1", "3.3.5-server", ["MTT-S5000"] * 2, [66641, 10], [52.0, 51.0]),
    ],
)
def test_mthreads_gmi_of_three_versions(
    version: str, driver: str, models: list[str], used: list[int], temperatures: list[float | None]
) -> None:
    found = mthreads_gmi.parse(sample(f"mthreads_gmi_{version}.txt"))
    assert found.driver == driver
    assert [one.model for one in found.devices] == models
    assert [one.memory_used_bytes for one in found.devices] == [mib * MIB for mib in used]
    assert [one.temperature_c for one in found.devices] == temperatures
    assert [one.card is None for one in found.devices] == [model == "MTT S80" for model in models]


def test_nvidia_smi_query_reads_what_is_there_and_leaves_out_what_is_not() -> None:
    found = nvidia_smi.parse_query(sample("nvidia_smi_query.csv"))
    one, two, unknown = found.devices
    assert (found.driver, one.uuid[:12], one.bus_id) == ("550.90.07", "GPU-5b3a8a10", "00000000:19:00.0")
    assert one.card == accelerator("H100-SXM5-80GB")
    assert (two.memory_used_bytes, two.utilisation, two.power_w) == (80211 * MIB, 0.98, 688.1)
    assert (unknown.card, unknown.memory_used_bytes, unknown.utilisation, unknown.power_w) == (None,) * 4


def test_nvidia_smi_topology_leaves_out_nics_and_colours() -> None:
    found = nvidia_smi.parse_topology(sample("nvidia_smi_topo_nvswitch.txt"))
    assert set(found.links.values()) == {"nvlink"}
    assert len(found.links) == 6
    assert found.numa_nodes == {0: 0, 1: 0, 2: 1, 3: 1}
    assert found.cpus[2] == "24-47,120-143"


def test_nvidia_smi_topology_of_old_has_cpus_only() -> None:
    found = nvidia_smi.parse_topology(sample("nvidia_smi_topo_old.txt"))
    assert found.links == {
        (0, 1): "pix",
        (0, 2): "phb",
        (0, 3): "sys",
        (1, 2): "pxb",
        (1, 3): "sys",
        (2, 3): "node",
    }
    assert found.numa_nodes == {}


def test_a_card_with_another_cards_memory_is_not_that_card() -> None:
    for mib in ("143771", "40960"):  # an H200's; half of an H100, as a slice would have
        text = sample("nvidia_smi_query.csv").replace("81559, 4,", f"{mib}, 4,")
        assert nvidia_smi.parse_query(text).devices[0].card is None


def test_a_column_nobody_has_heard_of_is_passed_over() -> None:
    text = sample("npu_smi_26.0.rc1.txt")
    text = text.replace("Temp(C)                 ", "Temp(C)    Fan(%)       ")
    text = text.replace("82.6                 32      ", "82.6                 32    20")
    (one,) = npu_smi.parse_info(text).devices
    assert one.temperature_c == 32.0


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("npu_smi_24.1.rc1.txt", "59356/ 65536", "59356 65536  ", "line 11.*values for AICore"),
        ("npu_smi_24.1.rc1.txt", "59356/ 65536", "99999/ 65536", "line 11.*no more memory used"),
        ("npu_smi_24.1.rc1.txt", "92.0 ", "warm ", "line 10.*Power.W. as a number.*'warm'"),
        ("npu_smi_24.1.rc1.txt", "AICore(%)   Memory-Usage(MB)", "Something", "line 5.*second header"),
        ("npu_smi_24.1.rc1.txt", "3318 / 65536", "0    / 0    ", "line 8.*memory size above 0"),
        ("npu_smi_24.1.rc3_910c.txt", "| 1     3    ", "| 1     2    ", "every device once"),
    ],
)
def test_bad_rows_are_named_with_their_line(name: str, old: str, new: str, expected: str) -> None:
    assert old in sample(name)
    with pytest.raises(BadOutput, match=expected):
        npu_smi.parse_info(sample(name).replace(old, new))


def test_a_topology_whose_halves_disagree_is_refused() -> None:
    text = sample("nvidia_smi_topo_old.txt").replace("GPU1    PIX", "GPU1    SYS")
    with pytest.raises(BadOutput, match="same link from 0 to 1 as back"):
        nvidia_smi.parse_topology(text)


def test_a_link_nobody_has_heard_of_is_refused() -> None:
    with pytest.raises(BadOutput, match=r"line 2.*a link such as SYS.*'WARP'"):
        nvidia_smi.parse_topology(sample("nvidia_smi_topo_old.txt").replace("PIX", "WARP", 1))
