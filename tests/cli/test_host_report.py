"""`strata host report` and `strata bench host`: stable keys, 80 columns, exit codes, and the page."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from strata.cli.main import cli, run
from tests.host.traces import IDLE, Text

T, HOG = ("trainer_main", 11), ("<hog & co>", 12)


def faulty(folder: Path, *, wait_ms: float = 4.0) -> Path:
    text, on = Text(), IDLE
    for step in range(50):
        now = 10.0 * step
        text.wake(now + 1, 0, T, by=HOG)
        text.switch(now + 1.001 + wait_ms, 0, on, T, "S" if on == IDLE else "R")
        text.switch(now + 3 + wait_ms, 0, T, HOG)
        on = HOG
    file = folder / "trace.txt"
    file.write_bytes(text.raw())
    return file


def report(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["host", "report", *map(str, arguments)])


def test_the_json_answer_has_its_keys_and_blame_sums_to_the_waits(tmp_path):
    data = json.loads(report(faulty(tmp_path), "-o", "json").stdout)
    assert {"events", "unparsed", "lost", "threads", "findings"} <= set(data)
    assert (data["events"], data["unparsed"], data["lost"]) == (150, 0, 0)
    trainer = data["threads"][0]
    assert (trainer["comm"], trainer["tid"], trainer["waits"]) == ("trainer_main", 11, 50)
    assert trainer["wait_ms_mean"] == pytest.approx(4.001)
    assert trainer["wait_ms_p99"] == pytest.approx(4.001)
    assert sum(one["ms"] for one in trainer["culprits"]) == pytest.approx(trainer["wait_ms_total"])
    finding = data["findings"][0]
    assert {"token", "severity", "thread", "evidence", "cost_ms", "advice", "confidence"} <= set(finding)
    assert (finding["token"], finding["thread"], finding["culprit"]) == ("cpu-wait", "trainer_main", "<hog & co>")


def test_the_table_fits_eighty_columns_and_begins_with_a_verdict(tmp_path):
    result = report(faulty(tmp_path))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "trainer_main (11) was runnable but not running" in lines[2]
    assert "ERROR cpu-wait" in result.stdout


def test_a_trace_without_fault_is_said_to_have_none(tmp_path):
    result = report(faulty(tmp_path, wait_ms=0.0))
    assert "waiting for a CPU is not what slows it down" in result.stdout.replace("\n", "")


@pytest.mark.parametrize(("level", "code"), [("info", 4), ("warning", 4), ("error", 4)])
def test_a_finding_of_that_severity_exits_with_4(tmp_path, level, code):
    assert run(["host", "report", str(faulty(tmp_path)), "--fail-on", level]) == code
    assert run(["host", "report", str(faulty(tmp_path, wait_ms=0.0)), "--fail-on", level]) == 0


def test_the_threads_that_matter_may_be_named(tmp_path):
    data = json.loads(report(faulty(tmp_path), "--critical", "<hog", "-o", "json").stdout)
    assert data["threads"][0]["comm"] == "<hog & co>"
    assert {one["thread"] for one in data["findings"]} <= {"<hog & co>"}


def test_a_missing_or_foreign_file_is_a_usage_error(tmp_path, capsys):
    assert run(["host", "report", str(tmp_path / "none.txt")]) == 2
    other = tmp_path / "notes.txt"
    other.write_text("nothing\nof that sort\n")
    assert run(["host", "report", str(other)]) == 2
    assert "no trace of a scheduler" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["1e308", "-1e308", "1e10"])
def test_a_clock_offset_of_centuries_is_a_usage_error(tmp_path, capsys, seconds):
    assert run(["host", "report", str(faulty(tmp_path)), "--kineto-offset", seconds]) == 2
    assert "is not in the range" in capsys.readouterr().err


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "rect", "br"):
            self.open.append(tag)
        self.outside += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_whole_needs_nothing_else_and_escapes_names(tmp_path):
    page = tmp_path / "out.html"
    assert report(faulty(tmp_path), "--html", page).exit_code == 0
    parser = _Page()
    parser.feed(page.read_text())
    assert parser.open == []
    assert parser.outside == []
    assert "http" not in page.read_text()
    for told in ("trainer_main 11", "CPU 0", "<hog & co>", "waits after a wakeup", "cpu-wait", "\u25bc1"):
        assert told in parser.text


def test_the_page_of_a_trace_of_two_events_is_drawn_too(tmp_path):
    file = tmp_path / "trace.txt"
    file.write_bytes(Text().switch(0, 0, IDLE, T).switch(0.001, 0, T, IDLE).raw())
    assert report(file, "--html", tmp_path / "out.html", "--here").exit_code == 0


@pytest.mark.long("diagnoses a trace for each fault")
def test_the_bench_has_its_keys(tmp_path):
    bench = ["bench", "host", "--rounds", "0"]
    result = CliRunner().invoke(cli, [*bench, "--events", "2000", "--seeds", "1", "-o", "json"])
    data = json.loads(result.stdout)
    assert data["events"] >= 2000
    assert data["unparsed"] == 0
    assert data["parse_events_per_s"] > 0
    assert {"precision", "recall", "runs"} < set(data["diagnosis"])
    assert data["diagnosis"]["runs"] == 7
    assert data["record_cpu_s_per_mevents"] is None
    assert data["record"][0]["reason"]
    assert {"policy", "wait_ms_mean", "ratio_to_quiet"} < set(data["noisy_neighbour"][0])
    result = CliRunner().invoke(cli, [*bench, "--seeds", "0", "--trace", str(faulty(tmp_path))])
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_bench_host_refuses_a_trace_that_is_not_there(tmp_path):
    done = CliRunner().invoke(cli, ["bench", "host", "--trace", str(tmp_path / "none.txt"), "--rounds", "0"])
    assert done.exit_code == 2
    assert "does not exist" in done.output
