# ruff: noqa: T201
"""What the tests on a GPU share: whether there is one, an environment in a slice, and how a program is run."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from strata.slicing.build import library

PROGRAMS = Path(__file__).parent / "programs"
GIB = 1 << 30
LIMIT = 4 * GIB


def why_no_gpu() -> str:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "needs an NVIDIA GPU: there is no libcuda.so.1"
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "needs an NVIDIA GPU: the driver finds none"
    return ""


with_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


def environment(ledger: Path | None, **more: str) -> dict[str, str]:
    """Return this environment with a slice's, or with none: contexts are not charged, unless `more` says so."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("STRATA_", "LD_PRELOAD"))}
    if ledger is not None:
        env |= {
            "LD_PRELOAD": str(library()),
            "STRATA_MEMORY_LIMIT": str(LIMIT),
            "STRATA_LEDGER": str(ledger),
            "STRATA_CONTEXT_BYTES": "0",
        }
    return {name: value for name, value in (env | more).items() if value}


def run(program: str, *words: str, env: dict[str, str], timeout_s: float = 300) -> dict:
    """Run a program to its end and return the last line it printed."""
    command = [sys.executable, str(PROGRAMS / program), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stderr
    assert "strata-quota" not in done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    print(f"\n{program} {' '.join(words)[:60]} {json.dumps(told)}")
    return told
