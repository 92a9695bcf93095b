from __future__ import annotations

import json
import shutil

import pytest
from click.testing import CliRunner

from strata.cli.main import cli
from strata.cli.output import emit
from strata.evaluation.bench import slicing as bench
from strata.evaluation.bench import slicing_shares

pytestmark = [
    pytest.mark.long("compiles, and plays every share for ten seconds of its own: half a minute"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc"),
]


def test_the_answer_has_the_agreed_keys_and_the_table_says_what_is_added(monkeypatch, capsys):
    monkeypatch.setattr(bench, "TURNS", 1)
    monkeypatch.setattr(bench, "PROCESSES", 8)
    monkeypatch.setattr(bench, "BEFORE", 8)
    monkeypatch.setattr(slicing_shares, "SPAN_S", 10.5)
    monkeypatch.setenv("STRATA_MEMORY_LIMIT", "1Mi")  # of the slice it may be run in: without means without
    result = CliRunner().invoke(cli, ["bench", "slicing", "--rounds", "2", "-o", "json"])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    calls = answer["alloc_free_ns"]
    assert calls.keys() == {"without", "with", "added", "added_later"}
    assert calls["added"] == pytest.approx(calls["with"] - calls["without"])
    assert answer["untouched_call_ns"].keys() == {"without", "with"}
    assert all(0 < one["got_10_s"] <= 1 and one["longest_wait_s"] < 0.25 for one in answer["shares"])
    assert min(calls["without"], answer["untouched_call_ns"]["with"], answer["startup_ms_200"]) > 0
    emit(answer, "table", bench.show(answer))
    text = capsys.readouterr().out
    assert "added" in text
    assert "wait: the longest of a launch" in text
    assert max(map(len, text.splitlines())) <= 80
