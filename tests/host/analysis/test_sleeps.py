"""Why threads slept: by the state in which they left their CPU, and by who woke them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from strata.cli.main import cli
from strata.host.analysis.findings.sleeping import FEWEST, find
from strata.host.analysis.sleeps import sleeps_of
from strata.host.analysis.view import TraceView
from strata.host.record.snapshot import FORM, beside
from strata.host.threads.processes import Census
from tests.host.traces import IDLE, Text

TRAINER, LOADER, OTHER = ("python3", 11), ("loader", 12), ("redis", 21)
CENSUS = Census(pids={11: 10, 12: 10, 21: 20}, taken_ns=dict.fromkeys((11, 12, 21), 0))


def sleeping() -> Text:
    """The trainer sleeps for its loader, for another process, for a disk and for a timer; it waits, too."""
    text = Text().switch(0, 0, IDLE, TRAINER).switch(0, 1, IDLE, LOADER)
    text.switch(1, 0, TRAINER, IDLE, "S").wake(4, 0, TRAINER, by=LOADER, on=1)  # 3 ms
    text.switch(6, 0, IDLE, TRAINER)  # a wait of 2 ms is no sleep
    text.switch(7, 0, TRAINER, IDLE, "D").wake(17, 0, TRAINER)  # 10 ms
    text.switch(17, 0, IDLE, TRAINER).switch(18, 0, TRAINER, IDLE, "S")
    text.switch(18, 1, LOADER, OTHER).wake(23, 0, TRAINER, by=OTHER, on=1)  # 5 ms
    text.switch(23, 0, IDLE, TRAINER).switch(24, 0, TRAINER, IDLE, "S").wake(25, 0, TRAINER)  # 1 ms
    text.switch(25, 0, IDLE, TRAINER).switch(26, 0, TRAINER, LOADER, "R").switch(30, 0, LOADER, TRAINER, "S")
    return text.switch(31, 0, TRAINER, IDLE, "S").switch(40, 1, OTHER, IDLE)


def slept(folder, census):
    view = TraceView(sleeping().trace(folder), census=census)
    (task,) = (task for task in range(len(view.tasks)) if view.name(task) == "python3")
    return sleeps_of(view, task)


def test_sleeps_are_told_apart_by_state_and_by_who_ended_them(tmp_path):
    expected = {"disk": 10.0, "outside": 6.0, "own_process": 3.0}
    found = slept(tmp_path, CENSUS)
    assert found.ms == pytest.approx(expected)
    assert list(found.ms) == list(expected)
    assert str(found).startswith("python3 (11) slept 19 ms: 53% blocked in the kernel: a disk, a page fault")
    assert found.wakers == (("loader", 12, pytest.approx(3.0)),)
    assert str(found).endswith("a lock, a queue (most for loader, 12)")


def test_without_a_census_it_is_not_known_whose_the_waker_is(tmp_path):
    assert slept(tmp_path, Census()).ms == pytest.approx({"disk": 10.0, "unknown": 8.0, "outside": 1.0})


def test_the_report_says_why_critical_threads_slept(tmp_path):
    trace = tmp_path / "trace.txt"
    trace.write_bytes(sleeping().raw())
    arguments = ["host", "report", str(trace), "--critical", "python3"]
    data = json.loads(CliRunner().invoke(cli, [*arguments, "-o", "json"]).stdout)
    ms = {"disk": 10.0, "unknown": 8.0, "outside": 1.0}
    slept = {"comm": "python3", "tid": 11, "ms": ms, "wakers": [], "samples": 0, "calls": {}}
    slept["holders"] = []
    assert data["sleeps"] == [slept]
    assert "python3 (11) slept 19 ms: 53%" in CliRunner().invoke(cli, arguments).stdout


def report(trace, *arguments):
    return CliRunner().invoke(cli, ["host", "report", str(trace), *arguments])


def test_few_looks_are_no_finding(tmp_path):
    view = TraceView(sleeping().trace(tmp_path), critical=("python3",), sleeping={11: {"fault": FEWEST - 1}})
    assert list(find(view)) == []
    view = TraceView(sleeping().trace(tmp_path), critical=("python3",), sleeping={11: {"fault": FEWEST}})
    assert [finding.token for finding in find(view)] == ["page-faults"]


def test_where_the_recorder_looked_it_is_known_in_which_calls(tmp_path):
    trace = tmp_path / "trace.txt"
    trace.write_bytes(sleeping().raw())
    counts = {"pipe": 1, "interpreter_lock": 30, "file": 9}
    machine = {"form": FORM, "cpus": [], "critical": [11], "epoch_ahead_ns": 0}
    beside(trace).write_text(json.dumps({**machine, "sleeping": [{"tid": 11, "counts": counts}]}))
    (slept,) = json.loads(CliRunner().invoke(cli, ["host", "report", str(trace), "-o", "json"]).stdout)["sleeps"]
    assert slept["samples"] == 40
    assert list(slept["calls"].items()) == [("interpreter_lock", 0.75), ("file", 0.225), ("pipe", 0.025)]
    findings = {one["token"]: one for one in json.loads(report(trace, "-o", "json").stdout)["findings"]}
    assert "page-faults" not in findings
    assert findings["interpreter-lock"]["severity"] == "warning"
    assert findings["interpreter-lock"]["cost_ms"] == pytest.approx(0.75 * 19)
    told = " ".join(CliRunner().invoke(cli, ["host", "report", str(trace)]).stdout.split())
    assert "Found asleep 40 times: 75% for Python's interpreter lock (GIL), 22% for a file" in told


def test_who_had_the_interpreter_meanwhile_is_named_where_the_recorder_saw_it(tmp_path):
    trace = tmp_path / "trace.txt"
    trace.write_bytes(sleeping().raw())
    look = {"taken_ns": 0, "processes": [], "threads": {"11": 10, "12": 10, "21": 20}}
    held = {11: {"train (t.py:9)": 50}, 12: {"decode (d.py:3)": 20, "open (i.py:1)": 10}, 21: {"serve": 9}}
    machine = {"form": FORM, "cpus": [], "critical": [11], "epoch_ahead_ns": 0, "census": [look]}
    machine["sleeping"] = [{"tid": 11, "counts": {"interpreter_lock": 30, "file": 10}}]
    machine["holding"] = [{"tid": tid, "places": places} for tid, places in held.items()]
    beside(trace).write_text(json.dumps(machine))
    data = json.loads(report(trace, "-o", "json").stdout)
    # Not itself, and not another process: whose interpreter is another.
    (holder,) = data["sleeps"][0]["holders"]
    assert holder == {"comm": "loader", "tid": 12, "share": 1.0, "where": "decode (d.py:3)"}
    (evidence,) = [one["evidence"] for one in data["findings"] if one["token"] == "interpreter-lock"]
    assert evidence.endswith(
        "; when others had the interpreter, loader (12) did 100% of the time, most in decode (d.py:3)"
    )
