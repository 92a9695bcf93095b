"""The manager of scx_layered, with a program that plays it and a kernel made of files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import strata.host.manager.run as manager_run
from strata.cli.main import cli
from strata.errors import MissingPart, UsageError
from strata.host.manager.metrics import LATENCY, Metrics
from strata.host.manager.page import frame
from strata.host.manager.run import ManagerPaths, check, events, last_words, manage, wait_until_disabled
from strata.host.manager.stats import NoStats, Stats
from strata.host.manager.watch import GRACE_S, LATE_S, SchedulerState, begin, judge
from strata.net.metrics import render
from strata.net.server import listen, serving

PLAYER = """#!{python}
import json, os, signal, socket, sys, threading, time
root, plot = {root!r}, {plot!r}
scx = root + "/sys/kernel/sched_ext"
if plot == "signals":
    print(next(line for line in open("/proc/self/status") if line.startswith("SigIgn")), file=sys.stderr)
    sys.exit(1)
def kernel(state, ops=""):
    open(scx + "/root/ops", "w").write(ops + "\\n")
    open(scx + "/new", "w").write(state + "\\n")
    os.replace(scx + "/new", scx + "/state")
def end(code, said=""):
    kernel("disabled")
    if said:
        print(said, file=sys.stderr, flush=True)
    os._exit(code)
signal.signal(signal.SIGINT, lambda *_: end(0, "EXIT: unregistered from user space"))
signal.signal(signal.SIGTERM, lambda *_: end(0))
def serve(listener):
    number = 0
    while True:
        stream = listener.accept()[0].makefile("rwb")
        for line in stream:
            number += 1
            request = json.loads(line)
            assert request == {{"req": "stats", "args": {{"target": "top"}}}}
            layer = {{"util": 0.5, "tasks": 3, "l_runq_lat_hist": [1, 2, 0, 1]}}
            figures = {{"busy": 0.25, "total": number, "at": "now", "layers": {{"critical": layer}}}}
            stream.write(json.dumps({{"errno": 0, "args": {{"resp": figures}}}}).encode() + b"\\n")
            stream.flush()
            if plot == "eject" and number == 2:
                end(1, "Error: EXIT: runtime error (non-existent DSQ 0x0)")
            if plot == "crash" and number == 2:
                kernel("disabled")
                os.kill(os.getpid(), signal.SIGKILL)
            if plot == "off" and number == 2:
                open({off!r}, "w").close()
            if plot == "quiet" and number == 2:
                kernel("disabled")
if plot == "refused":
    print("Error: Failed to load BPF program", file=sys.stderr)
    print("Invalid argument", file=sys.stderr)
    sys.exit(1)
kernel("enabling")
listener = socket.socket(socket.AF_UNIX)
os.makedirs(root + "/var/run/scx/root", exist_ok=True)
listener.bind(root + "/var/run/scx/root/stats")
listener.listen()
kernel("enabled", "layered_1.1.2")
threading.Thread(target=serve, args=(listener,), daemon=True).start()
while True:
    signal.pause()
"""


@pytest.fixture
def stage(tmp_path_factory):
    # Short: the name of a Unix socket holds 107 characters.
    root = tmp_path_factory.mktemp("scx")
    (root / "sys/kernel/sched_ext/root").mkdir(parents=True)
    (root / "sys/kernel/sched_ext/state").write_text("disabled\n")
    (root / "sys/kernel/sched_ext/root/events").write_text("SCX_EV_SELECT_CPU_FALLBACK 12\nSCX_EV_BYPASS 1\n")

    class Stage:
        place = ManagerPaths(root, root / "log", root / "off")
        metrics = Metrics()

        def play(self, plot, **more):
            program = root / "scx_layered"
            program.write_text(
                PLAYER.format(python=sys.executable, root=str(root), plot=plot, off=str(self.place.off))
            )
            program.chmod(0o755)
            told = []
            more.setdefault("seconds", 30.0)
            course = manage(
                [str(program)], self.place, metrics=self.metrics, interval_s=0.02,
                tell=lambda course: told.append(course.verdict), **more,
            )  # fmt: skip
            return course, told

        def state(self):
            return (root / "sys/kernel/sched_ext/state").read_text().strip()

    return Stage()


def test_a_scheduler_runs_until_it_is_told_to_stop(stage):
    def publish():
        page = render(stage.metrics.registry)
        if "strata_scx_running 1.0" in page and "delay_seconds_count" in page:
            raise KeyboardInterrupt  # as Ctrl-C and SIGTERM do

    course, told = stage.play("good", publish=publish)
    assert course.verdict == "stopped"
    assert told == ["running", "stopped"]
    assert stage.state() == "disabled"


def test_a_scheduler_is_stopped_when_its_time_is_over(stage):
    assert stage.play("good", seconds=0.5)[0].verdict == "stopped"
    assert wait_until_disabled(stage.place.root)


def test_metrics_of_a_run_are_shown(stage):
    stage.play("eject")
    page = render(stage.metrics.registry)
    assert "strata_scx_running 0.0" in page
    assert 'strata_scx_event{event="SCX_EV_SELECT_CPU_FALLBACK"} 12.0' in page
    assert 'strata_scx_figure{name="busy"} 0.25' in page
    assert 'strata_scx_figure{layer="critical",name="tasks"} 3.0' in page


@pytest.mark.parametrize(
    ("plot", "verdict", "why"),
    [
        ("eject", "ejected", "runtime error (non-existent DSQ 0x0)"),
        ("crash", "died", "signal 9"),
        ("refused", "died", "exit code 1, Error: Failed to load BPF program"),
        ("off", "switched-off", "the kill switch is set"),
    ],
)
def test_the_end_of_a_scheduler_is_told_with_its_reason(stage, plot, verdict, why):
    course, told = stage.play(plot)
    assert (course.verdict, course.why) == (verdict, why)
    assert told[-1] == verdict
    assert wait_until_disabled(stage.place.root)
    assert f'strata_scx_state{{state="{verdict}"}} 1.0' in render(stage.metrics.registry)


def test_a_scheduler_that_the_kernel_dropped_is_ended_though_it_lives(stage, monkeypatch):
    monkeypatch.setattr("strata.host.manager.watch.GRACE_S", 0.1)
    course, _ = stage.play("quiet")
    assert (course.verdict, course.why) == ("ejected", "the kernel says 'disabled'")


def test_a_scheduler_started_in_the_background_can_still_be_stopped(stage):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as `nohup strata host manage ... &` begins
    try:
        course, _ = stage.play("signals")
    finally:
        signal.signal(signal.SIGINT, before)
    assert not int(course.why.rpartition("SigIgn:")[2], 16) >> (signal.SIGINT - 1) & 1


def test_a_program_that_is_none_is_told(stage):
    with pytest.raises(UsageError, match="cannot be started"):
        manage(["/nonexistent/scx_layered"], stage.place, metrics=stage.metrics)


KILLED = """
import sys
from pathlib import Path
from strata.host.manager.metrics import Metrics
from strata.host.manager.run import ManagerPaths, manage
def tell(course):
    print(course.verdict, flush=True)
root = Path(sys.argv[1])
manage([str(root / "scx_layered")], ManagerPaths(root, root / "log", root / "off"), metrics=Metrics(), tell=tell)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_scheduler_never_outlives_its_watcher(stage, number):
    root = stage.place.root
    program = root / "scx_layered"
    program.write_text(PLAYER.format(python=sys.executable, root=str(root), plot="good", off="-"))
    program.chmod(0o755)
    with subprocess.Popen([sys.executable, "-c", KILLED, str(root)], stdout=subprocess.PIPE) as watcher:
        assert watcher.stdout.readline() == b"running\n"
        watcher.send_signal(number)
        watcher.wait()
    assert wait_until_disabled(root, patience_s=120)


# --- judging ------------------------------------------------------------------------------------------------


def course_of(*looks):
    course = begin(0.0)
    for look in looks:
        course = judge(course, look)
    return course


ON, OFF = SchedulerState(1.0, "enabled", "layered_1"), SchedulerState(2.0, "disabled")


def test_one_that_detaches_to_attach_again_is_not_ended():
    assert course_of(ON, OFF).verdict == "detached"
    assert course_of(ON, OFF, replace(ON, at_s=3.0)).verdict == "running"
    assert course_of(ON, replace(OFF, at_s=1.1 + GRACE_S)).verdict == "ejected"
    assert course_of(ON, replace(OFF, at_s=1.1 + GRACE_S, state="enabling")).verdict == "detached"


def test_one_that_never_attaches_is_late():
    assert course_of(replace(OFF, at_s=LATE_S)).verdict == "starting"
    assert course_of(replace(OFF, at_s=LATE_S + 1)).verdict == "late"


def test_another_scheduler_in_its_place_is_told():
    assert course_of(ON, replace(ON, ops="other")).why == "the kernel runs other instead"


def test_one_that_was_asked_to_stop_was_not_ejected():
    said = "EXIT: unregistered from user space"
    assert course_of(ON, replace(OFF, exit_code=0, last_words=said)).verdict == "stopped"
    assert course_of(ON, replace(OFF, exit_code=0, last_words="EXIT: disabled by sysrq-S")).verdict == "ejected"


LOOKS = st.lists(
    st.builds(
        SchedulerState,
        st.floats(0, 1000),
        st.sampled_from(["", "enabled", "disabled", "enabling", "disabling"]),
        st.sampled_from(["", "layered_1", "other"]),
        st.sampled_from([None, None, None, 0, 1, -9]),
        st.sampled_from(["", "EXIT: runtime error", "Error: no"]),
        st.sampled_from([False, False, True]),
    ),
    max_size=8,
)


@given(LOOKS)
def test_what_is_over_stays_over_and_running_means_enabled(looks):
    course = begin(0.0)
    for look in looks:
        after = judge(course, look)
        if course.is_over:
            assert after == course
        elif look.is_off or look.exit_code is not None:
            assert after.is_over
        if after.verdict == "running":
            assert look.state == "enabled"
        course = after


# --- figures ------------------------------------------------------------------------------------------------


def test_delays_of_intervals_add_up_to_a_histogram():
    metrics = Metrics()
    for _ in range(2):
        metrics.take({"layers": {"critical": {LATENCY: [1, 2, 0, 1]}}})
    page = render(metrics.registry)
    name = 'strata_scx_run_queue_delay_seconds_bucket{layer="critical",le='
    counts = [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(name)]
    assert counts == ["2.0", "6.0", "6.0", "8.0"]
    assert f'{name}"2e-06"}} 2.0' in page
    assert f'{name}"+Inf"}} 8.0' in page


def test_answers_that_make_no_sense_are_no_figures():
    metrics = Metrics()
    for wrong in ({"layers": []}, {"layers": {"a": 3}}, {"x": "text", "y": None, "z": True}):
        metrics.take(wrong)
    assert "strata_scx_figure{" not in render(metrics.registry)
    metrics.take({"layers": {"a": {LATENCY: "no"}, "b": {LATENCY: [-1]}}})
    assert "delay_seconds_bucket" not in render(metrics.registry)


def test_without_a_socket_there_are_no_stats(tmp_path):
    with pytest.raises(NoStats, match="FileNotFoundError"):
        Stats(tmp_path / "stats").ask()


LAST_WORDS = (
    ("", ""),
    ("a\nb\n\n", "b"),
    ("EXIT: unregistered from user space\nINFO bye\n", "EXIT: unregistered from user space"),
    ("INFO Unregister\nError: EXIT: disabled by sysrq-S\n\n", "EXIT: disabled by sysrq-S"),
    ("Error: Failed to load\nCaused by: no\n", "Error: Failed to load"),
)
"""Logs of scx_layered 1.1.4 on Linux 7.2, and what they come to."""


def test_events_and_last_words_are_read(tmp_path):
    assert events("SCX_EV_A 3\nnonsense\nSCX_EV_B 0\n") == {"SCX_EV_A": 3, "SCX_EV_B": 0}
    log = tmp_path / "log"
    for text, last in LAST_WORDS:
        log.write_text(text)
        assert last_words(log) == last


def test_the_page_says_whether_the_kernel_runs_the_policy():
    metrics = Metrics()
    listener = listen("127.0.0.1", 0)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    pages = frame(metrics.registry, is_well=lambda: metrics.course.verdict == "running")
    with serving(pages, listener):
        with urllib.request.urlopen(f"{address}/metrics", timeout=300) as answer:
            assert b"strata_scx_running 0.0" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"{address}/healthz", timeout=300)
        metrics.course = replace(metrics.course, verdict="running")
        with urllib.request.urlopen(f"{address}/healthz", timeout=300) as answer:
            assert answer.read() == b"ok"
    listener.close()


# --- the command --------------------------------------------------------------------------------------------


def run_layered(*arguments):
    return CliRunner().invoke(cli, ["host", "run-layered", *map(str, arguments)])


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text('[{"name": "rest", "matches": [[]], "kind": {"Open": {}}}]')
    return path


def test_a_kernel_without_sched_ext_is_told_so(tmp_path):
    with pytest.raises(MissingPart, match="no sched_ext"):
        check(tmp_path)


def test_a_scheduler_that_runs_already_is_left_alone(stage):
    (stage.place.root / "sys/kernel/sched_ext/state").write_text("enabled\n")
    (stage.place.root / "sys/kernel/sched_ext/root/ops").write_text("rusty\n")
    with pytest.raises(UsageError, match="enabled already, by rusty"):
        check(stage.place.root)


def test_the_command_needs_a_kernel_with_sched_ext(policy, monkeypatch):
    monkeypatch.setattr(manager_run, "SCX", Path("nowhere"))
    assert run_layered(policy).exception.exit_code == 5


def test_a_policy_with_errors_is_not_started(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text('[{"name": "rest", "matches": [[{"CommPrefix": "a"}]], "kind": {"Open": {}}}]')
    refused = run_layered(path)
    assert refused.exception.exit_code == 4
    assert "strata host lint" in refused.exception.hint


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may load a scheduler")
def test_the_command_runs_tells_and_falls_back(stage, policy, tmp_path, monkeypatch):
    root = stage.place.root
    program = root / "scx_layered"
    program.write_text(PLAYER.format(python=sys.executable, root=str(root), plot="eject", off="-"))
    program.chmod(0o755)
    # The command's own root is "/"; for it the kernel is the stage's.
    monkeypatch.setattr(manager_run, "SCX", root / "sys/kernel/sched_ext")
    monkeypatch.setattr(manager_run, "SOCKET", root / "var/run/scx/root/stats")
    sleeper = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    plain, nice = (
        tmp_path / "plain.json",
        min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5),
    )  # of the suite, and more
    step = {"act": "nice", "path": f"/proc/{sleeper.pid}/task/{sleeper.pid}", "value": str(nice), "layer": "rest"}
    plain.write_text(json.dumps({"steps": [{**step, "why": "as told"}]}))
    page = tmp_path / "scx.prom"
    done = run_layered(policy, "--program", program, "--fallback", plain, "--metrics", page)
    assert done.exception.exit_code == 4
    assert "non-existent DSQ 0x0" in str(done.exception)
    assert "fallback: 1 of 1 steps applied" in done.stderr
    assert os.getpriority(os.PRIO_PROCESS, sleeper.pid) == nice
    assert 'strata_scx_state{state="ejected"} 1.0' in page.read_text()
    assert CliRunner().invoke(cli, ["host", "undo"]).exit_code == 0
    assert os.getpriority(os.PRIO_PROCESS, sleeper.pid) == os.getpriority(os.PRIO_PROCESS, 0)
    sleeper.communicate()
