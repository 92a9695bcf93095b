"""The programs for a real GPU that need only a driver, on the fake one: they are run rarely enough elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.slicing.fake_accelerators import GIB

PROGRAMS = Path(__file__).parent / "gpu" / "programs"


def run(program, *words, env):
    done = subprocess.run(
        [sys.executable, PROGRAMS / program, *words], env=env, capture_output=True, text=True, timeout=60
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
