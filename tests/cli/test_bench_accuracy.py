from __future__ import annotations

import json

import pytest

from strata.cli.main import run

PROFILE = {"fwd_s": [0.1], "bwd_s": [0.2], "update_s": [0.0]}
PLAN = {"mbs": 1, "stages": [{"layers": [0, 0], "replicas": [["a", 1, "z", 1]]}]}
RUN = {"id": "lab/model/one", "model": "m", "global_batch": 4, "plan": PLAN}


@pytest.fixture
def cases(tmp_path):
    sizes = {"1": [1.0]}
    model = {"n_layers": 1, "params": sizes, "act_mem_elems": sizes, "act_out_elems": [1.0]}
    path = tmp_path / "cases.json"
    path.write_text(
        json.dumps(
            {
                "models": {"m": model | {"profile": {"a": {"1,1": PROFILE}}}},
                "gpus": {"a": {"memory_GiB": 40, "gpus_per_node": 4}},
                "network": {"inter_node": {}},
                "prices": {"egress_usd_per_GB": {}},
                "cases": [],
                "measured_runs": [
                    RUN | {"measured_iteration_s": 1.3, "sailor_simulator_iteration_s": 1.17},
                    RUN | {"id": "lab/model/odd", "measured_iteration_s": 2.6, "note": "a copy?"},
                    RUN | {"id": "lab/other/unmeasured"},
                    RUN | {"id": "lab/other/unprofiled", "plan": PLAN | {"mbs": 2}, "measured_iteration_s": 1.0},
                ],
            }
        )
    )
    return path


def answer(capsys, path):
    assert run(["bench", "accuracy", str(path), "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_each_row_has_the_prediction_and_both_errors(capsys, cases):
    one, odd, unmeasured, unprofiled = answer(capsys, cases)["rows"]
    assert one["error"] == pytest.approx(one["predicted_s"] / 1.3 - 1)
    assert one["sailor_error"] == pytest.approx(-0.1)
    assert (one["doubtful"], odd["doubtful"]) == (False, True)
    assert odd["sailor_error"] is None
    assert unmeasured["predicted_s"] == pytest.approx(one["predicted_s"])
    assert unmeasured["error"] is None
    assert unprofiled["predicted_s"] is None
    assert "mbs 2" in unprofiled["reason"]


def test_means_are_by_set_with_and_without_doubtful_rows(capsys, cases):
    found = answer(capsys, cases)
    one, odd = found["rows"][:2]
    both = (abs(one["error"]) + abs(odd["error"])) / 2
    assert found["means"]["lab/model"] == {
        "ours": pytest.approx(both),
        "sailor": pytest.approx(0.1),
        "rows": 2,
    }
    assert found["means_without_doubtful"]["lab/model"]["ours"] == pytest.approx(abs(one["error"]))
    assert found["means"]["lab/other"] == {"ours": None, "sailor": None, "rows": 0}
    assert found["leave_one_out"]["lab/model"] is not None
    assert found["leave_one_set_out"]["lab/model"] is None


def test_constants_say_their_unit_and_what_they_were_fitted_on(capsys, cases):
    found = answer(capsys, cases)
    assert found["trust"] == "calibrated"
    for constant in found["constants"]:
        assert constant["unit"] in ("s", "s/B")
        assert "measured runs" in constant["fitted_on"]


def test_the_table_fits_80_columns_and_marks_doubtful_rows(capsys, cases, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["bench", "accuracy", str(cases)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("lab/model/odd") and line.rstrip().endswith("?") for line in lines)
    assert any("a copy?" in line for line in lines)


def test_a_missing_file_is_a_usage_error(capsys, tmp_path):
    assert run(["bench", "accuracy", str(tmp_path / "none.json")]) == 2
    assert "no such file" in capsys.readouterr().err
