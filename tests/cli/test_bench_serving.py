from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from strata.cli.main import cli, run
from strata.errors import BadFile
from strata.serving.planning.allocate import allocate
from strata.serving.planning.allocation import Allocation
from tests import SHARED

CASES = SHARED / "data" / "serving_cases.json"


def entry(name: str = "pair", *, room: int = 6, nodes: int = 2, **more: Any) -> dict[str, Any]:
    capacity = {"first": room, "middle": room, "last": room, "only": room}
    return {
        "id": name,
        "layers": 8,
        "batch": 8,
        "nodes": [
            {"id": f"n{i}", "layer_ms": 1.0, "head_ms": 2.0, "capacity": capacity, "tflops_fp16": 1}
            for i in range(nodes)
        ],
        "rtt_ms": [[0.0 if i == j else 3.0 for j in range(nodes)] for i in range(nodes)],
        **more,
    }


def write(folder: Path, *cases: dict[str, Any]) -> str:
    path = folder / "cases.json"
    path.write_text(json.dumps(list(cases)))
    return str(path)


def answers(*arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(cli, ["bench", "serving", *arguments, "-o", "json"])
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.output)["cases"]
    return found


@pytest.mark.parametrize("strategy", ["auto", "dp", "greedy"])
def test_json_has_the_plan_in_the_form_of_the_file(tmp_path: Path, strategy: str) -> None:
    (answer,) = answers(write(tmp_path, entry()), "--strategy", strategy)
    ((first, last),) = answer["pipelines"]
    assert (first[1:], last[1:]) == ([0, 5], [5, 8])
    assert {first[0], last[0]} == {"n0", "n1"}
    assert answer["tokens_per_s"] == pytest.approx(8 / 5e-3)
    assert answer["decode_ms"] == pytest.approx(5 + 5 + 6)
    assert answer["bound"] == pytest.approx(answer["tokens_per_s"])
    assert answer["gap"] == pytest.approx(0.0, abs=1e-6)
    assert answer["seconds"] > 0
    assert "parallax" not in answer


def test_a_pool_that_holds_no_model_has_a_reason_and_no_figures(tmp_path: Path) -> None:
    (answer,) = answers(write(tmp_path, entry(room=3)))
    assert (answer["pipelines"], answer["tokens_per_s"], answer["decode_ms"], answer["gap"]) == ([], 0, None, None)
    assert answer["reasons"][0]["token"] == "layers-do-not-fit"


def test_the_table_fits_a_terminal_and_compares_with_the_best_stored_plan(tmp_path: Path) -> None:
    stored = {
        "greedy": {"status": "ok", "pipelines": [[["n0", 0, 6], ["n1", 6, 8]]]},
        "dp": {"status": "ValueError", "pipelines": None},
    }
    file = write(tmp_path, entry(parallax=stored), entry("none", room=1))
    result = CliRunner().invoke(cli, ["bench", "serving", file, "--time-limit", "0"])
    assert result.exit_code == 0, result.output
    assert all(len(line.rstrip()) <= 80 for line in result.output.splitlines())
    assert "all cases (1): 1.200x tokens/s, 1.000x decode" in result.output
    assert "none: 2 nodes hold 2 of 8 layers" in result.output


def test_all_faults_of_a_file_are_named_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = entry()
    bad["rtt_ms"] = [[0.0]]
    bad["nodes"][1]["id"] = "n0"
    assert run(["bench", "serving", write(tmp_path, entry(), bad)]) == BadFile.exit_code
    text = capsys.readouterr().err
    assert "cases.1.rtt_ms: has 1 rows for 2 nodes" in text
    assert "'n0' is there twice" in text


def test_a_file_may_say_that_there_is_no_peer(tmp_path: Path) -> None:
    (answer,) = answers(write(tmp_path, entry(parallax=None)))
    assert answer["pipelines"]
    assert "parallax" not in answer


def test_an_interrupt_prints_the_cases_that_are_done_and_exits_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []

    def interrupted(*arguments: Any, **more: Any) -> Allocation:
        calls.append("once")
        if len(calls) == 2:
            raise KeyboardInterrupt
        return allocate(*arguments, **more)

    monkeypatch.setattr("strata.evaluation.bench.serving.allocate", interrupted)
    file = write(tmp_path, entry("done"), entry("begun"), entry("not-begun"))
    for output in ("json", "table"):
        calls.clear()
        assert run(["bench", "serving", file, "-o", output]) == 130
        said = capsys.readouterr()
        assert "interrupted: 1 of 3 cases" in said.err
        assert "done" in said.out
        assert "begun" not in said.out


@pytest.mark.parametrize("broken", [{"layers": 0}, {"nodes": None}, {"batch": "8"}, {"rtt_ms": [[-1.0]]}])
def test_values_that_cannot_be_are_refused(tmp_path: Path, broken: dict[str, Any]) -> None:
    assert run(["bench", "serving", write(tmp_path, entry() | broken)]) == BadFile.exit_code


@pytest.mark.long("plans all published pools of up to 64 nodes")
@pytest.mark.skipif(not CASES.is_file(), reason=f"needs {CASES.name} beside the checkout")
def test_the_shared_cases_are_served_far_better_than_by_parallax(tmp_path: Path) -> None:
    tokens, decode = [], []
    smaller = [case for case in json.loads(CASES.read_text()) if len(case["nodes"]) <= 64]
    for answer in answers(write(tmp_path, *smaller)):
        assert answer["pipelines"]
        assert 0 <= answer["gap"] < 0.3
        if peer := answer.get("parallax"):
            assert answer["tokens_per_s"] >= peer["tokens_per_s"] * (1 - 1e-9)
            _, layers, nodes, _ = answer["id"].split("-")
            if int(layers[1:]) >= 64 and int(nodes[1:]) >= 16:
                tokens.append(answer["tokens_per_s"] / peer["tokens_per_s"])
                decode.append(answer["decode_ms"] / peer["decode_ms"])
    assert math.prod(tokens) ** (1 / len(tokens)) >= 1.45
    assert math.prod(decode) ** (1 / len(decode)) <= 0.24
