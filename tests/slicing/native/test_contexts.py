"""What a context itself takes: measured by NVML where that lists this process, else given or assumed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from strata.fleet.ledger import read_ledger
from tests.slicing.fake_accelerators import GIB, MIB

OF_400_MIB = {"FAKE_CONTEXT_BYTES": str(400 * MIB)}


@pytest.fixture
def calls(accelerators, ledger, tmp_path):
    def call(*words, limit=GIB, code=0, **more):
        given = {"STRATA_CONTEXT_BYTES": "", "FAKE_STATE": str(tmp_path / "state"), **OF_400_MIB, **more}
        env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(limit), **given)
        done = accelerators.run("calls", "dlsym", *words, env=env)
        assert done.returncode == code, done.stderr
        return done.stdout.splitlines() if code == 0 else done.stderr

    return call


def room(mib: int) -> str:
    return f"free {mib * MIB} total {GIB} info 0"


def noted(ledger):
    (use,) = read_ledger(ledger, name="s")
    return use.context_bytes, use.context_trust


def test_it_is_measured_once_where_nvml_lists_the_process(calls, ledger):
    assert calls("info", FAKE_PROCESSES="1") == [room(624)]
    assert noted(ledger) == (400 * MIB, "measured")
    # Of the next process what is known is charged, whatever NVML says now.
    assert calls("info", FAKE_CONTEXT_BYTES=str(300 * MIB), FAKE_PROCESSES="1") == [room(624)]


def test_it_is_assumed_where_nvml_does_not(calls, ledger):
    assert calls("info") == [room(504)]
    assert noted(ledger) == (520 * MIB, "assumed")


def test_it_is_what_one_says_it_is(calls, ledger):
    assert calls("info", STRATA_CONTEXT_BYTES="300Mi") == [room(724)]
    assert noted(ledger) == (300 * MIB, "given")


def test_all_that_a_process_makes_of_a_device_are_charged_once_until_the_last_ends(calls):
    said = calls("newcontext", "newcontext", "info", "endcontext:0", "endcontext:1", "device:0", "info", "reset")
    assert [line for line in said if "total" in line] == [room(504), room(504)]
    assert calls("releasecontext", "newcontext", "info", "endcontext:0", "device:0", "info")[2] == room(504)


def test_what_the_device_holds_stays_below_the_limit_with_contexts_and_all(calls):
    more = {"FAKE_PROCESSES": "1"}
    said = calls("alloc:600M", "alloc:100M", "held:0", **more)
    assert said == ["alloc 0", "alloc 2", f"bytes {1000 * MIB} held 0"]


def test_a_child_has_one_of_its_own(calls):
    said = calls("fork:2", "device:0", "info", "info", STRATA_CONTEXT_BYTES="300Mi")
    assert said == ["device 0", room(424), room(724)]


def test_one_that_does_not_fit_is_refused_with_a_word(calls, ledger):
    said = calls(code=70, limit=256 * MIB)
    assert said == (
        "strata-quota: device 0: a context takes 520 MiB, which the slice has not left (STRATA_CONTEXT_BYTES)\n"
    )
    (use,) = read_ledger(ledger, name="s")
    assert use.refused == 1


def test_a_driver_that_fails_gets_its_charge_back(calls):
    said = calls("newcontext", "info", "releasecontext", "newcontext", "info", FAKE_FAIL="cuCtxCreate_v2:1:999")
    assert said[:2] == ["newcontext 999", room(504)]
    assert said[3:] == ["newcontext 0", room(504)]


@pytest.mark.parametrize("text", ["lots", "-1", "16G"])
def test_a_size_that_is_none_is_said(calls, ledger, text):
    calls("info", STRATA_CONTEXT_BYTES=text)
    assert noted(ledger) == (520 * MIB, "assumed")


def test_refusals_are_counted(calls, ledger):
    calls("alloc:600M", "alloc:600M", "async:600M", "create:600M", "array2:32768", STRATA_CONTEXT_BYTES="0")
    (use,) = read_ledger(ledger, name="s")
    assert use.refused == 4


NVML = """
import ctypes, sys
nvml = ctypes.CDLL("libnvidia-ml.so.1")
nvml.nvmlInit_v2()
device = ctypes.c_void_p()
nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("of", ctypes.c_uint * 2)]
for name in sys.argv[1:]:
    for most in (0, 8):
        count, all = ctypes.c_uint(most), (Process * 8)()
        code = getattr(nvml, name)(device, ctypes.byref(count), all if most else None)
        print(code, count.value, *[(all[i].pid, all[i].used >> 20) for i in range(min(most, count.value))])
"""


def test_nvml_lists_the_processes_of_the_slice_and_no_others(accelerators, ledger, tmp_path):
    more = {"FAKE_STATE": str(tmp_path / "state"), "FAKE_PROCESSES": "1"}
    mine = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB), **more)
    other = accelerators.environment(preload="", **more)
    names = [f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute")]
    words = ("dlsym", "alloc:600M", "wait")
    with (
        accelerators.start("calls", *words, env=mine) as holder,
        accelerators.start("calls", *words, env=other) as stranger,
    ):
        assert [one.stdout.readline() for one in (holder, stranger)] == ["alloc 0\n"] * 2
        said = {}
        for name, env in (("sliced", mine), ("free", other)):
            done = subprocess.run(
                [sys.executable, "-c", NVML, *names], env=env, capture_output=True, text=True, timeout=60
            )
            assert done.stderr == ""
            said[name] = done.stdout.splitlines()
        pids = [one.pid for one in (holder, stranger)]
        for one in (holder, stranger):
            one.kill()
    assert said["sliced"] == ["7 1", f"0 1 ({pids[0]}, 600)", *["0 0"] * 4]
    assert said["free"][0] == "7 2"
    assert {f"({pid}, 600)" in said["free"][1] for pid in pids} == {True}
