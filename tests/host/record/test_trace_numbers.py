"""Recording where threads have other numbers than in the kernel's traces, as in a container: real namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from strata.errors import MissingPart
from strata.host.record import tracefs
from strata.host.record.trace_numbers import TraceNumbers, numbers_in, trace_numbers
from strata.host.trace.events import IDLE, OUTSIDE
from strata.host.trace.read import read_trace
from tests.host.traces import IDLE as IDLE_THREAD
from tests.host.traces import Text

MARK = "          strata-900   [001] ...1.   792.57: tracing_mark_write: {}"
WAIT = "          {who}   [000] d..2.   792.58: sched_wait_task: comm={comm} pid={tid} prio=120"


def lines(*parts):
    return "\n".join(["# tracer: nop", "#", *parts, ""])


def waited(tid, *, comm="python3", who="strata-900"):
    return WAIT.format(who=who, comm=comm, tid=tid)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        pytest.param(lines(MARK.format(7), waited(907), waited(907)), {7: 907}, id="asleep"),
        pytest.param(lines(MARK.format(7), MARK.format(8), waited(908)), {8: 908}, id="running"),
        pytest.param(lines(MARK.format("I am 5")), {5: 900}, id="a command that starts"),
        pytest.param(lines(MARK.format(7), waited(907), waited(31, who="gdb-44")), {7: 907}, id="another asks"),
        pytest.param(lines(MARK.format(7), waited(907, comm=" a-b pid=1 pr")), {7: 907}, id="an odd name"),
        pytest.param(lines(MARK.format(7), waited(907, comm="\n pid=1 prio=1")), {}, id="a name of two lines"),
        pytest.param(lines(MARK.format(7), waited(907, comm=" pid=1 prio=1\n")), {}, id="a name that lies"),
        pytest.param(lines(waited(907)), {}, id="nobody was asked for"),
        pytest.param("", {}, id="nothing"),
    ],
)
def test_a_buffer_tells_the_numbers_of_threads_that_slept(text, numbers):
    assert numbers_in(text) == numbers


SWITCH = (
    "   python3  {}/{}   [001]   728.213839575:       sched:sched_switch: prev_comm={} prev_pid={} prev_prio=120 p"
)


def test_perf_tells_the_numbers_of_threads_that_ran(tmp_path):
    text = "\n".join(
        [
            SWITCH.format(7, 8, "python3", 907),
            SWITCH.format(0, 0, "swapper/1", 0),
            SWITCH.format(0, 0, "redis", 31),
            SWITCH.format(7, 9, " prev_pid=1 pre", 909),
            SWITCH.format(7, 8, "python3", 950),  # the number was given again
            "   python3  7/7   [001]   728.213839575:    sched:sched_wakeup: comm=a pid=31 prio=120 target_cpu=0",
        ]
    )
    numbers = TraceNumbers.__new__(TraceNumbers)
    numbers.known = {}
    numbers.read(text.encode())
    assert numbers.known == {8: 907, 9: 909}


def test_a_trace_is_renumbered_and_threads_outside_collide_with_none(tmp_path):
    text = Text()
    text.switch(1.0, 0, IDLE_THREAD, ("python3", 907))
    text.switch(1.1, 0, ("python3", 907), ("rcu_preempt", 17))
    text.switch(1.2, 0, ("rcu_preempt", 17), IDLE_THREAD)
    events = text.trace(tmp_path).renumbered({907: 17}).events
    assert (events.tid.tolist(), events.other.tolist()) == ([IDLE, 17, OUTSIDE + 17], [17, OUTSIDE + 17, IDLE])


def test_a_kernel_that_does_not_record_it_is_not_asked(tmp_path):
    with trace_numbers(tmp_path) as numbers:
        assert numbers is None


TRAINER = """
import threading, time
def spin():
    while True:
        time.sleep(0.001)
        sum(range(1000))
threading.Thread(target=spin, daemon=True).start()
end = time.monotonic() + 1.5
while time.monotonic() < end:
    time.sleep(0.002)
    sum(range(20000))
"""
INSIDE = """
[ -e /sys/kernel/tracing/events ] || mount -t tracefs nodev /sys/kernel/tracing || exit 77
[ -e /sys/kernel/tracing/events/sched/sched_wait_task ] || exit 77
"$0" -m strata host record --how tracefs -o trace.txt -- "$0" -c "$1" &&
"$0" -m strata host report trace.txt -o json > report.json
"""


def unshared(*command, proc="--mount-proc", **more):
    return subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", *([proc] if proc else []), *command],
        capture_output=True, text=True, timeout=300, check=False, **more,
    )  # fmt: skip


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces and traces")


@needs_root
@pytest.mark.long("a recording and its report: three starts of Python")
def test_in_a_container_the_report_is_about_the_command_and_in_its_numbers(tmp_path):
    done = unshared("sh", "-c", INSIDE, sys.executable, TRAINER, cwd=tmp_path)
    if done.returncode == 77:
        pytest.skip("no tracefs, or a kernel without sched_wait_task")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    snapshot = json.loads((tmp_path / "trace.txt.host.json").read_text())
    job = snapshot["pid"]
    threads = {tid for look in snapshot["census"] for tid, pid in look["threads"].items() if pid == job}
    told = json.loads((tmp_path / "report.json").read_text())
    critical = [thread["tid"] for thread in told["threads"] if thread["is_critical"]]
    # The command is one of the first processes there, while the machine has started thousands.
    assert (critical, job < 1000) == ([job], True), told["verdict"]
    by_number = {thread["tid"]: thread for thread in told["threads"]}
    assert threads <= {str(tid) for tid in by_number}
    assert told["sleeps"][0]["samples"] > 10
    assert read_trace(tmp_path / "trace.txt").num_events > 100
    outside = [tid for tid in by_number if tid >= OUTSIDE]
    assert len(outside) > 2


@needs_root
def test_a_proc_of_another_namespace_is_refused(tmp_path):
    command = [sys.executable, "-m", "strata", "host", "record", "--quick", "--seconds", "0.1"]
    done = unshared(*command, proc="", cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    assert "/proc is that of another namespace of processes" in done.stderr


def test_a_container_s_root_who_may_not_trace_is_not_sent_to_sudo(tmp_path, monkeypatch):
    (tmp_path / "sys/kernel/tracing/events").mkdir(parents=True)

    def refuse(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(type(tmp_path), "stat", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(MissingPart, match="this container's is not") as caught:
        tracefs.find(tmp_path)
    assert caught.value.hint.startswith("outside this container; or strata host record --quick")
