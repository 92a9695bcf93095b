"""Schedulers that break, on a real kernel: it takes all tasks back, and the manager tells why and falls back."""

from __future__ import annotations

import json
import re
import signal
import sys

import pytest

from tests.host.vm import guest as virtual
from tests.host.vm import guest_side
from tests.host.vm.managed_scx import PLAIN, POLICY, STATE, Managed, nice, work, write_policy

FORGETFUL = f"""#!{sys.executable}
import os, sys
os.execv("/usr/local/bin/scx_layered", [word for word in sys.argv if word != "--enable-gpu-support"])
"""
METRICS = "/root/scx.prom"
RT_RUNTIME = "/proc/sys/kernel/sched_rt_runtime_us"
STALL = """
import os
os.sched_setaffinity(0, [1])
if os.fork():
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
while True:
    pass
"""
"""A thread that must run on CPU 1, where one of a higher class always does."""


@pytest.fixture(scope="module")
def guest(files):
    """A machine with two CPUs, whose kernel patches itself again and again."""
    with virtual.Guest(files, is_traced=True) as machine:
        yield machine


@pytest.fixture(scope="module")
def trainer(guest):
    """A thread that a policy is for, and a plain policy to fall back to."""
    pid = work(guest, "trainer_main:500:1500")
    write_policy(guest)
    step = {
        "act": "nice",
        "path": f"/proc/{pid}/task/{pid}",
        "value": "-10",
        "layer": "critical",
        "why": "as told",
    }
    guest.call(guest_side.write, PLAIN, json.dumps({"steps": [step]}))
    return pid


def assert_fell_back(guest, trainer, said):
    """The plain steps are taken, the trainer runs by the kernel's own scheduler, and undo restores what was."""
    assert "fallback: 1 of 1 steps applied" in said
    assert nice(guest, trainer) == -10
    assert guest.call(guest_side.text, STATE) == "disabled"
    assert guest.call(guest_side.waits, trainer, 1.0)["run_ms"] > 0
    assert guest.strata("host", "undo")["code"] == 0
    assert nice(guest, trainer) == 0


def test_a_scheduler_with_an_error_is_ejected_told_and_replaced_by_the_plain_policy(guest, trainer):
    def ask_who_used_a_gpu(layers):
        layers[0]["matches"].insert(0, [{"UsedGpuPid": True}, {"IsGroupLeader": True}])
        return layers

    write_policy(guest, "/root/gpu.json", ask_who_used_a_gpu)
    # The manager hands on what the policy needs; this one drops it, so that the scheduler itself gives up.
    guest.call(guest_side.write, "/root/forgetful", FORGETFUL, 0o755)
    options = ("--program", "/root/forgetful", "--fallback", PLAIN, "--metrics", METRICS)
    manager = Managed(guest, *options, policy="/root/gpu.json")
    assert manager.ended() == 4
    said = manager.said
    assert re.search(r"scx_layered: ejected: scx_bpf_error \(.*UsedGpuPid requires --enable_gpu_support\)", said)
    assert 'strata_scx_state{state="ejected"} 1.0\n' in guest.call(guest_side.text, METRICS)
    assert_fell_back(guest, trainer, said)


def test_a_scheduler_that_starves_a_thread_is_ejected_by_the_kernels_watchdog(guest, trainer):
    manager = Managed(guest, "--fallback", PLAIN).attached()
    # Since Linux 7 a twentieth of a CPU is kept for sched_ext, and ever for all that is no real-time thread.
    for cpu in (0, 1):
        guest.call(guest_side.write, f"/sys/kernel/debug/sched/ext_server/cpu{cpu}/runtime", "0")
    before = guest.call(guest_side.text, RT_RUNTIME)
    guest.call(guest_side.write, RT_RUNTIME, "-1")
    stall = guest.call(guest_side.start, [sys.executable, "-c", STALL])
    try:
        assert manager.ended() == 4
    finally:
        guest.call(guest_side.end, stall, 9)
        guest.call(guest_side.write, RT_RUNTIME, before)
    said = manager.said
    assert re.search(r"scx_layered: ejected: runnable task stall \(.* failed to run for \d+", said)
    assert_fell_back(guest, trainer, said)


def test_a_scheduler_that_is_killed_is_told_to_have_died(guest, trainer):
    manager = Managed(guest, "--fallback", PLAIN, "--metrics", METRICS).attached()
    [program] = guest.call(guest_side.leaders, "scx_layered")
    guest.call(guest_side.kill, signal.SIGKILL, program)
    assert manager.ended() == 4
    said = manager.said
    assert "scx_layered: died: signal 9" in said
    assert 'strata_scx_state{state="died"} 1.0\n' in guest.call(guest_side.text, METRICS)
    assert_fell_back(guest, trainer, said)


def test_a_manager_that_is_killed_takes_its_scheduler_along(guest, trainer):
    manager = Managed(guest).attached()
    [program] = guest.call(guest_side.leaders, "scx_layered")
    assert manager.ended(signal.SIGKILL, 60.0) == -signal.SIGKILL
    assert guest.call(guest_side.ended, program, 60.0)
    assert guest.call(guest_side.waits, trainer, 1.0)["run_ms"] > 0
    # And the next one finds nothing in its way.
    refused = guest.strata("host", "run-layered", POLICY, "--program", "/root/nothing")
    assert refused["code"] == 5
    assert "/root/nothing is not here" in refused["err"]
