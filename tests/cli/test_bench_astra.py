from __future__ import annotations

import importlib
import json
import re

import pytest

from strata.cli.main import run
from tests import ROOT

HEADER = (
    "scenario,topology,npus,bandwidth_GBps,latency_ns,collective_or_pattern,bytes,backend,reported_ns,status\n"
)
RUNS = [
    "all_reduce/Ring/ring,Ring,8,50,500,all_reduce:ring,268435456,aware,9197541,ok",
    "all_reduce/Ring/ring,Ring,8,50,500,all_reduce:ring,268435456,unaware,9000000,ok",
    "all_gather/Ring/ring,Ring,2,50,500,all_gather:ring,268435456,aware,,crash(abort)",
    "twodim_8x3_p2p_0to9,Switch+Ring,24,50+0.375,500+50000000,p2p,16777216,unaware,313500,ok",
    "llm32L_tp8dp8pp4,Switch,256,50,500,3D parallel,4194304,aware,1145529379,ok",
]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(HEADER + "\n".join(RUNS) + "\n")
    return path


def test_every_row_is_answered_and_the_runs_that_ended_well_are_scored(capsys, table):
    assert run(["bench", "astra", str(table), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(a["row"], a["ours_ns"]) for a in found["answers"]] == [
        (0, 9197541), (1, 9197541), (2, None), (3, 313500), (4, None),
    ]  # fmt: skip
    assert "Ring of 2 aborts" in found["answers"][2]["reason"]
    assert "free" in found["answers"][3]["doubt"]
    assert (found["rows"], found["exact"]) == (3, 2)
    assert found["worst"] == pytest.approx(197541 / 9e6)
    assert found["families"]["all_reduce"]["rows"] == 2
    assert found["families"]["llm"] == {"rows": 0, "exact": 0, "worst": 0.0}
    miss = {"scenario": "all_reduce/Ring/ring", "backend": "unaware", "expected_ns": 9000000, "ours_ns": 9197541}
    assert found["misses"] == [miss]
    assert found["not_counted"] == ["llm"]


def test_rows_kept_back_are_answered_without_what_was_reported(capsys, tmp_path):
    path = tmp_path / "runs.csv"
    columns = HEADER.split(",")[:8]
    path.write_text(",".join(columns) + "\n" + ",".join(RUNS[0].split(",")[:8]) + "\n")
    assert run(["bench", "astra", str(path), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["answers"][0]["ours_ns"] == 9197541
    assert (found["rows"], found["exact"], found["worst"], found["misses"]) == (0, 0, 0.0, [])
    assert run(["bench", "astra", str(path)]) == 0
    assert "9 197 541" in capsys.readouterr().out


def test_the_table_fits_80_columns(capsys, monkeypatch, table):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["bench", "astra", str(table)]) == 0
    shown = capsys.readouterr().out
    assert "says too little of its trace" in " ".join(shown.split())
    assert "9 000 000" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_a_table_of_something_else_is_a_usage_error(capsys, tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    assert run(["bench", "astra", str(path)]) == 2
    assert "no column 'scenario'" in capsys.readouterr().err


ROOT = ROOT
PAGE = (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8")


def test_the_page_shows_what_the_command_prints(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(ROOT)
    command, shown = re.search(r"```\n\$ strata (.*?)\n(.*?)```", PAGE, re.DOTALL).groups()
    assert run(command.split()) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    lines = [line.rstrip() for line in shown.removesuffix("[...]\n").splitlines()]
    assert len(lines) > 20
    assert printed[: len(lines)] == lines


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([a-z_.]+:[A-Za-z_]+)`", PAGE))))
def test_what_the_page_names_exists(name):
    module, _, attribute = name.partition(":")
    assert getattr(importlib.import_module(f"strata.{module}"), attribute)


def test_the_differences_of_the_page_are_those_of_the_command(capsys):
    assert run(["bench", "astra", str(ROOT / "benchmarks" / "astra_runs.csv"), "-o", "json"]) == 0
    pairs = {
        (f"{each['ours_ns'] / 1e6:.3f} ms", f"{each['default_ns'] / 1e6:.3f} ms")
        for each in json.loads(capsys.readouterr().out)["answers"]
        if each["default_ns"] and each["topology"] != "Switch"
    }
    written = re.findall(r"^\| (?:GPipe|1F1B), .*?\| (\S+ ms) \| (\S+ ms) \| (\S+) % \|$", PAGE, re.MULTILINE)
    assert len(written) == 4
    assert {(theirs, ours) for theirs, ours, _ in written} <= pairs
    for theirs, ours, more in written:
        ratio = float(theirs.removesuffix(" ms")) / float(ours.removesuffix(" ms"))
        assert 100 * (ratio - 1) == pytest.approx(float(more), abs=0.05)
