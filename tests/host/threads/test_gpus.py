"""GPUs and their NUMA nodes from sysfs, their processes from a stand-in for NVML; and labels of threads."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

import strata.host
from strata.fleet import nvml as library
from strata.host.threads import label
from strata.host.threads.gpus import gpus, with_processes
from strata.host.threads.snapshot import Gpu


def card(root, address, vendor, class_, node):
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    for name, text in (("vendor", vendor), ("class", class_), ("numa_node", node), ("device", "0x2335")):
        (folder / name).write_text(f"{text}\n")


def driver(root, address, minor):
    folder = root / "proc/driver/nvidia/gpus" / address
    folder.mkdir(parents=True)
    (folder / "information").write_text(f"Model: \t\t NVIDIA H200\nDevice Minor: \t {minor}\n")


@pytest.fixture
def box(tmp_path):
    for node, cpus in ((0, "0-3"), (1, "4-7")):
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    card(tmp_path, "0000:3b:00.0", "0x10de", "0x030200", "0")
    card(tmp_path, "0000:af:00.0", "0x10de", "0x030200", "1")
    card(tmp_path, "0000:b0:00.0", "0x10de", "0x068000", "1")  # a switch of theirs
    card(tmp_path, "0000:00:02.0", "0x8086", "0x030000", "0")  # the picture on the console
    card(tmp_path, "0000:c1:00.0", "0x19e5", "0x120000", "-1")
    driver(tmp_path, "0000:3b:00.0", 1)
    driver(tmp_path, "0000:af:00.0", 0)
    return tmp_path


def test_accelerators_are_found_with_their_nodes_cpus_and_files(box):
    assert gpus(box) == (
        Gpu(0, "0000:3b:00.0", "/dev/nvidia1", 0, (0, 1, 2, 3)),
        Gpu(1, "0000:af:00.0", "/dev/nvidia0", 1, (4, 5, 6, 7)),
        Gpu(2, "0000:c1:00.0", "/dev/davinci0", None, ()),
    )


class Lost(Exception):
    pass


def nvml(*cards):
    """A driver with cards of (address, processes); None for one that fell off the bus."""

    def handle(index):
        if cards[index] is None:
            raise Lost
        return cards[index]

    return SimpleNamespace(
        NVMLError=Lost,
        nvmlDeviceGetCount=lambda: len(cards),
        nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetPciInfo=lambda one: SimpleNamespace(busId=one[0]),
        nvmlDeviceGetComputeRunningProcesses=lambda one: [SimpleNamespace(pid=pid) for pid in one[1]],
    )


def test_the_driver_names_processes_and_a_lost_card_hides_no_other(box):
    found = with_processes(gpus(box), nvml(("00000000:AF:00.0", [7]), None, (b"00000000:3B:00.0", [4000, 4001])))
    assert [(gpu.index, gpu.address, sorted(gpu.pids)) for gpu in found] == [
        (0, "0000:3b:00.0", [4000, 4001]),
        (1, "0000:af:00.0", [7]),
        (2, "0000:c1:00.0", []),
    ]


def test_without_a_driver_there_are_no_processes(box):
    assert with_processes(gpus(box), None) == gpus(box)


def broken(name):
    assert name == "pynvml"
    return SimpleNamespace(NVMLError=Lost, nvmlInit=lambda: (_ for _ in ()).throw(Lost()))


def test_a_library_without_a_driver_is_as_good_as_none(monkeypatch):
    monkeypatch.setattr(library.importlib, "import_module", broken)
    assert library.load() is None


def test_a_label_sends_the_join_command_and_then_takes_its_name(monkeypatch):
    sent = []
    monkeypatch.setattr(label, "_set_name", sent.append)
    done = strata.host.label("train")
    assert sent == [b"\x10\x5c\x01train".ljust(16, b"\0"), b"st-train"]
    assert (done.name, done.nice) == ("st-train", None)


def test_the_longest_label_fits_the_command_and_the_name(monkeypatch):
    sent = []
    monkeypatch.setattr(label, "_set_name", sent.append)
    strata.host.label("a" * 12)
    assert [len(one) for one in sent] == [16, 15]
    assert sent[0].endswith(b"\0")


def test_a_nice_value_is_set_for_the_calling_thread_only(monkeypatch):
    asked = []
    monkeypatch.setattr(label, "_set_name", lambda raw: None)
    monkeypatch.setattr(os, "setpriority", lambda *said: asked.append(said))
    done = strata.host.label("train", nice=-10)
    assert asked == [(os.PRIO_PROCESS, done.tid, -10)]
    assert done.nice == -10


def test_a_label_stands_where_the_nice_value_is_refused(monkeypatch):
    monkeypatch.setattr(label, "_set_name", lambda raw: None)

    def refuse(*said):
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    assert strata.host.label("train", nice=-10).nice is None
