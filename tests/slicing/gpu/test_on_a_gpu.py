# ruff: noqa: T201
"""The quota on a real NVIDIA GPU: what the fake driver cannot tell. Each skips with a reason where there is none.

By hand, with what was measured: python -m pytest tests/slicing/gpu -s
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from strata.slicing.build import SOURCES, library

PROGRAMS = Path(__file__).parent / "programs"
GIB = 1 << 30
LIMIT = 4 * GIB
BLOCK = GIB // 4


def why_no_gpu() -> str:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "needs an NVIDIA GPU: there is no libcuda.so.1"
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "needs an NVIDIA GPU: the driver finds none"
    return ""


pytestmark = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")
with_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


def environment(ledger: Path | None, **more: str) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("STRATA_", "LD_PRELOAD"))}
    if ledger is not None:
        env |= {"LD_PRELOAD": str(library()), "STRATA_MEMORY_LIMIT": str(LIMIT), "STRATA_LEDGER": str(ledger)}
    return env | more


def run(program: str, *words: str, env: dict[str, str]) -> dict:
    command = [sys.executable, str(PROGRAMS / program), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "strata-quota" not in done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    print(f"\n{program} {' '.join(words)[:60]} {json.dumps(told)}")
    return told


def test_every_way_of_the_driver_stops_at_the_limit(ledger):
    told = run("driver.py", env=environment(ledger))
    assert told.pop("total") == LIMIT
    assert told.pop("free") == LIMIT
    for way, (blocks, code, codes) in told.items():
        # A pool may keep a part of a block between its chunks; managed memory and arrays take more than asked.
        assert 15 <= blocks <= 16, way
        assert (code, codes) == (2, [0]), way


def test_addresses_of_exports_and_of_get_proc_address_agree():
    wraps = set()
    for source in SOURCES.glob("*.c"):
        wraps |= set(
            re.findall(r"^QUOTA_WRAP(?:\(CUDA|_SINCE\(CUDA, \w+), (\w+),", source.read_text(), re.MULTILINE)
        )
        wraps |= set(re.findall(r"^(?:LAUNCHES|SYNCHRONIZES)\((\w+),", source.read_text(), re.MULTILINE))
    told = run("addresses.py", *sorted(wraps), env=environment(None))
    assert told["asked"] > 200
    if told["differ"]:
        # Then it is by name that the library swaps: the doors have to hold nevertheless, which the others test.
        pytest.xfail(f"{len(told['differ'])} addresses differ: {told['differ'][:5]}")


ALLOCATORS = {
    "native": "backend:native",
    "expandable": "expandable_segments:True",
    "pools": "backend:cudaMallocAsync",
}


@with_torch
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_pytorch_gets_its_own_error_at_the_limit_and_goes_on(ledger, allocator):
    setting = ALLOCATORS[allocator]
    env = environment(ledger, PYTORCH_CUDA_ALLOC_CONF=setting, PYTORCH_ALLOC_CONF=setting)
    told = run("out_of_memory.py", env=env)
    assert told["total"] == LIMIT
    assert told["said"] == "OutOfMemoryError"
    assert 14 <= told["blocks"] <= 16
    assert told["reserved"] <= LIMIT
    assert told["is_right"]
    assert told["again"] >= told["blocks"] // 2 - 2


@with_torch
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_cuda_graphs_are_captured_and_replayed(ledger, allocator):
    setting = ALLOCATORS[allocator]
    env = environment(ledger, PYTORCH_CUDA_ALLOC_CONF=setting, PYTORCH_ALLOC_CONF=setting)
    assert run("graphs.py", env=env) == {"is_same": True, "said": "OutOfMemoryError"}


@with_torch
def test_two_processes_share_one_slice(ledger):
    command = [sys.executable, str(PROGRAMS / "out_of_memory.py"), "--hold"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    both = [subprocess.Popen(command, env=environment(ledger), text=True, **pipes) for _ in range(2)]
    held = [json.loads(process.stdout.readline())["bytes"] for process in both]
    outs = [process.communicate("\n", timeout=300) for process in both]
    print(f"\ntwo processes held {held}")
    assert [process.returncode for process in both] == [0, 0], outs
    assert LIMIT - 2 * BLOCK <= sum(held) <= LIMIT


@with_torch
def test_throughput_is_what_it_is_without_the_library(ledger):
    rounds = 5
    ratios: dict[str, list[float]] = {"large": [], "small": [], "allocations": []}
    for number in range(rounds):
        # Each pair in turn first, so that a device that warms up favours neither.
        order = [None, ledger] if number % 2 else [ledger, None]
        told = {one: run("throughput.py", "3", env=environment(one)) for one in order}
        for name, values in ratios.items():
            values.append(told[ledger][name] / told[None][name])
    medians = {name: statistics.median(values) for name, values in ratios.items()}
    print(f"\nthroughput with the library, of that without: {medians}")
    assert medians["large"] >= 0.99
    assert medians["small"] >= 0.99


@with_torch
@pytest.mark.parametrize("percent", [30, 60])
def test_a_share_of_the_cores_is_kept_roughly(ledger, percent):
    whole = run("throughput.py", "5", env=environment(ledger))["large"]
    part = run("throughput.py", "5", env=environment(ledger, STRATA_CORES_LIMIT=str(percent)))["large"]
    print(f"\nasked for {percent} %, got {100 * part / whole:.0f} %")
    assert 0.6 * percent <= 100 * part / whole <= 1.4 * percent
