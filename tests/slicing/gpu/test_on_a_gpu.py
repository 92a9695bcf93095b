# ruff: noqa: T201
"""The quota on a real NVIDIA GPU: what the fake driver cannot tell. Each skips with a reason where there is none.

All of these, with what was measured: make test-gpu
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys

import pytest

from strata.slicing.build import SOURCES
from tests.slicing.gpu.machine import GIB, LIMIT, PROGRAMS, environment, run, why_no_gpu, with_torch

BLOCK = GIB // 4
pytestmark = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")


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
        wraps |= set(
            re.findall(r"^(?:LAUNCHES|SYNCHRONIZES|MARKS|WAITS|CREATES)\((\w+),", source.read_text(), re.MULTILINE)
        )
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
def test_a_trainers_share_of_the_cores_is_kept(ledger, percent):
    whole = run("throughput.py", "10", env=environment(ledger))["large"]
    part = run("throughput.py", "10", env=environment(ledger, STRATA_CORES_LIMIT=str(percent)))["large"]
    print(f"\nasked for {percent} %, got {100 * part / whole:.0f} %")
    assert 100 * part / whole == pytest.approx(percent, abs=5)
