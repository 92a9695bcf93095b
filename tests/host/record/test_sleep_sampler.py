"""Where threads sleep, by looking while they are recorded: real programs, and what procfs may say."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from strata.host.record.sleep_sampler import MOST_AT_ONCE, SleepSampler, sleeping_of
from strata.host.record.work import RecordedCommand

DEADLINE_S = 240
SLEEPERS = {
    "pipe": "os.read(os.pipe()[0], 1)",
    "futex": "lock.acquire()",
    "timer": "time.sleep(1e6)",
    "events": "select.select([], [], [])",
    "socket": "ends[0].recv(1)",
    "child": "os.waitpid(child, 0)",
    "interpreter_lock": "while True: time.sleep(0.01)",
}
"""What one thread does for ever. The last: another thread keeps the interpreter for itself meanwhile."""
PROGRAM = """
import ctypes, os, select, socket, sys, threading, time
lock = threading.Lock(); lock.acquire()
ends = socket.socketpair()
child = os.fork() if {call!r} == "child" else 0
if {call!r} == "child" and not child:
    sys.stdin.read(); os._exit(0)
told = threading.Event()
def sleep():
    print(threading.get_native_id(), flush=True)
    told.set()
    {sleep}
threading.Thread(target=sleep, daemon=True).start()
if {call!r} == "interpreter_lock":
    told.wait()
    sys.setswitchinterval(1000)
    while True: pass
sys.stdin.read(); os._exit(0)
"""


def is_readable():
    return Path("/proc/self/syscall").exists() and bool(Path("/proc/self/syscall").read_text())


@pytest.mark.skipif(not is_readable(), reason="this kernel does not say in which call a thread is")
@pytest.mark.parametrize("call", SLEEPERS)
def test_what_a_real_thread_sleeps_in_is_found(call):
    program = PROGRAM.format(call=call, sleep=SLEEPERS[call])
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            tid = int(process.stdout.readline())
            sampler, until_s = SleepSampler(), time.monotonic() + DEADLINE_S
            # On its way there it may be found elsewhere; once there it stays.
            while not (found := sampler.counts.get(tid, {})).get(call) and time.monotonic() < until_s:
                assert Path(f"/proc/{process.pid}/task/{tid}").exists()
                sampler.follow([(process.pid, tid)])
                sampler.sample()
                time.sleep(0.01)
            assert found.get(call), dict(found)
            sampler.counts.clear()
            for _ in range(5):
                sampler.sample()
            assert sampler.to_list() == [{"tid": tid, "counts": {call: 5}}]
        finally:
            process.kill()


def thread(root, tid, syscall, state="S"):
    folder = root / f"proc/1/task/{tid}"
    folder.mkdir(parents=True)
    (folder / "syscall").write_text(syscall)
    (folder / "stat").write_text(f"{tid} (a ) b) {state} 1 1")


def test_a_fault_is_told_from_a_stop(tmp_path):
    for tid, state in ((1, "D"), (2, "T"), (3, "t"), (4, "S")):
        thread(tmp_path, tid, "-1 0x7ffd 0x7fb4", state)
    thread(tmp_path, 5, "running")
    sampler = SleepSampler(tmp_path)
    sampler.follow((1, tid) for tid in range(1, 7))
    sampler.sample()
    assert sampler.counts == {1: {"fault": 1}, 4: {"fault": 1}}


def test_of_many_threads_each_has_its_turn(tmp_path):
    tids = range(1, 3 * MOST_AT_ONCE // 2 + 1)
    for tid in tids:
        thread(tmp_path, tid, "-1 0x7ffd 0x7fb4")
    sampler = SleepSampler(tmp_path)
    sampler.follow((1, tid) for tid in tids)
    for _ in range(3):
        sampler.sample()
    assert {tid: counts["fault"] for tid, counts in sampler.counts.items()} == dict.fromkeys(tids, 2)


def test_what_was_counted_comes_back_and_calls_of_other_versions_are_left_out():
    data = [{"tid": 7, "counts": {"futex": 3, "teleport": 1}}]
    assert sleeping_of(data) == {7: {"futex": 3}}


def test_a_recording_samples_until_its_command_ends():
    work, seen = RecordedCommand(seconds=None, command=("sleep", "0.2")), []
    work.witness.samples, work.witness.sample = True, lambda: seen.append(work.root_pid)
    work.start()
    work.wait()
    assert work.exit_code == 0
    assert seen
    assert set(seen) == {work.root_pid}


def test_or_until_a_process_or_the_time_is_over():
    work, seen = RecordedCommand(seconds=0.1, pid=os.getpid()), []
    work.witness.samples, work.witness.sample = True, lambda: seen.append(1)
    work.wait()
    assert seen
    work = RecordedCommand(seconds=0.1)
    work.wait()
    assert work.exit_code is None
