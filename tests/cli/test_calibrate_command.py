"""`strata calibrate`: from logs to the line of a job."""

from __future__ import annotations

import json

import pytest

from strata.cli.main import run
from strata.workload.schema import load_job
from tests.cli.test_what_we_write_we_read import FLEET, JOB

LAYOUT = "apiVersion: strata/v1alpha1\nkind: TrainingLayout\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "job.yaml").write_text(JOB)
    assert run(["plan", "train", "fleet.yaml", "job.yaml", "--no-baselines", "--save", "plan.json"]) == 0
    return tmp_path


def log(folder, seconds: float, count: int = 12) -> None:
    (folder / "a.csv").write_text("step,seconds\n" + "".join(f"{n},{seconds}\n" for n in range(count)))


def test_a_job_with_the_number_takes_as_long_as_the_run_did(folder, capsys):
    step_s = json.loads((folder / "plan.json").read_text())["plans"][0]["step_time_s"]
    log(folder, 1.5 * step_s)
    capsys.readouterr()
    assert run(["calibrate", "fleet.yaml", "job.yaml", "--run", "plan.json:a.csv", "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    (row,) = data["runs"]
    assert (row["warm_up_steps"], row["steady_steps"], row["left_out_error"]) == (3, 9, None)
    assert row["before_error"] == pytest.approx(1 / 1.5 - 1)
    assert row["after_error"] == pytest.approx(0, abs=1e-6)
    assert data["trust"] == "calibrated"
    (folder / "job.yaml").write_text(JOB + f"calibration: {json.dumps(data['calibration'])}\n")
    assert load_job("job.yaml").calibration == data["calibration"]
    assert run(["calibrate", "fleet.yaml", "job.yaml", "--run", "plan.json:a.csv", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["before_error"] == pytest.approx(0, abs=1e-6)


def test_people_get_the_line_of_the_job(folder, capsys):
    log(folder, 0.1)
    assert run(["calibrate", "fleet.yaml", "job.yaml", "--run", "plan.json:a.csv"]) == 0
    told = capsys.readouterr()
    assert "in the job (calibrated): `calibration: {" in told.out, told.err


def test_a_log_of_warm_up_only_exits_2_with_its_place(folder, capsys):
    log(folder, 0.1, count=6)
    assert run(["calibrate", "fleet.yaml", "job.yaml", "--run", "plan.json:a.csv"]) == 2
    assert "a.csv:7:1: the steps are warm-up only: 0 of 6 are steady" in capsys.readouterr().err


@pytest.mark.parametrize("pair", ["plan.json", ":a.csv", "plan.json:"])
def test_a_run_is_a_plan_and_a_log(folder, capsys, pair):
    assert run(["calibrate", "fleet.yaml", "job.yaml", "--run", pair]) == 2
    assert "--run layout.yaml:train.log" in capsys.readouterr().err


def test_a_plan_that_did_not_run_there_is_refused(folder, capsys):
    log(folder, 0.1)
    (folder / "wide.yaml").write_text(LAYOUT + "domain: West\ndata: 16\ntensor: 8\n")
    assert run(["calibrate", "fleet.yaml", "job.yaml", "--run", "wide.yaml:a.csv"]) == 2
    told = capsys.readouterr().err
    assert "wide.yaml: " in told
    assert "try: the fleet and the job of that run" in told
