"""`strata export --to chakra`: the traces alone, for a binary elsewhere."""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile

import pytest

from strata.cli.main import run
from strata.errors import UsageError
from strata.simulate.astra.chakra import decode
from strata.simulate.astra.discover import Binaries
from strata.simulate.astra.lower import Aggregation, Refused
from strata.simulate.astra.referee import simulate_astra
from strata.simulate.astra.run import parse
from strata.training.export.chakra import render, step_model
from strata.training.plan.planfile import PlannedDomain, PlannedJob, SavedPlan, save_plan
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.simulate.astra.fake_astra import fake

NAMES = ("East_DataCenter", "Central_DataCenter", "West_DataCenter")
LAYERS = 34  # llama-3.1-8b: 32, the embedding and the head


def saved(*names, **inputs):
    cuts = [LAYERS * i // len(names) for i in range(len(names) + 1)]
    stages = tuple(
        Stage(name, cuts[i], cuts[i + 1] - cuts[i], 4, len(names) - 1 - i) for i, name in enumerate(names)
    )
    return SavedPlan(
        " > ".join(names),
        TrainingPlan((Pipeline(stages, 1, 8),), 1),
        "seed",
        tuple(PlannedDomain(name, "A100-SXM4-80GB", 8, 8) for name in NAMES),
        PlannedJob("job", "llama-3.1-8b", LAYERS, 4096, 8),
        inputs=inputs or {"fleet": "seed", "job": "llama-3.1-8b"},
    )


def test_the_traces_are_those_the_simulation_runs(tmp_path, monkeypatch):
    plan, binary = saved(*NAMES[:2]), fake(tmp_path / "bin", "aware")
    save_plan(tmp_path / "plan.json", plan)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert run(["export", str(tmp_path / "plan.json"), "--to", "chakra", "--out", str(tmp_path / "out")]) == 0
    ranks = json.loads((tmp_path / "out" / "ranks.json").read_text())
    command = shlex.split(ranks["command"])
    assert (command[0], ranks["backend"]) == (binary.name, "aware")
    printed = subprocess.check_output([binary, *command[1:]], cwd=tmp_path / "out", text=True)
    finish, _ = parse(printed, len(ranks["ranks"]))
    result = simulate_astra(
        step_model(plan), plan.plan, binaries=Binaries(aware=binary), environment={"XDG_CACHE_HOME": str(tmp_path)}
    )
    assert max(finish) / 1e9 == result.step_s


def test_every_file_is_listed(tmp_path, capsys):
    save_plan(tmp_path / "plan.json", saved(*NAMES[:2]))
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
    save_plan(tmp_path / "plan.json", saved(NAMES[0]))
    assert run(["export", str(tmp_path / "plan.json"), "--to", "chakra", "--out", str(tmp_path / "out")]) == 0
    assert "2 ranks, 1 of them at work" in capsys.readouterr().out


def test_unlike_links_need_an_aggregation_and_say_so(tmp_path, capsys):
    with pytest.raises(Refused):
        render(saved(*NAMES))
    assert "are all taken as 3Gbps, 50ms (min)" in render(saved(*NAMES), aggregation=Aggregation.MIN).notes[0]
    save_plan(tmp_path / "plan.json", saved(*NAMES))
    arguments = ["export", str(tmp_path / "plan.json"), "--to", "chakra", "--out", str(tmp_path / "out")]
    assert run(arguments) == 3
    assert "ASTRA-sim has one link for all of domains" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert run([*arguments, "--aggregate", "max"]) == 0


def test_an_aggregation_is_for_chakra_only(tmp_path, capsys):
    save_plan(tmp_path / "plan.json", saved(*NAMES[:2]))
    assert run(["export", str(tmp_path / "plan.json"), "--to", "torchrun", "--aggregate", "min"]) == 2
    assert "--aggregate is for --to chakra" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"fleet": "seed"}, "does not name its fleet and job files"),
        ({"fleet": "hub", "job": "llama-3.1-8b"}, "no domain 'East_DataCenter'"),
        ({"fleet": "seed", "job": "llama-3.1-70b"}, "82 layers, not 34"),
    ],
)
def test_a_plan_whose_files_are_gone_or_changed_is_refused(inputs, message):
    with pytest.raises(UsageError, match=message):
        render(saved(*NAMES[:2], **inputs))


def test_an_unwritable_folder_is_one_sentence(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    save_plan(tmp_path / "plan.json", saved(*NAMES[:2]))
    out = str(tmp_path / "file" / "out")
    assert run(["export", str(tmp_path / "plan.json"), "--to", "chakra", "--out", out]) == 2
    assert "cannot be written" in capsys.readouterr().err
