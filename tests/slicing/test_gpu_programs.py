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


def run(program, *words, env):
    done = subprocess.run(
        [sys.executable, PROGRAMS / program, *words], env=env, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


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
    assert charged["plain 1000 B"] == 20000 * 1024
    assert charged["plain 3 MiB"] == 64 * 4 * MIB
    assert all(charged.values())
    assert {one["charged"] for one in told[2::2]} == {0}


def test_pools_full_of_holes_stay_within_the_limit(accelerators, ledger, tmp_path):
    told = run("fragments.py", "1", "3000", env=limited(accelerators, ledger, FAKE_STATE=str(tmp_path / "state")))
    assert told["refused"] > 0
    assert told["left"] == told["room"]
    assert read_state(tmp_path / "state").peak[0] <= 4 * GIB


def test_contexts_that_end_leave_nothing(accelerators, ledger):
    told = run("resets.py", env=limited(accelerators, ledger))
    assert set(told["left"].values()) == {4 * GIB}


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
