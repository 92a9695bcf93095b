"""`strata serve calibrate`: from a log, or from a live server, to the line of a job."""

from __future__ import annotations

import json

import pytest

from strata.cli.main import run
from strata.serving.measured.log import write_log
from strata.workload.serving_job import ServingRatios
from strata.workload.serving_schema import load_serving_job
from tests.serving.measured.made_up import FLEET, job, log_of, pipeline, requests

JOB = """\
apiVersion: strata/v1alpha1
kind: ServingJob
name: chat
model: llama-3.1-8b
demand: {prompt: 300, output: 100, batch: 16}
"""
CALL = ["serve", "calibrate", "fleet.yaml", "job.yaml"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    truth = job(calibration={"LabCard": ServingRatios(1.5, 0.002, 1.0, 1.3)})
    write_log(tmp_path / "requests.csv", log_of(pipeline(tmp_path, truth), truth, requests()))
    assert (tmp_path / "fleet.yaml").read_text() == FLEET
    return tmp_path


def test_a_job_with_the_line_foretells_the_log(folder, capsys):
    assert run([*CALL, "--log", "requests.csv", "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["requests"] == {"fitted": 40, "judged": 40, "failed": 0}
    assert data["trust"] == "calibrated"
    tpot = data["half_not_used"]["tpot_s"]
    assert abs(tpot["error"]["mean"]) < 0.02 < -tpot["error_before"]["mean"]
    (folder / "job.yaml").write_text(JOB + f"calibration: {json.dumps(data['calibration'])}\n")
    assert load_serving_job("job.yaml").calibration["LabCard"]._asdict() == data["calibration"]["LabCard"]
    assert (
        run(["serve", "simulate", "fleet.yaml", "job.yaml", "--rate", "2", "--seconds", "10", "-o", "json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["trust"] == "calibrated"
    assert run(["plan", "serve", "fleet.yaml", "job.yaml", "-o", "json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert figures["trust"] == figures["efficiencies_trust"] == "calibrated"


def test_people_get_the_line_of_the_job(folder, capsys):
    assert run([*CALL, "--log", "requests.csv"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "fitted to 40 requests, judged by the 40 after them" in shown
    assert "in the job (calibrated): `calibration: {LabCard: {step:" in shown


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ([], "either a log or an address is needed"),
        (["--log", "requests.csv", "--url", "http://127.0.0.1:1"], "--log and --url are given"),
        (["--log", "requests.csv", "--rate", "2"], "--rate has no effect with --log"),
        (["--url", "http://127.0.0.1:1", "--rate", "2", "--seconds", "0"], "--seconds': 0 is not above 0"),
        (["--url", "http://127.0.0.1:1"], "chat does not state a rate"),
    ],
)
def test_what_would_not_be_read_is_refused(folder, capsys, more, says):
    assert run([*CALL, *more]) == 2
    assert says in capsys.readouterr().err


def test_an_address_where_nobody_answers_exits_with_5(folder, capsys):
    assert run([*CALL, "--url", "http://127.0.0.1:1", "--rate", "2"]) == 5
    assert "nobody answers at http://127.0.0.1:1" in capsys.readouterr().err
