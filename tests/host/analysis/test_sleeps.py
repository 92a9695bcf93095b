"""Why threads slept: by the state in which they left their CPU, and by who woke them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from strata.cli.main import cli
from strata.host.analysis.sleeps import sleeps_of
from strata.host.analysis.view import TraceView
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


def test_without_a_census_it_is_not_known_whose_the_waker_is(tmp_path):
    assert slept(tmp_path, Census()).ms == pytest.approx({"disk": 10.0, "unknown": 8.0, "outside": 1.0})


def test_the_report_says_why_critical_threads_slept(tmp_path):
    trace = tmp_path / "trace.txt"
    trace.write_bytes(sleeping().raw())
    arguments = ["host", "report", str(trace), "--critical", "python3"]
    data = json.loads(CliRunner().invoke(cli, [*arguments, "-o", "json"]).stdout)
    assert data["sleeps"] == [{"comm": "python3", "tid": 11, "ms": {"disk": 10.0, "unknown": 8.0, "outside": 1.0}}]
    assert "python3 (11) slept 19 ms: 53%" in CliRunner().invoke(cli, arguments).stdout
