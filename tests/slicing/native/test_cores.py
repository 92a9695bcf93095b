"""A share of the device's time: kernels wait for it, and nothing else changes. Tested are lower bounds of time."""

from __future__ import annotations

import time

import pytest

from tests.slicing.fake_accelerators import read_state


def launches(accelerators, ledger, tmp_path, *words, kernel_us=2000, door="gpa:0", **more):
    """Return how long a program took [s], and how long the device was busy with it [s]."""
    state = tmp_path / "state"
    env = accelerators.environment(ledger=ledger, FAKE_STATE=str(state), FAKE_KERNEL_US=str(kernel_us), **more)
    begin = time.monotonic()
    done = accelerators.run("calls", door, *words, env=env)
    wall_s = time.monotonic() - begin
    assert (done.returncode, done.stderr) == (0, "")
    assert {line.split()[1] for line in done.stdout.splitlines()} == {"0"}
    return wall_s, read_state(state).busy_us[0] / 1e6


@pytest.mark.real("cc")
@pytest.mark.parametrize("door", ["dlsym", "gpa:0", "gpa:2"])
@pytest.mark.parametrize("kind", ["launch:1", "cooperate"])
def test_kernels_wait_until_the_slice_has_its_share(accelerators, ledger, tmp_path, door, kind):
    words = [kind, "sync"] * 200
    wall_s, busy_s = launches(accelerators, ledger, tmp_path, *words, door=door, STRATA_CORES_LIMIT="20")
    # 0.4 s of kernels at a fifth are 2 s; the start is free, and one kernel of some is measured.
    assert busy_s == pytest.approx(0.4)
    assert wall_s > 1.2


@pytest.mark.real("cc")
def test_graphs_wait_too(accelerators, ledger, tmp_path):
    words = [word for _ in range(100) for word in ("graphlaunch", "free:0", "sync")]
    wall_s, busy_s = launches(
        accelerators, ledger, tmp_path, "graphalloc:1M", *words, kernel_us=4000, STRATA_CORES_LIMIT="20"
    )
    assert busy_s == pytest.approx(0.4)
    assert wall_s > 1.2


def test_without_a_share_no_event_is_recorded(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT="1Gi")
    done = accelerators.run("calls", "dlsym", "launch:50", "calls:cuEventRecord", "calls:cuLaunchKernel", env=env)
    assert done.stdout.splitlines() == ["launch 0", "cuEventRecord 0 calls 0", "cuLaunchKernel 50 calls 0"]


def test_a_driver_that_fails_a_launch_is_not_asked_again(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_CORES_LIMIT="20", FAKE_FAIL="cuLaunchKernel:1:719")
    done = accelerators.run("calls", "dlsym", "launch:1", "launch:1", "calls:cuLaunchKernel", env=env)
    assert done.stdout.splitlines() == ["launch 719", "launch 0", "cuLaunchKernel 2 calls 0"]


def test_a_driver_that_cannot_measure_launches_nevertheless(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_CORES_LIMIT="20", FAKE_FAIL="cuEventRecord:0:801")
    done = accelerators.run("calls", "dlsym", "launch:50", "calls:cuLaunchKernel", env=env)
    assert done.stdout.splitlines() == ["launch 0", "cuLaunchKernel 50 calls 0"]
