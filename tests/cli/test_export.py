import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from strata.cli.main import cli, run
from strata.fleet import catalogue
from strata.fleet.schema import load_fleet
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from strata.workload.schema import load_job
from tests.support.builders import domain, fleet, job
from tests.support.training_plans import save_plan

PLAN = TrainingPlan((Pipeline((Stage("a", 0, 5, 2, 1), Stage("b", 5, 5, 2)), 2, 8),), 2)
CARD = catalogue.accelerator("A100-SXM4-80GB")
FLEET, JOB = fleet(domain("a", 8, accelerator=CARD), domain("b", 8, per_node=4, accelerator=CARD)), job(batch=32)


@pytest.fixture
def plan(tmp_path):
    save_plan(tmp_path / "plan.json", FLEET, JOB, PLAN)
    return tmp_path / "plan.json"


@pytest.mark.parametrize(
    ("target", "files"),
    [
        ("torchrun", {"ranks.json", "launch-a.sh", "launch-b.sh", "train.py", "tiny.py", "client.py"}),
        ("megatron", {"ranks.json", "launch-a.sh", "launch-b.sh", "megatron-args.txt"}),
        ("kueue", {"jobset.yaml", "ranks.json", "launch-a.sh", "launch-b.sh", "train.py", "tiny.py", "client.py"}),
    ],
)
def test_the_files_are_written_and_listed(plan, tmp_path, target, files):
    out = tmp_path / "launch"
    answer = CliRunner().invoke(
        cli, ["export", str(plan), "--to", target, "--out", str(out), "-o", "json"], catch_exceptions=False
    )
    data = json.loads(answer.stdout)
    assert set(data["files"]) == files == {path.name for path in out.iterdir()}
    assert (data["num_ranks"], data["num_nodes"], data["target"]) == (8, 2, target)
    # Only a job made of layers alone does not know its model's shape.
    assert data["notes"] == (
        ["the plan file does not say the model's shape: pass --hidden-size and --num-attention-heads"]
        if target == "megatron"
        else []
    )


def test_kubernetes_takes_the_drivers_of_the_fleet_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inputs = {"fleet": "aws10", "job": "llama-3.1-8b"}
    domain = load_fleet("aws10").domains[0].name
    plan = TrainingPlan((Pipeline((Stage(domain, 0, 34, 4, 0),), 2, 8),), 1)
    save_plan("plan.json", load_fleet("aws10"), load_job("llama-3.1-8b"), plan, inputs=inputs)
    answer = CliRunner().invoke(
        cli, ["export", "plan.json", "--to", "kubernetes", "-o", "json"], catch_exceptions=False
    )
    data = json.loads(answer.stdout)
    assert data["files"] == [f"{domain.lower()}.yaml"]
    assert (data["num_ranks"], data["num_nodes"], data["notes"]) == (8, 1, [])
    written = (tmp_path / "out" / "export" / data["files"][0]).read_text()
    assert "ai.compute/accelerator: A100-SXM4-40GB" in written


def test_a_plan_that_names_no_files_has_no_drivers(plan, capsys):
    assert run(["export", str(plan), "--to", "kubernetes"]) == 2
    assert "does not name its fleet and job files" in capsys.readouterr().err


def test_the_table_names_every_file(plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(cli, ["export", str(plan), "--to", "torchrun"], catch_exceptions=False)
    assert "out/export/launch-a.sh" in answer.stdout
    assert "8 ranks on 2 nodes" in answer.stdout
    assert (tmp_path / "out" / "export" / "train.py").exists()


def test_a_plan_the_launcher_cannot_run_is_refused_and_nothing_is_written(tmp_path, capsys):
    save_plan(tmp_path / "plan.json", FLEET, JOB, replace(PLAN, local_steps=8))
    assert run(["export", str(tmp_path / "plan.json"), "--to", "megatron", "--out", str(tmp_path / "out")]) == 2
    assert "every 8 steps" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_note_goes_to_stderr(tmp_path, capsys):
    save_plan(tmp_path / "plan.json", FLEET, JOB, replace(PLAN, zero_stage=1))
    assert run(["export", str(tmp_path / "plan.json"), "--to", "torchrun", "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr()
    assert "note: train.py does not shard the optimizer" in shown.err
    assert "note:" not in shown.out


def test_scripts_of_another_export_in_the_folder_are_pointed_out(plan, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "launch-old.sh").write_text("")
    assert run(["export", str(plan), "--to", "torchrun", "--out", str(tmp_path / "out")]) == 0
    assert "another export: launch-old.sh" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{}", '{"plans": []}', "kind: Fleet\nname: x\n"])
def test_what_is_no_plan_is_refused(tmp_path, capsys, text):
    (tmp_path / "plan.json").write_text(text)
    assert run(["export", str(tmp_path / "plan.json"), "--to", "torchrun", "--out", str(tmp_path / "out")]) == 2
    assert "plan.json" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_missing_plan_is_a_usage_error(tmp_path, capsys):
    assert run(["export", str(tmp_path / "none.json"), "--to", "kueue"]) == 2
    assert "no such file" in capsys.readouterr().err
