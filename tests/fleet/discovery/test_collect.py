"""A whole machine's fingerprint, from tools' outputs and a tree that looks like /sys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata.fleet.discovery import nvidia_smi, tools
from strata.fleet.discovery.collect import Collected, Run, collect
from strata.fleet.discovery.observation import Found
from strata.fleet.fingerprint import LINK_BYTES_PER_S, Device
from strata.fleet.health import DeviceReading
from tests.fleet.discovery.tool_outputs import sample

QUERY = " ".join(nvidia_smi.COMMAND)


def answering(outputs: Mapping[str, str | Exception]) -> Run:
    """Tools that answer these commands; all others are not here."""

    def run(command: Sequence[str]) -> str | None:
        answer = outputs.get(" ".join(command))
        if isinstance(answer, Exception):
            raise answer
        return answer

    return run


def collected(root: Path, outputs: Mapping[str, str | Exception], **more: Any) -> Collected:
    more = {"now_s": 100.0, "load_nvml": lambda: None, **more}
    return collect("node-1", root=root, run=answering(outputs), **more)


def add_card(root: Path, path: str, numa: int = 0, **files: str) -> None:
    folder = root / "devices" / path
    folder.mkdir(parents=True)
    for name, text in {"numa_node": str(numa), **files}.items():
        (folder / name).write_text(text)
    (root / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
    (root / "bus/pci/devices" / folder.name).symlink_to(folder)


def add_numa_node(root: Path, node: int, cpus: str) -> None:
    folder = root / f"devices/system/node/node{node}"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text(cpus)


def test_a_machine_with_nothing_has_an_empty_fingerprint(tmp_path: Path) -> None:
    fingerprint = collected(tmp_path, {}).fingerprint
    assert (fingerprint.node, fingerprint.devices, fingerprint.notes, fingerprint.tool) == ("node-1", (), (), "")


def test_ascend_cards_get_links_and_numa_nodes_from_their_topology(tmp_path: Path) -> None:
    add_numa_node(tmp_path, 0, "0-95")
    add_numa_node(tmp_path, 1, "96-191")
    outputs = {
        "npu-smi info": sample("npu_smi_24.1.rc1.txt"),
        "npu-smi info -t topo": sample("npu_smi_topo.txt"),
    }
    fingerprint = collected(tmp_path, outputs).fingerprint
    assert (fingerprint.tool, fingerprint.driver, fingerprint.notes) == ("npu-smi", "24.1.rc1", ())
    assert set(fingerprint.links.values()) == {"hccs"}
    assert [one.numa_node for one in fingerprint.devices] == [1, 1, 0, 0]
    assert fingerprint.devices[0].uuid == "node-1/huawei-0000:c1:00.0"
    assert np.min(fingerprint.bandwidth()) == LINK_BYTES_PER_S["hccs"]


def test_dies_of_a_package_are_nearer_to_each_other(tmp_path: Path) -> None:
    outputs = {
        "npu-smi info": sample("npu_smi_24.1.rc3_910c.txt"),
        "npu-smi info -t topo": sample("npu_smi_topo_910c.txt"),
    }
    fingerprint = collected(tmp_path, outputs).fingerprint
    for (i, j), link in fingerprint.links.items():
        is_one_board = fingerprint.devices[i].board == fingerprint.devices[j].board
        assert link == ("sio" if is_one_board else "hccs")


def test_two_vendors_in_one_machine_keep_their_links_apart(tmp_path: Path) -> None:
    outputs = {
        QUERY: sample("nvidia_smi_query.csv"),
        "nvidia-smi topo -m": sample("nvidia_smi_topo_nvswitch.txt"),
        "mthreads-gmi": sample("mthreads_gmi_2.4.1.txt"),
    }
    fingerprint = collected(tmp_path, outputs).fingerprint
    assert [one.vendor for one in fingerprint.devices] == ["NVIDIA"] * 3 + ["Moore Threads"] * 2
    assert fingerprint.links == {(0, 1): "nvlink", (0, 2): "nvlink", (1, 2): "nvlink"}
    assert (fingerprint.tool, fingerprint.driver) == ("nvidia-smi, mthreads-gmi", "550.90.07, 3.3.5-server")
    assert len({one.uuid for one in fingerprint.devices}) == 5


def test_sysfs_says_how_far_cards_are_apart_where_no_tool_does(tmp_path: Path) -> None:
    add_card(tmp_path, "pci0000:38/0000:38:01.0/0000:39:00.0", 1)
    add_card(tmp_path, "pci0000:38/0000:38:02.0/0000:3d:00.0", 1)
    fingerprint = collected(tmp_path, {"cnmon": sample("cnmon_5.10.13.txt")}).fingerprint
    assert fingerprint.links == {(0, 1): "phb"}
    assert [one.numa_node for one in fingerprint.devices] == [1, 1]


def test_hygon_cards_get_sizes_and_names_from_further_commands(tmp_path: Path) -> None:
    outputs: dict[str, str | Exception] = {
        "hy-smi": sample("hy_smi_hcu.txt"),
        "hy-smi --showmeminfo vram": sample("hy_smi_meminfo.txt"),
        "hy-smi --showproductname": tools.ToolFailed("hy-smi --showproductname: ended with 1"),
    }
    fingerprint = collected(tmp_path, outputs).fingerprint
    assert [one.memory_bytes for one in fingerprint.devices] == [65520 * 2**20] * 2
    assert [one.model for one in fingerprint.devices] == ["DCU", "DCU"]
    assert fingerprint.notes == ("hy-smi --showproductname: ended with 1",)


def test_a_tool_that_babbles_or_hangs_leaves_a_note_and_the_others_their_devices(tmp_path: Path) -> None:
    outputs: dict[str, str | Exception] = {
        "npu-smi info": "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\n",
        "cnmon": tools.ToolFailed("cnmon: no answer within 10 s; it was killed"),
        "mthreads-gmi": sample("mthreads_gmi_1.14.0.txt"),
    }
    fingerprint = collected(tmp_path, outputs).fingerprint
    assert [one.model for one in fingerprint.devices] == ["MTT S80"]
    assert len(fingerprint.notes) == 2
    assert fingerprint.notes[0].startswith("npu-smi info: expected a table")
    assert fingerprint.notes[1] == "cnmon: no answer within 10 s; it was killed"


def test_a_topology_that_cannot_be_read_costs_the_links_only(tmp_path: Path) -> None:
    outputs = {QUERY: sample("nvidia_smi_query.csv"), "nvidia-smi topo -m": "Failed to initialize NVML\n"}
    fingerprint = collected(tmp_path, outputs).fingerprint
    assert len(fingerprint.devices) == 3
    assert fingerprint.links == {}
    assert "nvidia-smi topo -m: expected a matrix" in fingerprint.notes[0]


def test_nvml_goes_before_nvidia_smi_and_a_broken_one_is_noted(tmp_path: Path) -> None:
    class Broken:
        NVMLError = RuntimeError

        def nvmlDeviceGetCount(self) -> int:
            raise RuntimeError("Uninitialized")

    outputs = {QUERY: sample("nvidia_smi_query.csv")}
    fingerprint = collected(tmp_path, outputs, load_nvml=Broken).fingerprint
    assert (fingerprint.devices, fingerprint.notes) == ((), ("NVML: expected a number of devices",))


def test_errors_on_the_bus_since_the_last_time_lower_a_cards_health(tmp_path: Path) -> None:
    outputs = {"mthreads-gmi": sample("mthreads_gmi_1.14.0.txt")}
    add_card(tmp_path, "pci0000:00/0000:00:01.0/0000:04:00.0", aer_dev_fatal="TOTAL_ERR_FATAL 1\n")
    first = collected(tmp_path, outputs)
    assert first.fingerprint.devices[0].health == 1.0
    again = collected(tmp_path, outputs, now_s=101.0, before=first.readings)
    assert again.fingerprint.devices[0].health == 1.0
    (tmp_path / "bus/pci/devices/0000:04:00.0/aer_dev_fatal").write_text("TOTAL_ERR_FATAL 2\n")
    after = collected(tmp_path, outputs, now_s=102.0, before=again.readings).fingerprint.devices[0]
    assert (after.health, after.faults) == (0.0, ("aer-fatal",))


def test_a_vendor_whose_tool_gives_no_answer_is_named(tmp_path: Path) -> None:
    outputs: dict[str, str | Exception] = {
        "npu-smi info": tools.ToolFailed("npu-smi info: no answer within 10 s"),
        "mthreads-gmi": sample("mthreads_gmi_1.14.0.txt"),
    }
    found = collected(tmp_path, outputs)
    assert (found.answered, found.failed) == ({"Moore Threads"}, {"Huawei"})


def test_a_figure_that_is_no_number_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Device(0, "MUSA-1", "MTT S80", "Moore Threads", math.nan, power_w=math.inf, temperature_c=math.nan)
    monkeypatch.setattr(
        "strata.fleet.discovery.mthreads_gmi.parse", lambda text: Found("mthreads-gmi", "", (broken,))
    )
    (device,) = collected(tmp_path, {"mthreads-gmi": "NaN"}).fingerprint.devices
    assert (device.memory_bytes, device.power_w, device.temperature_c) == (0.0, None, None)


def test_a_tools_own_word_and_ours_do_not_add_up(tmp_path: Path) -> None:
    outputs = {"npu-smi info": sample("npu_smi_24.1.rc1.txt").replace("102.0       40", "102.0       95")}
    (warned,) = (one for one in collected(tmp_path, outputs).fingerprint.devices if one.model == "910B2C")
    assert (warned.health, warned.faults) == (0.5, ("npu-warning", "hot"))


@pytest.mark.parametrize("before", [None, {"node-1/huawei-0000:c1:00.0": DeviceReading(0.0, temperature_c=20.0)}])
def test_readings_come_back_for_every_device(tmp_path: Path, before: dict[str, DeviceReading] | None) -> None:
    result = collected(tmp_path, {"npu-smi info": sample("npu_smi_24.1.rc1.txt")}, before=before)
    assert set(result.readings) == {one.uuid for one in result.fingerprint.devices}
    assert result.readings["node-1/huawei-0000:c1:00.0"].temperature_c == 43.0


def test_this_very_machine_has_a_fingerprint() -> None:
    result = collect("here", now_s=0.0)
    assert result.fingerprint.node == "here"
    assert result.fingerprint.bandwidth().shape == (len(result.fingerprint.devices),) * 2
