"""The quota library stands at every door to the driver, and changes nothing else that a program sees."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.slicing.fake_accelerators import GIB, MIB

DOORS = [
    ("calls-linked", "link"),
    ("calls", "dlsym"),
    ("calls", "default"),
    ("calls-linked", "next"),
    ("calls", "gpa1"),
    ("calls", "gpa:0"),
    ("calls", "gpa:1"),
    ("calls", "gpa:2"),
    ("calls", "gpa-of-gpa"),
    ("calls-wrapped", "dlsym"),
    ("calls-wrapped", "gpa:2"),
]
KINDS = ["alloc:600M", "pitch:1M:600", "managed:600M", "async:600M", "create:600M"]
every_door = pytest.mark.parametrize(("program", "door"), DOORS, ids=[":".join(door) for door in DOORS])


@pytest.fixture
def calls(accelerators, ledger):
    def call(*words, program="calls", door="dlsym", limit=GIB, **more):
        env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(limit), **more)
        done = accelerators.run(program, door, *words, env=env)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout.splitlines()

    return call


@every_door
def test_the_second_600_mib_of_a_1_gib_slice_are_refused_with_the_drivers_own_code(calls, program, door):
    said = calls("alloc:600M", "alloc:600M", "held:0", "info", "total", program=program, door=door)
    assert said == [
        "alloc 0",
        "alloc 2",
        f"bytes {600 * MIB} held 0",
        f"free {424 * MIB} total {GIB} info 0",
        f"total {GIB} total 0",
    ]


@every_door
@pytest.mark.parametrize("kind", KINDS, ids=[kind.split(":")[0] for kind in KINDS])
def test_every_kind_of_memory_is_one_slice(calls, program, door, kind):
    name = kind.split(":")[0]
    said = calls("alloc:600M", kind, "held:0", program=program, door=door)
    assert said == ["alloc 0", f"{name} 2", f"bytes {600 * MIB} held 0"]


@every_door
def test_what_is_given_back_can_be_taken_again(calls, program, door):
    words = [word for _ in range(5) for word in ("alloc:600M", "free:0")]
    indexed = [word.replace(":0", f":{i // 2}") for i, word in enumerate(words)]
    said = calls(*indexed, "info", program=program, door=door)
    assert said[:-1] == ["alloc 0", "free 0"] * 5
    assert said[-1] == f"free {GIB} total {GIB} info 0"


@pytest.mark.parametrize(("door", "legacy", "per_thread"), [("gpa:0", 1, 0), ("gpa:1", 1, 0), ("gpa:2", 0, 1)])
def test_flags_choose_the_stream_as_without_the_library(calls, door, legacy, per_thread):
    said = calls("async:1M", "calls:cuMemAllocAsync", "calls:cuMemAllocAsync_ptsz", door=door)
    assert said == [
        "async 0",
        f"cuMemAllocAsync {legacy} calls 0",
        f"cuMemAllocAsync_ptsz {per_thread} calls 0",
    ]


@pytest.mark.parametrize("kind", KINDS, ids=[kind.split(":")[0] for kind in KINDS])
@pytest.mark.parametrize("door", [door for _, door in DOORS[:9]])
def test_a_driver_that_hands_out_other_addresses_than_it_exports(accelerators, ledger, door, kind):
    program = "calls-linked" if door in ("link", "next") else "calls"
    env = accelerators.environment(ledger=ledger, driver="other-addresses", STRATA_MEMORY_LIMIT=str(GIB))
    name = kind.split(":")[0]
    done = accelerators.run(program, door, "alloc:600M", kind, "info", "total", env=env)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "alloc 0",
        f"{name} 2",
        f"free {424 * MIB} total {GIB} info 0",
        f"total {GIB} total 0",
    ]


@pytest.mark.parametrize(("flags", "legacy", "per_thread"), [(0, 1, 0), (1, 1, 0), (2, 0, 1)])
def test_and_the_stream_is_the_right_one_there_too(accelerators, ledger, flags, legacy, per_thread):
    env = accelerators.environment(ledger=ledger, driver="other-addresses", STRATA_MEMORY_LIMIT=str(GIB))
    words = [
        "async:1M",
        "launch:1",
        "calls:cuMemAllocAsync",
        "calls:cuMemAllocAsync_ptsz",
        "calls:cuLaunchKernel_ptsz",
    ]
    done = accelerators.run("calls", f"gpa:{flags}", *words, env=env)
    assert done.stdout.splitlines()[2:] == [
        f"cuMemAllocAsync {legacy} calls 0",
        f"cuMemAllocAsync_ptsz {per_thread} calls 0",
        f"cuLaunchKernel_ptsz {per_thread} calls 0",
    ]


def test_what_dlsym_and_get_proc_address_answer_is_what_they_answer_without_the_library(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB))
    held = accelerators.run("doors", env=env)
    free = accelerators.run("doors", env={name: value for name, value in env.items() if name != "LD_PRELOAD"})
    assert free.stdout == held.stdout
    assert "no\n" not in held.stdout
    assert len(held.stdout.splitlines()) == 14


def test_an_unknown_pointer_is_the_drivers_to_judge(calls):
    said = calls("freebad", "freenull", "freeasyncbad", "calls:cuMemFree_v2", "calls:cuMemFreeAsync")
    assert said == [
        "freebad 1",
        "freenull 0",
        "freeasyncbad 1",
        "cuMemFree_v2 2 calls 0",
        "cuMemFreeAsync 1 calls 0",
    ]


@pytest.mark.parametrize("code", [2, 999])
def test_a_driver_that_fails_gets_its_charge_back(calls, code):
    said = calls("alloc:600M", "alloc:1000M", "info", FAKE_FAIL=f"cuMemAlloc_v2:1:{code}")
    assert said == [f"alloc {code}", "alloc 0", f"free {24 * MIB} total {GIB} info 0"]


def test_a_free_that_fails_keeps_its_charge(calls):
    said = calls("alloc:600M", "free:0", "alloc:600M", "free:0", "alloc:600M", FAKE_FAIL="cuMemFree_v2:1:700")
    assert said == ["alloc 0", "free 700", "alloc 2", "free 0", "alloc 0"]


def test_a_call_that_is_refused_does_not_reach_the_driver(calls):
    assert calls("alloc:2G", "calls:cuMemAlloc_v2") == ["alloc 2", "cuMemAlloc_v2 0 calls 0"]


@pytest.mark.parametrize("bytes_", ["0", "18446744073709551615", "9223372036854775807"])
def test_sizes_that_no_device_has(calls, bytes_):
    said = calls(f"alloc:{bytes_}", "alloc:1000M", "info")
    assert said[0] in ("alloc 1", "alloc 2")
    assert said[1:] == ["alloc 0", f"free {24 * MIB} total {GIB} info 0"]


def test_each_device_has_its_own_limit(calls):
    said = calls(
        "alloc:600M",
        "alloc:600M",
        "device:1",
        "alloc:600M",
        "alloc:600M",
        "total",
        STRATA_MEMORY_LIMIT_1=str(2 * GIB),
    )
    assert said == ["alloc 0", "alloc 2", "device 0", "alloc 0", "alloc 0", f"total {2 * GIB} total 0"]


def test_memory_of_the_host_is_nobodys(calls):
    assert calls("host:8G", "createhost:8G", "info") == [
        "host 0",
        "createhost 0",
        f"free {GIB} total {GIB} info 0",
    ]


def test_a_driver_without_the_new_functions(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, driver="old", STRATA_MEMORY_LIMIT=str(GIB))
    for door in ("dlsym", "gpa1", "gpa:2"):
        done = accelerators.run("calls", door, "alloc:600M", "alloc:600M", "free:0", "info", env=env)
        assert done.stdout.splitlines() == ["alloc 0", "alloc 2", "free 0", f"free {GIB} total {GIB} info 0"]
        assert done.stderr == ""


def test_a_program_without_any_driver(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB))
    done = accelerators.run("/bin/echo", "hello", env=env)
    assert (done.stdout, done.stderr, done.returncode) == ("hello\n", "", 0)
    assert not ledger.exists()


def test_another_library_in_the_preload_before_and_behind(accelerators, ledger):
    shim = accelerators.folder / "libshim.so"
    for preload in (f"{shim}:{accelerators.library}", f"{accelerators.library} {shim}"):
        env = accelerators.environment(ledger=ledger, preload=preload, STRATA_MEMORY_LIMIT=str(GIB))
        done = accelerators.run("calls", "gpa:0", "alloc:600M", "alloc:600M", env=env)
        assert done.stdout.splitlines() == ["alloc 0", "alloc 2"]
        assert done.stderr == "shim: here\n"


NVML = """
import ctypes
class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]
class Memory2(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint)]
    _fields_ += [(name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")]
nvml = ctypes.CDLL("libnvidia-ml.so.1")
nvml.nvmlInit_v2()
device = ctypes.c_void_p()
nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
one, two = Memory(), Memory2(version=0x2000028)
print(nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(one)), one.total, one.free, one.used)
print(nvml.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(two)), two.total, two.free, two.used)
"""


def nvml(env):
    done = subprocess.run([sys.executable, "-c", NVML], env=env, capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_nvml_shows_the_slice_too(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB))
    with accelerators.start("calls", "dlsym", "alloc:600M", "wait", env=env) as holder:
        assert holder.stdout.readline() == "alloc 0\n"
        said = nvml(env)
        holder.kill()
    assert said == [f"0 {GIB} {424 * MIB} {600 * MIB}"] * 2


def test_nvml_shows_it_before_anybody_has_used_it(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB))
    assert nvml(env) == [f"0 {GIB} {GIB} 0"] * 2


def test_nvml_shows_the_whole_device_where_there_is_no_limit(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT_1=str(GIB))
    assert nvml(env) == [f"0 {80 * GIB} {80 * GIB} 0"] * 2
