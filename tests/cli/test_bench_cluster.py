from __future__ import annotations

import json

from click.testing import CliRunner

from strata.cli.main import cli
from strata.evaluation.bench import cluster as body


def run(monkeypatch, *more):
    monkeypatch.setattr(body, "SIZES", (20, 40))
    monkeypatch.setattr(body, "TRACES", 1)
    monkeypatch.setattr(body, "TRACE_GANGS", 12)
    result = CliRunner().invoke(cli, ["bench", "cluster", "--decisions", "20", *more])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_answer_has_the_agreed_keys(monkeypatch):
    answer = json.loads(run(monkeypatch, "-o", "json"))
    assert [row["nodes"] for row in answer["extender"]] == [20, 40]
    for kind in ("", "wall_", "http_"):
        assert all(0 <= row[f"{kind}p50_ms"] <= row[f"{kind}p99_ms"] for row in answer["extender"])
    assert all(row["full_ms"] > 0 and row["http_full_ms"] > 0 for row in answer["extender"])
    assert answer["extender"][1]["full_bytes"] > 1.9 * answer["extender"][0]["full_bytes"]
    assert answer["gangs_per_s"].keys() == {"20", "40"}
    assert answer["quality"].keys() == {"strata", "binpack", "spread", "hami-like"}
    for one in answer["quality"].values():
        assert 0 <= one["fragmentation"] <= 1
        assert 0 <= one["bandwidth"] <= 1 + 1e-9
        assert one["stranded_acu"] >= 0


def test_without_the_server_the_rest_is_measured(monkeypatch):
    monkeypatch.setattr(body, "find_spec", lambda name: None)
    answer = json.loads(run(monkeypatch, "-o", "json"))
    assert "p50_ms" in answer["extender"][0]
    assert "http_p50_ms" not in answer["extender"][0]


def test_the_table_names_policies_and_peers(monkeypatch):
    shown = run(monkeypatch)
    assert "hami-like" in shown
    assert "111 pods/s" in " ".join(shown.split())
