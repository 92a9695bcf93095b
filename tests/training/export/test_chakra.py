"""`strata export --to chakra`: the traces alone, for a binary elsewhere."""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile

import pytest

from strata.cli.main import run
from strata.errors import UsageError
from strata.fleet.schema import load_fleet
from strata.simulate.analytic import StepModel
from strata.simulate.astra.discover import Binaries
from strata.simulate.astra.lower import Aggregation, Refused
from strata.simulate.astra.referee import simulate_astra
from strata.simulate.astra.run import parse
from strata.training.export.chakra import render
from strata.training.plan.planfile import read_plan
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from strata.workload.schema import load_job
from tests.simulate.astra.chakra_decoder import decode
from tests.simulate.astra.fake_astra import fake
from tests.support.training_plans import save_plan

NAMES = ("East_DataCenter", "Central_DataCenter", "West_DataCenter")
LAYERS = 34  # llama-3.1-8b: 32, the embedding and the head


def chain(*names):
    cuts = [LAYERS * i // len(names) for i in range(len(names) + 1)]
    stages = tuple(
        Stage(name, cuts[i], cuts[i + 1] - cuts[i], 4, len(names) - 1 - i) for i, name in enumerate(names)
    )
    return TrainingPlan((Pipeline(stages, 1, 8),), 1)


def save(path, *names, **inputs):
    """Write a plan of domains one after the other; `inputs` are the files it names."""
    named = inputs or {"fleet": "seed", "job": "llama-3.1-8b"}
    save_plan(path, load_fleet("seed"), load_job("llama-3.1-8b"), chain(*names), inputs=named)
    return read_plan(path)


def test_the_traces_are_those_the_simulation_runs(tmp_path, monkeypatch):
    binary = fake(tmp_path / "bin", "aware")
    plan = save(tmp_path / "plan.json", *NAMES[:2])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert run(["export", str(tmp_path / "plan.json"), "--to", "chakra", "--out", str(tmp_path / "out")]) == 0
    ranks = json.loads((tmp_path / "out" / "ranks.json").read_text())
    command = shlex.split(ranks["command"])
    assert (command[0], ranks["backend"]) == (binary.name, "aware")
    printed = subprocess.check_output([binary, *command[1:]], cwd=tmp_path / "out", text=True)
    finish, _ = parse(printed, len(ranks["ranks"]))
    result = simulate_astra(
        StepModel(load_fleet("seed"), load_job("llama-3.1-8b")),
        plan.plan,
        binaries=Binaries(aware=binary),
        environment={"XDG_CACHE_HOME": str(tmp_path)},
    )
    assert max(finish) / 1e9 == result.step_s


def test_every_file_is_listed(tmp_path, capsys):
    save(tmp_path / "plan.json", *NAMES[:2])
    out = tmp_path / "out"
    assert run(["export", str(tmp_path / "plan.json"), "--to", "chakra", "--out", str(out), "-o", "json"]) == 0
    shown = capsys.readouterr()
    data = json.loads(shown.out)
    assert set(data["files"]) == {path.name for path in out.iterdir()}
    assert {"trace.0.et", "trace.1.et", "network.yml", "system.json"} <= set(data["files"])
    assert data["num_ranks"] == 2
    assert "note: in this folder: AstraSim_Analytical_Congestion_Aware --workload" in shown.err
    assert "note: links vary in the fleet file" in shown.err
    assert all(decode((out / f"trace.{rank}.et").read_bytes()) for rank in range(2))


def test_the_table_counts_the_ranks(tmp_path, capsys):
    save(tmp_path / "plan.json", NAMES[0])
    assert run(["export", str(tmp_path / "plan.json"), "--to", "chakra", "--out", str(tmp_path / "out")]) == 0
    assert "2 ranks, 1 of them at work" in capsys.readouterr().out


def test_unlike_links_need_an_aggregation_and_say_so(tmp_path, capsys):
    plan = save(tmp_path / "plan.json", *NAMES)
    with pytest.raises(Refused):
        render(plan)
    assert "are all taken as 3Gbps, 50ms (min)" in render(plan, aggregation=Aggregation.MIN).notes[0]
    arguments = ["export", str(tmp_path / "plan.json"), "--to", "chakra", "--out", str(tmp_path / "out")]
    assert run(arguments) == 3
    assert "ASTRA-sim has a single link type for domains" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert run([*arguments, "--aggregate", "max"]) == 0


def test_an_aggregation_is_for_chakra_only(tmp_path, capsys):
    save(tmp_path / "plan.json", *NAMES[:2])
    assert run(["export", str(tmp_path / "plan.json"), "--to", "torchrun", "--aggregate", "min"]) == 2
    assert "--aggregate is for --to chakra" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"fleet": "seed"}, "does not name its fleet and job files"),
        ({"fleet": "hub", "job": "llama-3.1-8b"}, "hub has changed: it has no domain East_DataCenter"),
        ({"fleet": "seed", "job": "llama-3.1-70b"}, "model is llama-3.1-70b, and was llama-3.1-8b"),
    ],
)
def test_a_plan_whose_files_are_gone_or_changed_is_refused(tmp_path, inputs, message):
    with pytest.raises(UsageError, match=message):
        render(save(tmp_path / "plan.json", *NAMES[:2], **inputs))


def test_an_unwritable_folder_is_one_sentence(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    save(tmp_path / "plan.json", *NAMES[:2])
    out = str(tmp_path / "file" / "out")
    assert run(["export", str(tmp_path / "plan.json"), "--to", "chakra", "--out", out]) == 2
    assert "cannot be written" in capsys.readouterr().err
