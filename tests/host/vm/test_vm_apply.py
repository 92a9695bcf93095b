"""Policies where the kernel has all they ask for: cgroup v2, two NUMA nodes, a pretended GPU beside one."""

from __future__ import annotations

import json
import signal
import time

import pytest

from tests.host.vm import guest as virtual
from tests.host.vm import guest_side
from tests.host.vm.guest import STRATA
from tests.host.vm.managed_scx import PLAIN, work

GPU_NODE = 1
JOURNAL = "/var/lib/strata/host/undo.jsonl"


@pytest.fixture(scope="module")
def guest(files):
    """A machine with two nodes of two CPUs each."""
    with virtual.Guest(files, cpus=4, nodes=2) as machine:
        yield machine


@pytest.fixture(scope="module")
def job(guest):
    """The trainer's process, and eight that want all CPUs, each in a cgroup of its own as containers are.

    These stand still but for the measurements: strata waits for a CPU as the trainer does.
    """
    guest.call(guest_side.fake_gpu, GPU_NODE)
    pid = work(guest, "trainer_main:500:1500", "st-load:1000:3000", "st-ckpt:300:9000", holding="/dev/nvidia0")
    # As systemd leaves them.
    guest.call(guest_side.write, "/sys/fs/cgroup/cgroup.subtree_control", "+cpu +cpuset +memory +pids")
    guest.call(guest_side.group, "job", pid)
    noise = [work(guest, "hog:10000:0") for _ in range(8)]
    for number, one in enumerate(noise):
        guest.call(guest_side.group, f"batch{number}", one)
    time.sleep(1)  # so that they count as busy
    guest.call(guest_side.kill, signal.SIGSTOP, *noise)
    return [pid, *noise]


@pytest.fixture(scope="module")
def policy(guest, job):
    """The steps for it; they are in PLAIN."""
    found = guest.json("host", "layers", "--plain")
    guest.call(guest_side.write, PLAIN, json.dumps(found))
    return found["steps"]


def test_the_policy_uses_what_this_kernel_has(policy):
    writes = {step["path"].rpartition("/")[2]: step["value"] for step in policy if step["act"] == "write"}
    assert {"cpu.weight", "cpu.idle", "cpuset.cpus", "cpuset.mems", "cgroup.type"} <= writes.keys()
    assert writes["cpuset.mems"] == str(GPU_NODE)
    assert {"mkdir", "attach", "nice", "migrate"} <= {step["act"] for step in policy}


def test_it_takes_the_wait_away_and_undo_restores_everything(guest, job, policy, curves):
    rows = curves.setdefault("plain policy", [])
    before = guest.call(guest_side.settings, *job)

    def measure(state):
        guest.call(guest_side.kill, signal.SIGCONT, *job)
        rows.append({"state": state, **guest.call(guest_side.quietest, job[0])})
        guest.call(guest_side.kill, signal.SIGSTOP, *job[1:])
        return rows[-1]["wait_ms"] / rows[-1]["wall_ms"]

    noisy = measure("noise")
    try:
        applied = guest.json("host", "apply", PLAIN)
        changed = guest.call(guest_side.settings, *job)
        quiet = measure("plain policy, noise")
    finally:
        undone = guest.strata("host", "undo")
    assert undone["code"] == 0, undone["err"]
    assert guest.call(guest_side.settings, *job) == before
    skipped = [step for step in applied["steps"] if step["result"] == "skipped"]
    assert all(step["path"].startswith("/proc/") for step in skipped), skipped
    assert {changed[f"/sys/fs/cgroup/batch{number}/cpu.idle"] for number in range(8)} == {"1"}
    assert changed["/sys/fs/cgroup/job/strata-critical/cgroup.threads"] == str(job[0])
    assert quiet < noisy / 2
    assert measure("undone, noise") > quiet * 2


@pytest.mark.parametrize("lines", [4, 9, 20])
def test_undo_restores_everything_after_a_crash_in_the_middle(guest, job, policy, lines):
    before = guest.call(guest_side.settings, *job)
    assert guest.call(guest_side.kill_at, [str(STRATA), "host", "apply", PLAIN], JOURNAL, lines) == -9
    undone = [change["result"] for change in guest.json("host", "undo")["changes"]]
    assert "restored" in undone
    assert guest.call(guest_side.settings, *job) == before


def test_threads_that_hold_a_gpu_belong_to_its_node(guest, job):
    found = guest.json("host", "threads", "--pid", job[0])
    assert [(gpu["address"], gpu["numa_node"]) for gpu in found["gpus"]] == [("0000:3b:00.0", GPU_NODE)]
    assert {thread["numa_node"] for thread in found["threads"]} == {GPU_NODE}
    [critical] = [thread for thread in found["threads"] if thread["layer"] == "critical"]
    assert critical["name"] == "trainer_main"
