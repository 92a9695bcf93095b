"""What the library exports and needs: every function of the driver that takes memory, and no newer C library."""

from __future__ import annotations

import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from strata.slicing.build import SOURCES
from strata.slicing.elf import read_elf
from tests.slicing.fake_accelerators import NATIVE, find_cudarts, of_nvidias_wheels

LIST = Path(__file__).parent / "data" / "cudart_symbols.txt"
ABOUT_MEMORY = re.compile(
    "Alloc|Free|Create|Destroy|Import|Pool|Retain|Release|Reset|Trim|TotalMem|MemGetInfo|Launch|GraphAdd|Instantiate"
    "|Module(Load|Unload)|Library(Load|Unload)|Detach|Ipc"
)


@pytest.fixture(scope="module")
def exported(accelerators) -> set[str]:
    done = subprocess.run(
        ["nm", "--dynamic", "--defined-only", accelerators.library], capture_output=True, text=True, check=True
    )
    # The versions themselves are listed too, as absolute symbols.
    rows = [line.split() for line in done.stdout.splitlines()]
    return {name.split("@")[0] for _, kind, name in rows if kind != "A"}


def listed() -> dict[str, str]:
    """Return the names of the list, and why a name has no wrapper; "" where it has one."""
    lines = [line for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    return {name: reason for name, _, reason in (line.partition(" ") for line in lines)}


def test_it_runs_on_glibc_2_17(accelerators):
    elf = read_elf(accelerators.library)
    assert elf is not None
    assert (0, 0) < elf.glibc() <= (2, 17)


def test_it_needs_the_c_library_alone(accelerators):
    done = subprocess.run(["readelf", "-dW", accelerators.library], capture_output=True, text=True, check=True)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", done.stdout))
    assert needed <= {
        "libc.so.6",
        "libdl.so.2",
        "libpthread.so.0",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
    }
    # Everything it calls is there when it is loaded: nothing is looked up late in the middle of an allocation.
    assert "STATIC_TLS" in done.stdout or "TLSDESC" not in done.stdout


def test_it_exports_doors_and_drivers_functions_and_nothing_else(exported):
    assert exported
    assert all(re.fullmatch(r"dlsym|cu[A-Z]\w+|nvml\w+|rt[A-Z]\w+|aclrt\w+", name) for name in exported)
    wraps = set()
    for source in SOURCES.glob("*.c"):
        wraps |= set(
            re.findall(r"^QUOTA_WRAP(?:\(\w+|_SINCE\(\w+, \w+), (\w+),", source.read_text(), re.MULTILINE)
        )
    assert wraps <= exported


def test_every_wrapper_of_the_driver_is_tried_on_a_fake_one(exported):
    fakes = "".join(path.read_text() for path in (NATIVE / "fakes").glob("*.c"))
    missing = {name for name in exported if not re.search(rf"\b{name}\b", fakes)} - {"dlsym"}
    assert missing <= {
        # Ascend's for images and managed memory: as rtMalloc and rtFree, by the same lines.
        "rtMemAllocManaged",
        "rtMemFreeManaged",
        "rtDvppMalloc",
        "rtDvppMallocWithFlag",
        "rtDvppFree",
        "aclrtMallocForTaskScheduler",
    }


def test_what_cudart_asks_for_and_takes_memory_has_a_wrapper(exported):
    wrapped = {re.sub(r"_v\d$", "", name) for name in exported} | exported
    assert {name for name, reason in listed().items() if not reason} - wrapped == set()


def test_what_is_left_alone_is_left_alone(exported):
    patterns = [name for name, reason in listed().items() if reason]
    about_memory = [name for name in exported if ABOUT_MEMORY.search(name)]
    assert [name for name in about_memory if any(fnmatchcase(name, pattern) for pattern in patterns)] == []


@pytest.mark.real("cudart")
def test_the_list_has_everything_that_the_real_cudart_asks_for():
    known = listed()
    for path in find_cudarts() or []:
        names = {one.decode() for one in re.findall(rb"(?<![\w$])cu[A-Z][A-Za-z0-9_]+(?=\0)", path.read_bytes())}
        asked = {name for name in names if ABOUT_MEMORY.search(name)}
        assert len(asked) > 80, path
        unknown = {name for name in asked if not any(fnmatchcase(name, pattern) for pattern in known)}
        assert unknown == set(), path


@pytest.mark.real("cudart", "cc")
@pytest.mark.parametrize("header", of_nvidias_wheels("*/include/cuda.h"), ids=lambda path: path.parent.parent.name)
def test_what_is_spelled_without_nvidias_header_is_what_it_says(header, accelerators):
    source = NATIVE / "programs" / "header.c"
    done = subprocess.run(
        ["cc", "-std=c11", "-fsyntax-only", "-I", header.parent, source], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


START = """
import ctypes, sys
driver, runtime, count = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(sys.argv[1]), ctypes.c_int()
print(runtime.cudaGetDeviceCount(ctypes.byref(count)), driver.fake_calls(b"cuGetProcAddress_v2"))
"""


@pytest.mark.real("cudart", "cc")
@pytest.mark.parametrize("path", of_nvidias_wheels("*/lib/libcudart.so.*"), ids=lambda path: path.name)
def test_the_real_cudart_comes_in_by_our_doors_and_notices_nothing(path, accelerators, ledger, tmp_path):
    # It does not get far on a fake driver, which has no export tables; how far is the same with the library.
    said, asked = [], []
    for preload in ("", None):
        log = tmp_path / f"asked {preload}"
        env = accelerators.environment(
            ledger=ledger, preload=preload, STRATA_MEMORY_LIMIT="1Gi", FAKE_VERSION="13990", FAKE_ASKED=str(log)
        )
        done = subprocess.run(
            [sys.executable, "-c", START, path], env=env, capture_output=True, text=True, timeout=300
        )
        assert done.stderr == ""
        said.append(done.stdout)
        asked.append([line.split(" ") for line in log.read_text().splitlines()])
    assert said[0] == said[1]
    assert asked[0] == asked[1]
    assert len(asked[1]) > 400
    wanted = {name for name, _, _ in asked[1] if ABOUT_MEMORY.search(name)}
    assert {name for name in wanted if not any(fnmatchcase(name, pattern) for pattern in listed())} == set()
