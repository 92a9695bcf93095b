"""The programs for a real GPU that need only a driver, on the fake one: they are run rarely enough elsewhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.slicing.fake_accelerators import GIB, MIB, read_state

PROGRAMS = Path(__file__).parent / "gpu" / "programs"


TAKEN_ON_AN_H200 = {  # MiB of the device, as NVML said beside kinds.py; driver 580.159, 2026-11-26
    "plain 1000 B": 20, "plain 100 KiB": 40, "plain 1 MiB": 100, "plain 1 MiB + 1": 128, "plain 3 MiB": 256,
    "pooled 5 MiB": 224, "pooled 33 MiB": 224, "physical 2 MiB": 128, "array float 2D": 192,
    "array float4 2D": 128, "array byte 1D": 50, "array half 3D": 144, "array layered": 128, "mipmap float": 144,
}  # fmt: skip


def run(program, *words, env):
    done = subprocess.run(
        [sys.executable, PROGRAMS / program, *words],
        env=env, input="\n" * 4, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout.splitlines()[-1])


def test_every_way_of_the_driver_stops_at_the_limit(accelerators, ledger):
    told = run("driver.py", env=accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(4 * GIB)))
    assert (told.pop("free"), told.pop("total")) == (4 * GIB, 4 * GIB)
    assert list(told) == ["plain", "pitched", "managed", "pooled", "physical", "array", "plain again"]
    assert all(way == [16, 2, [0]] for way in told.values())


def test_without_the_library_it_does_not(accelerators):
    told = run("driver.py", env=accelerators.environment(preload=""))
    assert told["plain"] == [64, 0, [0]]


def test_addresses_of_the_fake_agree(accelerators):
    told = run("addresses.py", "cuMemAlloc_v2", "cuMemAllocAsync_ptsz", env=accelerators.environment(preload=""))
    assert told == {"version": 13000, "asked": 2 * 8 * 3, "missing": 0, "differ": []}


def limited(accelerators, ledger, **more):
    return accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(4 * GIB), **more)


def test_what_each_kind_is_charged_is_told_and_given_back(accelerators, ledger):
    done = subprocess.run(
        [sys.executable, PROGRAMS / "kinds.py"],
        env=limited(accelerators, ledger), input="\n" * 100, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    charged = {one["kind"]: one["charged"] for one in told[1::2]}
    # A page of 2 MiB that small pieces share counts for nobody; a chunk of a pool may.
    off = {kind: charged[kind] / MIB - taken for kind, taken in TAKEN_ON_AN_H200.items() if kind in charged}
    assert len(off) == len(TAKEN_ON_AN_H200)
    assert {kind: by for kind, by in off.items() if not -2 <= by <= 34} == {}
    assert {one["charged"] for one in told[2::2]} == {0}


def test_pools_full_of_holes_stay_within_the_limit(accelerators, ledger, tmp_path):
    told = run("fragments.py", "1", "3000", env=limited(accelerators, ledger, FAKE_STATE=str(tmp_path / "state")))
    assert told["refused"] > 0
    assert told["left"] == told["room"]
    assert read_state(tmp_path / "state").peak[0] <= 4 * GIB


def test_contexts_that_end_leave_nothing_and_one_that_is_still_retained_stays(accelerators, ledger):
    told = run("resets.py", env=limited(accelerators, ledger))
    # Retained before the reset and behind it, a context outlives one release, as on an H200.
    assert list(told["left"].values()) == [4 * GIB, 4 * GIB, 4 * GIB - 256 * MIB, 4 * GIB - 256 * MIB]


def test_a_killed_process_leaves_a_child_with_its_memory(accelerators, ledger, tmp_path):
    env = limited(accelerators, ledger, FAKE_STATE=str(tmp_path / "state"), FAKE_DESCRIPTORS="1")
    with subprocess.Popen(
        [sys.executable, PROGRAMS / "orphan.py"], env=env, stdout=subprocess.PIPE, text=True
    ) as parent:
        told = json.loads(parent.stdout.readline())
        parent.kill()
        parent.wait()
        try:
            assert told["code"] == 0
            assert run("driver.py", env=env)["plain"] == [12, 2, [0]]
        finally:
            os.kill(told["child"], signal.SIGKILL)
