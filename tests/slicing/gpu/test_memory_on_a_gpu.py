# ruff: noqa: T201
"""What the library assumes of an NVIDIA driver's memory, against what NVML says of the device meanwhile.

All these need the device to themselves: an observer cannot tell one's memory from another's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.slicing.gpu.machine import GIB, LIMIT, PROGRAMS, environment, run, why_no_gpu, with_torch

pytestmark = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")
MIB = 1 << 20
PATIENCE_S = 120.0


@pytest.fixture
def observer():
    from tests.slicing.gpu.nvml import Observer

    return Observer()


def start(program: str, *words: str, env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAMS / program), *words],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def settled(observer, is_there) -> tuple[int, float]:
    """Wait until what the device holds is as it should be; return it, and how long that took [s]."""
    begun = time.monotonic()
    while not is_there(used := observer.used_bytes()) and time.monotonic() < begun + PATIENCE_S:
        time.sleep(0.01)
    return used, time.monotonic() - begun


def test_a_slice_is_charged_what_the_device_gives(ledger, observer):
    with start("kinds.py", env=environment(ledger)) as program:
        rows, bare = [], 0
        for line in program.stdout:
            told = json.loads(line)
            used = observer.used_bytes()
            if not told["kind"]:
                bare = used
            elif told["charged"]:
                rows.append((told["kind"], told["charged"], used - bare))
            program.stdin.write("\n")
            program.stdin.flush()
    print("\nkind, charged [MiB], taken from the device [MiB]")
    for kind, charged, taken in rows:
        print(f"{kind:18} {charged / MIB:10.1f} {taken / MIB:10.1f}")
    assert program.returncode == 0
    # A page or chunk that stays with the driver counts for nobody; texels are less than their tiling.
    assert [
        row for row in rows if row[2] > row[1] * (1.3 if "array" in row[0] or "mip" in row[0] else 1) + 64 * MIB
    ] == []


def test_what_a_killed_process_held_is_charged_as_long_as_the_device_holds_it(ledger, observer):
    empty = observer.used_bytes()
    with start("orphan.py", env=environment(ledger)) as parent:
        told = json.loads(parent.stdout.readline())
        assert told["code"] == 0
        try:
            parent.kill()
            parent.wait()
            time.sleep(2)
            kept = observer.used_bytes() - empty
            beside = run("driver.py", env=environment(ledger))["plain"][0]
        finally:
            os.kill(told["child"], signal.SIGKILL)
        _, took_s = settled(observer, lambda used: used < empty + 256 * MIB)
    after = run("driver.py", env=environment(ledger))["plain"][0]
    print(
        f"\na killed process's child kept {kept / MIB:.0f} MiB of the device; free {took_s:.2f} s behind its death"
    )
    assert took_s < PATIENCE_S
    assert after >= 13
    if kept >= GIB:  # whether the driver frees at the last descriptor is what this is to find out
        assert beside <= after - 4


def test_pools_full_of_holes_stay_within_the_limit(ledger, observer):
    most = 0
    with start("fragments.py", "1", "20000", env=environment(ledger)) as program:
        program.stdout.readline()
        empty = observer.used_bytes()  # with the program's context, which this slice is not charged
        program.stdin.write("\n")
        program.stdin.flush()
        while program.poll() is None:
            most = max(most, observer.used_bytes() - empty)
        told = json.loads(program.stdout.read())
    print(f"\npools: {told['refused']} of 20000 refused, at most {most / MIB:.0f} MiB of {LIMIT / MIB:.0f}")
    assert told["left"] == told["room"]
    assert most <= LIMIT + 64 * MIB


def test_the_end_of_a_context_gives_back_what_the_driver_gives_back(ledger):
    """A context that is retained twice outlives one release: the driver's own account says so without a slice."""

    def given_back(env) -> list[int]:
        left = list(run("resets.py", env=env)["left"].values())
        return [left[0] - amount for amount in left]

    assert given_back(environment(ledger)) == given_back(environment(None))


def test_exported_memory_is_charged_once(ledger):
    command = [sys.executable, str(PROGRAMS / "shared.py")]
    done = subprocess.run(command, env=environment(ledger), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    imported, exported = map(json.loads, done.stdout.splitlines())
    print(f"\n{imported} {exported}")
    assert exported["charged"] == (1024 if exported["exported"] == "fd" else 512) * MIB
    assert imported["charged"] == 0
    assert set(imported["codes"]) == {0}


@with_torch
def test_captured_temporaries_larger_than_the_slice_run_where_their_peak_fits(ledger):
    env = environment(ledger, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    told = run("captured.py", env=env)
    assert told["sum"] > LIMIT
    assert told["is_right"]


def test_the_start_of_a_program_costs_little(ledger):
    took: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(7):
        for name, env in (("without", environment(None)), ("with", environment(ledger))):
            begun = time.monotonic()
            run("resets.py", env=env)
            took[name].append(time.monotonic() - begun)
    least = {name: min(times) for name, times in took.items()}
    print(f"\na program with four contexts [s]: {least}")
    assert least["with"] <= 1.2 * least["without"] + 0.1


@with_torch
def test_a_context_in_a_pid_namespace_is_charged_about_what_it_takes(ledger, observer):
    """As in a container: NVML lists the host's pids, so that a stated constant is charged."""
    from strata.fleet.ledger import read_ledger

    if subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True).returncode != 0:
        pytest.skip("needs to make a pid namespace: root")
    bare = observer.used_bytes()
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable]
    command += [str(PROGRAMS / "out_of_memory.py"), "--hold"]
    env = environment(ledger, STRATA_CONTEXT_BYTES="")
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        reserved = json.loads(program.stdout.readline())["reserved"]
        taken = observer.used_bytes() - bare - reserved
        (use,) = read_ledger(ledger, name="s")
        program.communicate("\n", timeout=PATIENCE_S)
    print(f"\na context took {taken / MIB:.0f} MiB, charged {use.context_bytes / MIB:.0f}, {use.context_trust}")
    assert program.returncode == 0
    assert use.context_bytes == pytest.approx(taken, abs=32 * MIB)
