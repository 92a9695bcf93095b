import json

from click.testing import CliRunner

from strata.cli.main import cli
from strata.evaluation.bench import simulate as body

KEYS = {"name", "backend", "stages", "microbatches", "plans_per_s", "peer_plans_per_s", "ratio"}


def run(monkeypatch, *arguments):
    monkeypatch.setattr(body, "_MIN_CPU_S", 1e-6)
    monkeypatch.setattr(body, "_backends", lambda: ["numpy"])
    result = CliRunner().invoke(cli, ["bench", "simulate", "--plans", "8", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_each_form_and_size_is_a_row_beside_its_peer(monkeypatch):
    rows = json.loads(run(monkeypatch, "-o", "json"))["rows"]
    assert [(row["name"], row["stages"], row["microbatches"]) for row in rows] == [
        ("recurrence", 4, 32),
        ("recurrence", 8, 64),
        ("closed form", 4, 32),
        ("closed form", 8, 64),
    ]
    for row in rows:
        assert set(row) == KEYS
        assert row["ratio"] == row["plans_per_s"] / row["peer_plans_per_s"]


def test_one_llm_step_by_events_is_beside_astra_sims(monkeypatch):
    events = json.loads(run(monkeypatch, "-o", "json"))["events"]
    assert [row["name"] for row in events] == ["LLM step", "LLM step, 32 ranks with jitter"]
    for row in events:
        assert row.keys() == {"name", "events_per_s", "wall_s", "peer_s"}
        assert row["events_per_s"] * row["wall_s"] > 64 + 48  # forwards and backwards, and messages


def test_the_table_names_forms_and_backends(monkeypatch):
    output = run(monkeypatch)
    assert "recurrence" in output
    assert "numpy" in output
