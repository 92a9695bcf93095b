from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strata.errors import BadFile, UsageError
from strata.evaluation.published_benchmarks.case_file import End, read_cases
from strata.evaluation.published_benchmarks.plan import plan_from_dict
from tests.evaluation.published_benchmarks.builders import case_data

QUOTA = {"east-a": {"fast": 4}}


def write(folder: Path, data: Any) -> Path:
    path = folder / "cases.json"
    path.write_text(json.dumps(data))
    return path


def test_a_file_without_other_planners_results_or_measured_runs_is_complete(tmp_path: Path) -> None:
    file = read_cases(write(tmp_path, case_data(QUOTA)))
    point = file.cases[0].points[0]
    assert point.quota == {("east-a", "fast"): 4}
    assert (point.minimize, point.best_known, point.peers) == ("iteration_s", None, {})
    assert file.measured_runs == ()
    assert file.curves[End("east-a", "fast", 1), End("west-a", "slow", 2)].coefficients[0] == -0.002


def test_limits_peers_and_measured_runs_are_read(tmp_path: Path) -> None:
    data = case_data(
        QUOTA,
        minimize="cost_usd",
        limits={"max_cost_usd": 1.5, "min_iterations_per_s": None},
        best_known_within_quota={"metric": "cost_usd", "value": 0.5},
        results={"SAILOR": {"plan": None, "iteration_s": 2.0, "cost_usd": None}},
    )
    plan = {"mbs": 1, "stages": [{"layers": [0, 5], "replicas": [["fast", 1, "east-a", 2]]}]}
    data["measured_runs"] = [{"id": "r", "model": "tiny", "global_batch": 8, "plan": plan, "note": "n"}]
    file = read_cases(write(tmp_path, data))
    point, run = file.cases[0].points[0], file.measured_runs[0]
    assert (point.minimize, point.max_cost_usd, point.min_iterations_per_s) == ("cost_usd", 1.5, None)
    assert (point.best_known, point.peers) == (0.5, {"SAILOR": {"iteration_s": 2.0}})
    assert (run.measured_iteration_s, run.note, run.plan.to_dict()) == (None, "n", plan)


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        pytest.param(("models", "tiny", "n_layers"), "six", "models.tiny.n_layers", id="not-a-number"),
        pytest.param(("models", "tiny", "act_out_elems"), [1], "act_out_elems", id="too-few-layers"),
        pytest.param(("models", "tiny", "params", "1"), [-1] * 6, "models.tiny.params.1", id="negative"),
        pytest.param(("models", "tiny", "profile", "fast", "a,b"), {}, "profile.fast.a,b", id="bad-profile-key"),
        pytest.param(("cases", 0, "model"), "huge", "cases.0.model", id="unknown-model"),
        pytest.param(("cases", 0, "points", 0, "minimize"), "fun", "points.0.minimize", id="unknown-objective"),
        pytest.param(("cases", 0, "points", 0, "limits"), {"max_cots": 1}, "limits.max_cots", id="unknown-limit"),
        pytest.param(("cases", 0, "points", 0, "gpus_per_zone"), None, "cases.0.points.0", id="no-quota"),
        pytest.param(("network", "inter_node"), [], "network.inter_node", id="not-a-mapping"),
    ],
)
def test_a_fault_names_its_place(tmp_path: Path, path: tuple[Any, ...], value: Any, where: str) -> None:
    data = case_data(QUOTA)
    inner: Any = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(BadFile) as caught:
        read_cases(write(tmp_path, data))
    assert where in str(caught.value)


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_cases(tmp_path / "none.json")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({"mbs": 1}, id="no-stages"),
        pytest.param({"mbs": 1, "stages": []}, id="empty"),
        pytest.param({"mbs": 1, "stages": [{"layers": [0, 1], "replicas": []}]}, id="no-replicas"),
        pytest.param(
            {"mbs": 1, "stages": [{"layers": [0, 1], "replicas": [["a", 1, "z", 0]]}]}, id="none-of-them"
        ),
        pytest.param([], id="a-list"),
    ],
)
def test_what_is_no_plan_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="plan"):
        plan_from_dict(data)
