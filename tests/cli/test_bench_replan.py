"""`strata bench replan` and `strata bench world`: stable keys, tables of 80 columns, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from strata.cli.main import cli
from strata.errors import BadFile
from strata.evaluation.bench import world as body

SCENARIO = {
    "name": "two domains", "domains": [{"name": "a"}, {"name": "b"}],
    "decision_interval_s": 300.0, "switch_s": 60.0,
    "links": [{"between": [0, 1], "levels": [1, 0.3], "transition": [[0.9, 0.1], [0.3, 0.7]]}],
    "plans": [{"domains": [0], "kind": "single"}, {"domains": [0, 1], "kind": "DP64"}],
    "reward": [[1.0, 1.5], [1.0, 0.6]], "start_plan": 0, "paths": {"episodes": 8, "steps": 50, "seed": 7},
}  # fmt: skip


@pytest.fixture
def scenarios(tmp_path):
    path = tmp_path / "scenarios.json"
    path.write_text(json.dumps({"scenarios": [SCENARIO, {**SCENARIO, "name": "dear", "switch_s": 290.0}]}))
    return str(path)


def test_the_answer_holds_every_rung_and_the_plans_of_the_policy(scenarios):
    result = CliRunner().invoke(cli, ["bench", "replan", scenarios, "-o", "json"])
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    first = data["scenarios"][0]
    assert {"static", "myopic", "hysteresis", "mpc", "hi_ppo", "vi", "clairvoyant"} <= first.keys()
    plans = np.array(first["hi_ppo_plans"])
    assert plans.shape == (50, 8)
    assert set(np.unique(plans)) <= {0, 1}
    assert set(data["gap_to_vi"]["hi_ppo"]) == {"mean", "worst"}
    assert data["gap_to_vi"]["hi_ppo"]["worst"] <= 0.02
    for item in data["scenarios"]:
        assert item["static"] <= item["clairvoyant"]


def test_the_table_fits_80_columns(scenarios):
    result = CliRunner().invoke(cli, ["bench", "replan", scenarios])
    assert result.exit_code == 0
    assert "worst gap to vi" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_file_that_is_none_is_refused_with_its_place(tmp_path):
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"scenarios": [{**SCENARIO, "start_plan": 5}]}))
    result = CliRunner().invoke(cli, ["bench", "replan", str(path)])
    assert isinstance(result.exception, BadFile)
    assert "start_plan" in str(result.exception)


@pytest.mark.long("builds the tables of a world before it counts its steps")
def test_the_world_answers_its_rate_for_every_size(monkeypatch):
    monkeypatch.setattr(body, "SIZES", ((2, 2),))
    args = ["bench", "world", "--envs", "8", "--instances", "1", "--steps", "2", "-o", "json"]
    result = CliRunner().invoke(cli, args)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [row["slots"] for row in rows] == [1, 4]
    assert all(row["world_steps_per_s"] > 0 for row in rows)
