"""`strata bench control`: it answers, small."""

from __future__ import annotations

import json

import pytest

from strata.cli.main import run


@pytest.mark.long("a week of the loop: half a minute")
def test_the_loop_is_timed_and_its_week_ends(capsys):
    assert run(["bench", "control", "--quick", "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["decisions"][0]["running"] > 0
    assert data["week"]["done"] == data["week"]["jobs"]
    assert data["memory"]["grown_bytes"] < 20e6
    assert data["memory"]["store_grown_bytes"] < 20e6
    assert 0 < data["start"]["p50_s"] <= data["start"]["p99_s"] < 60
