from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from strata.cli.main import cli, run
from strata.errors import BadFile
from tests import SHARED

CASES = SHARED / "data" / "training_cases.json"


def small_cases(folder: Path, points: list[dict[str, Any]]) -> Path:
    """Write a case file of one accelerator type in one zone."""
    curve = {"coefs": [0.0, 0.1, 1.0]}
    times = {"fwd_s": [0.01] * 4, "bwd_s": [0.02] * 4, "update_s": [0.001] * 4}
    model = {
        "n_layers": 4,
        "params": {"1": [1e6] * 4},
        "act_mem_elems": {"1": [1e6] * 4},
        "act_out_elems": [1e6] * 4,
        "profile": {"gpu": {"1,1": times}},
    }
    data = {
        "models": {"m": model},
        "gpus": {"gpu": {"memory_GiB": 16, "gpus_per_node": 4, "price_usd_per_hour": None}},
        "network": {"inter_node": {"r-a": {"gpu": {"1": {"r-a": {"gpu": {"1": curve}}}}}}},
        "prices": {"egress_usd_per_GB": {"r-a": {"r-a": 0.0}}},
        "cases": [{"id": "c", "model": "m", "global_batch": 8, "points": points}],
    }
    path = folder / "cases.json"
    path.write_text(json.dumps(data))
    return path


def test_json_has_one_answer_a_point(tmp_path: Path) -> None:
    quota = {"r-a": {"gpu": 2}}
    points = [{"id": "two", "gpus_per_zone": quota}]
    points.append({"id": "never", "gpus_per_zone": quota, "limits": {"min_iterations_per_s": 1e9}})
    result = CliRunner().invoke(cli, ["bench", "training", str(small_cases(tmp_path, points)), "-o", "json"])
    assert result.exit_code == 0, result.output
    two, never = json.loads(result.output)["points"]
    assert (two["case"], two["point"]) == ("c", "two")
    assert two["plan"] == {"mbs": 1, "stages": [{"layers": [0, 3], "replicas": [["gpu", 1, "r-a", 2]]}]}
    assert two["iteration_s"] > 4 * 0.12
    assert two["cost_usd"] == 0
    assert two["search_s"] > 0
    assert (never["plan"], never["iteration_s"], never["cost_usd"]) == (None, None, None)
    assert "limits" in never["reason"]


def test_the_table_fits_a_terminal_and_names_what_was_given(tmp_path: Path) -> None:
    point = {
        "id": "p",
        "gpus_per_zone": {"r-a": {"gpu": 2}},
        "results": {"SAILOR": {"iteration_s": 1.0}},
        "best_known_within_quota": {"value": 0.9},
    }
    result = CliRunner().invoke(cli, ["bench", "training", str(small_cases(tmp_path, [point]))])
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80
    header, row = result.output.splitlines()
    assert "Sailor" in header
    assert row.startswith("c p")


def test_peers_are_shown_in_time_and_in_money(tmp_path: Path) -> None:
    peers = {"SAILOR": {"iteration_s": 2.0, "cost_usd": 0.5}, "AMP": {"iteration_s": 3.0}}
    point = {"id": "p", "gpus_per_zone": {"r-a": {"gpu": 2}}, "results": peers}
    path = small_cases(tmp_path, [point])
    data = json.loads(path.read_text())
    data["gpus"]["gpu"]["price_usd_per_hour"] = 3.6
    path.write_text(json.dumps(data))
    (answer,) = json.loads(CliRunner().invoke(cli, ["bench", "training", str(path), "-o", "json"]).output)[
        "points"
    ]
    assert answer["peers"] == peers
    result = CliRunner().invoke(cli, ["bench", "training", str(path)])
    header, row = result.output.splitlines()[-2:]
    assert header.split() == ["time", "and", "money", "ours", "s", "USD", "Sailor", "s", "USD", "time", "money"]
    seconds, usd = answer["iteration_s"], answer["cost_usd"]
    assert row.split()[2:] == [
        f"{seconds:.4g}", f"{usd:.4g}", "2", "0.5", f"{seconds / 2:.3f}", f"{usd / 0.5:.3f}",
    ]  # fmt: skip
    assert max(map(len, result.output.splitlines())) <= 80


def test_a_bad_file_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cases.json"
    path.write_text("{}")
    assert run(["bench", "training", str(path)]) == BadFile.exit_code
    assert "models" in capsys.readouterr().err


@pytest.mark.long("plans all published points")
@pytest.mark.skipif(not CASES.exists(), reason="../shared with the published cases is not here")
def test_no_published_point_is_planned_worse_than_the_best_known() -> None:
    result = CliRunner().invoke(cli, ["bench", "training", str(CASES), "-o", "json"])
    data = json.loads(CASES.read_text())
    points = {(case["id"], point["id"]): point for case in data["cases"] for point in case["points"]}
    answers = json.loads(result.output)["points"]
    assert len(answers) == len(points)
    for answer in answers:
        best = points[answer["case"], answer["point"]]["best_known_within_quota"]
        assert answer[best["metric"]] <= best["value"] * (1 + 1e-12), answer
