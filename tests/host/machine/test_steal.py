"""Time that a hypervisor takes: read from /proc/stat, kept beside the trace, and a finding of who lost it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from strata.cli.main import cli
from strata.host.analysis.findings import cpu_time
from strata.host.analysis.findings.finding import Severity
from strata.host.analysis.view import TraceView
from strata.host.machine.steal import Steal, between, ticks
from strata.host.record import snapshot
from strata.host.record.quick import compare
from strata.host.record.work import RecordedCommand
from tests.host.traces import IDLE, Text

T, HOG = ("trainer_main", 11), ("hog", 12)
HZ = os.sysconf("SC_CLK_TCK")


def stat(root: Path, *taken: int) -> Path:
    (root / "proc").mkdir(parents=True)
    lines = [f"cpu{cpu} 100 0 50 900 0 0 3 {ticks_} 0 0" for cpu, ticks_ in enumerate(taken)]
    (root / "proc/stat").write_text("\n".join(["cpu  0 0 0 0 0 0 0 999 0 0", *lines, "intr 5 1", "ctxt 9"]) + "\n")
    return root


def test_what_the_kernel_counts_is_read_a_cpu(tmp_path):
    before, after = ticks(stat(tmp_path / "a", 10, 20)), ticks(stat(tmp_path / "b", 10 + HZ, 20))
    found = between(before, after, seconds=4)
    assert (found.by_cpu_s, found.worst, found.share) == ({0: 1.0, 1: 0.0}, (0, 0.25), 0.125)
    assert Steal.of_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_a_cpu_that_came_later_and_a_kernel_that_does_not_count_are_nothing(tmp_path):
    assert between({0: 5}, {0: 5, 1: 900}, seconds=1).by_cpu_s == {0: 0.0}
    assert ticks(tmp_path) == {}
    nothing = between({}, {}, seconds=0)
    assert (nothing.worst, nothing.share) == ((-1, 0.0), 0.0)


def shared(steal: Steal | None, folder: Path) -> list[cpu_time.Finding]:
    """A second in which a trainer has CPU 0 for the first half, a hog for the second; another hog has CPU 1."""
    text = Text().switch(0, 0, IDLE, T).switch(0, 1, IDLE, ("hog", 13)).switch(500, 0, T, HOG)
    text.switch(1000, 0, HOG, IDLE).switch(1000, 1, ("hog", 13), IDLE)
    return list(cpu_time.stolen(TraceView(text.trace(folder), steal=steal)))


def test_who_was_on_the_cpu_half_of_the_time_lost_half_of_what_was_taken(tmp_path):
    (found,) = shared(Steal(1.0, {0: 0.2, 1: 0.0}), tmp_path)
    assert (found.token, found.severity, found.culprit) == ("steal-time", Severity.WARNING, "")
    assert found.cost_ms == pytest.approx(100)
    assert "most on CPU 0 (20.0%)" in found.evidence


@pytest.mark.parametrize(
    "steal", [None, Steal(1.0, {0: 0.0, 1: 0.0}), Steal(1.0, {0: 0.0, 1: 0.9}), Steal(1.0, {})]
)
def test_what_was_not_taken_from_it_is_no_finding(tmp_path, steal):
    assert shared(steal, tmp_path) == []


def test_who_waited_for_the_cpu_lost_it_too(tmp_path):
    text = Text().switch(0, 0, IDLE, HOG).wake(0, 0, T, by=HOG).switch(900, 0, HOG, T).switch(1000, 0, T, IDLE)
    (found,) = cpu_time.stolen(TraceView(text.trace(tmp_path), steal=Steal(1.0, {0: 0.3})))
    assert found.cost_ms == pytest.approx(300)
    assert found.severity is Severity.ERROR


def test_the_report_knows_it_from_the_file_beside_the_trace(tmp_path):
    trace = tmp_path / "trace.txt"
    text = Text().switch(0, 0, IDLE, T).switch(1000, 0, T, IDLE)
    trace.write_text("\n".join(text.lines) + "\n")
    data = {**snapshot.take(), "steal": Steal(1.0, {0: 0.3}).to_dict()}
    snapshot.beside(trace).write_text(json.dumps(data))
    answer = json.loads(CliRunner().invoke(cli, ["host", "report", str(trace), "-o", "json"]).stdout)
    assert [(one["token"], one["severity"]) for one in answer["findings"]] == [("steal-time", "error")]
    snapshot.beside(trace).write_text(json.dumps({**data, "steal": None}))
    answer = json.loads(CliRunner().invoke(cli, ["host", "report", str(trace), "-o", "json"]).stdout)
    assert answer["findings"] == []


def test_a_recording_reads_it_before_and_after():
    work = RecordedCommand(seconds=0.01)
    work.start()
    work.wait()
    assert work.steal is not None
    assert work.steal.by_cpu_s.keys() == ticks().keys()
    assert work.steal.seconds >= 0.01


def test_the_quick_report_says_which_cpu_was_taken():
    (note,) = compare([], [], seconds=1.0, num_cpus=2, steal=Steal(1.0, {0: 0.01, 1: 0.12})).notes
    assert note.startswith("the hypervisor gave CPU 1 to others 12% of the time")
    assert compare([], [], seconds=1.0, num_cpus=2, steal=Steal(1.0, {0: 0.01})).notes == ()
