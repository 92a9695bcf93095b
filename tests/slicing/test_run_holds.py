"""`strata run` and `strata slices` on a fake accelerator: what one limits, the other shows."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.slicing.fake_accelerators import MIB

HOLD = """
import ctypes, sys
driver, context, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxSetCurrent(context)
for line in sys.stdin:
    print(driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(line))), flush=True)
"""


@pytest.fixture
def strata(accelerators, tmp_path):
    """Start `strata` with words, and end what is left of it."""
    (tmp_path / "hold.py").write_text(HOLD)
    env = accelerators.environment(
        preload="", XDG_RUNTIME_DIR=str(tmp_path), XDG_CACHE_HOME=str(accelerators.folder)
    )
    started = []

    def start(*words):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen([sys.executable, "-m", "strata", *words], env=env, text=True, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def hold(strata, tmp_path):
    return lambda *words: strata("run", *words, "--", sys.executable, str(tmp_path / "hold.py"))


def ask(process, mib):
    process.stdin.write(f"{mib * MIB}\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def shown(strata, *names):
    """Return the slices of these names: root sees those of everybody on the machine."""
    out, err = strata("slices", "-o", "json").communicate(timeout=300)
    assert err == ""
    return [use for use in json.loads(out)["slices"] if use["name"] in names]


def test_two_runs_of_a_slice_share_its_limit_and_both_are_shown(hold, strata):
    first, second = (hold("--memory", "1Gi", "--slice", "both") for _ in range(2))
    assert ask(first, 600) == 0
    assert ask(second, 600) == 2
    assert ask(second, 300) == 0
    (one,) = shown(strata, "both")
    assert (one["name"], one["device"], one["limit_bytes"]) == ("both", 0, 1024 * MIB)
    used = {holder["pid"]: holder["used_bytes"] for holder in one["processes"]}
    assert used.keys() == {first.pid, second.pid}
    assert used[first.pid] - used[second.pid] == 300 * MIB
    assert one["used_bytes"] == sum(used.values()) <= 1024 * MIB
    first.kill()
    first.wait()
    (one,) = shown(strata, "both")
    assert [holder["pid"] for holder in one["processes"]] == [second.pid]
    assert ask(second, 600) == 0


def test_runs_without_a_name_have_limits_of_their_own(hold, strata):
    first, second = (hold("--memory", "1Gi") for _ in range(2))
    assert [ask(first, 600), ask(second, 600)] == [0, 0]
    names = [f"run-{process.pid}" for process in (first, second)]
    assert sorted(use["name"] for use in shown(strata, *names)) == sorted(names)
    first.communicate()
    second.communicate()
    assert shown(strata, *names) == []


def test_a_limit_beyond_the_device_is_said_to_be_none(strata):
    _, err = strata("run", "--memory", "200Gi", "--", "true").communicate(timeout=300)
    assert err == "warning: a limit of 200GiB has no effect: the largest device has 80GiB\n"
