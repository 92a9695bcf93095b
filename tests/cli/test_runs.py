"""`strata runs` and `strata fleet show`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from strata.cli.main import run
from strata.history import History, default_path
from tests.cli.test_plan import FLEET, JOB


@pytest.fixture
def planned(tmp_path, capsys):
    """Two plans and a host report in the history."""
    fleet, job = tmp_path / "fleet.yaml", tmp_path / "job.yaml"
    fleet.write_text(FLEET)
    job.write_text(JOB)
    assert run(["plan", "train", str(fleet), str(job), "--no-baselines"]) == 0
    assert run(["plan", "train", str(fleet), str(job), "--no-baselines", "--minimize", "cost"]) == 0
    with History(default_path(os.environ)) as history:
        history.add("host", {"name": "trace", "verdict": "it waited", "findings": []}, at_s=1.0)
    capsys.readouterr()


def answer(capsys, *arguments):
    assert run([*arguments, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_runs_are_listed_newest_first_and_by_kind(planned, capsys):
    runs = answer(capsys, "runs", "list")["runs"]
    assert [(item["id"], item["kind"]) for item in runs] == [(3, "host"), (2, "training"), (1, "training")]
    assert [item["id"] for item in answer(capsys, "runs", "list", "--kind", "training")["runs"]] == [2, 1]
    assert [item["id"] for item in answer(capsys, "runs", "list", "--last", "1")["runs"]] == [3]


def test_a_run_is_shown_as_it_was_printed(planned, capsys):
    assert answer(capsys, "runs", "show", "1")["kind"] == "TrainingPlan"
    assert run(["runs", "show", "3"]) == 0
    assert capsys.readouterr().out == "it waited\n"
    assert run(["runs", "show", "9"]) == 2
    assert "no decision 9" in capsys.readouterr().err


def test_a_plan_whose_reader_has_gone_is_kept(tmp_path):
    """`| head` ended the command at its first table, before the plan was in the history or in `--save`'s file."""
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "job.yaml").write_text(JOB)
    command = [sys.executable, "-m", "strata", "plan", "train", "fleet.yaml", "job.yaml", "--save", "plan.json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0
    with History(default_path(os.environ)) as history:
        assert [entry.kind for entry in history.newest(9)] == ["training"]
    assert json.loads((tmp_path / "plan.json").read_text())["plans"]


def test_a_number_that_no_row_has_is_not_kept(planned, capsys):
    """Those past 63 bits were a traceback."""
    assert run(["runs", "show", str(10**30)]) == 2
    assert "no decision 1000000" in capsys.readouterr().err
    assert len(answer(capsys, "runs", "list", "--last", str(10**30))["runs"]) == 3


def test_two_plans_are_compared_and_others_refused(planned, capsys):
    compared = answer(capsys, "runs", "compare", "1", "2")
    assert not compared["same_inputs"]
    figure = compared["figures"]["step_time_s"]
    assert figure["ratio"] == pytest.approx(figure["after"] / figure["before"])
    assert run(["runs", "compare", "1", "3"]) == 2
    assert "run 3 has no training plan" in capsys.readouterr().err


def test_runs_are_forgotten_all_or_none(planned, capsys):
    assert run(["runs", "rm", "1", "9"]) == 2
    assert len(answer(capsys, "runs", "list")["runs"]) == 3
    assert run(["runs", "rm", "1", "3", "1"]) == 0
    assert [item["id"] for item in answer(capsys, "runs", "list")["runs"]] == [2]


def test_without_a_history_the_next_command_is_named(capsys):
    assert run(["runs", "list"]) == 2
    assert "nothing is kept yet" in capsys.readouterr().err


UNKNOWN = """
apiVersion: strata/v1alpha1
kind: Fleet
name: here
accelerators:
  core: {vendor: cpu, memory: 16GB, fp32: 150GFLOPS, memory_bandwidth: 20GB/s, trust: measured}
domains:
  - {name: a, accelerator: core, num_gpus: 1, gpus_per_node: 1, intra_bandwidth: 10GB/s}
"""


def test_the_acu_of_a_fleet_is_not_known_where_a_cards_is_not(tmp_path, capsys):
    file = tmp_path / "fleet.yaml"
    file.write_text(UNKNOWN)
    assert answer(capsys, "fleet", "show", str(file))["acu"] is None
    assert run(["fleet", "show", str(file)]) == 0
    assert capsys.readouterr().out.startswith("here: 1 domain, 1 device, ACU not known\n")
    assert run(["report", str(file), "-o", str(tmp_path / "report.html")]) == 0
    assert "1 domain, 1 device, ACU not known." in (tmp_path / "report.html").read_text()


def test_a_fleet_is_shown_with_its_acu(tmp_path, capsys):
    shown = answer(capsys, "fleet", "show", "aws10")
    assert shown["acu"] == pytest.approx(sum(d["acu"] * d["num_devices"] for d in shown["domains"]))
    assert len(shown["links"]) == 90
    assert run(["fleet", "show", "aws10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "and 70 slower links: -o json has all" in lines
    assert max(map(len, lines)) <= 80
