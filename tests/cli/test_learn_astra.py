"""`strata learn train --world astra`: CSV files and a policy, aware beside unaware; and how it is misused."""

from __future__ import annotations

import csv
import json

import pytest
from click.testing import CliRunner

from strata.cli.main import cli, run
from tests import ROOT
from tests.simulate.astra.fake_astra import fake

MATRIX = str(ROOT / "examples/fleet-seed-matrix.json")


def called(*arguments):
    return CliRunner().invoke(cli, ["learn", "train", "--world", "astra", *arguments])


@pytest.mark.real("torch", "onnx", "gymnasium")
def test_it_is_trained_in_one_backend_and_evaluated_side_by_side_in_both(tmp_path, monkeypatch):
    from strata.learning import astra_training, astra_world
    from strata.training.hi_ppo.policy import load_policy

    for backend in ("aware", "unaware"):
        fake(tmp_path / "bin", backend)
    monkeypatch.setenv("STRATA_ASTRA_SIM", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # The fakes are Python programs: each of their runs takes most of a second.
    monkeypatch.setattr(astra_training, "ENVS", 1)
    monkeypatch.setattr(astra_training, "EPISODE_STEPS", 2)
    monkeypatch.setattr(astra_training, "CHOSEN_ON", range(1))
    monkeypatch.setattr(astra_training, "HELD_OUT", range(1, 2))
    monkeypatch.setattr(astra_world, "MOST_PLACEMENTS", 3)
    out = tmp_path / "out"
    answer = called("--model", "llama-3.1-8b", "--updates", "1", "--out", str(out), "-o", "json")
    assert answer.exit_code == 0, answer.output
    data = json.loads(answer.stdout)
    assert (data["trained_in"], data["updates"]) == ("unaware", 1)
    assert [each["backend"] for each in data["evaluations"]] == ["unaware", "aware"]
    assert data["results"] == [str(out / name) for name in ("astra_unaware.csv", "astra_aware.csv", "astra.csv")]
    beside = {row["rule"]: row for row in csv.DictReader((out / "astra.csv").read_text().splitlines())}
    assert beside.keys() == {"hi_ppo", "untrained", "uniform", "best_of_all"}
    for each in data["evaluations"]:
        name = each["backend"]
        steps = list(csv.DictReader((out / f"astra_{name}.csv").read_text().splitlines()))
        own = [float(row["reward"]) for row in steps if row["rule"] == "hi_ppo"]
        assert float(beside["hi_ppo"][f"{name}_mean"]) == pytest.approx(sum(own) / len(own))
        assert {row["cost_unit"] for row in steps} == {"comm_cycles"}
        assert each["rules"]["untrained"]["gain"] == 0
        assert each["rules"]["best_of_all"]["mean"] >= each["rules"]["hi_ppo"]["mean"]
    policy = load_policy(data["policy"])
    assert policy.session is not None
    assert policy.record["world"] == "astra"
    again = called("--model", "llama-3.1-8b", "--updates", "1", "--out", str(out))
    assert again.exit_code != 0
    assert "policy.onnx already exists" in str(again.exception)


@pytest.mark.real("torch", "onnx", "gymnasium")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--world", "astra", "--config", "x.yaml"], 2, "--config is not for --world astra"),
        (["--world", "astra", "--resume"], 2, "--resume is not for --world astra"),
        (["--world", "astra", "--workers", "2"], 2, "--workers is not for --world astra"),
        (["--world", "astra", "--device", "cuda"], 2, "--device cuda is not for --world astra"),
        (["--backend", "aware"], 2, "--backend is only for --world astra"),
        (["--fleet", "seed"], 2, "--fleet is only for --world astra"),
        (["--world", "astra"], 5, "no ASTRA-sim binary of the unaware backend"),
        (["--world", "astra", "--backend", "ns3"], 5, "STRATA_NS3"),
        (["--world", "astra", "--backend", "analytic", "--model", "llama-9"], 2, "no bundled model of that name"),
        (["--world", "astra", "--backend", "analytic", "--fleet", "none"], 2, "no bundled fleet"),
    ],
)
def test_what_cannot_be_is_said(arguments, code, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("STRATA_ASTRA_SIM", "STRATA_NS3"):
        monkeypatch.delenv(name, raising=False)
    assert run(["learn", "train", *arguments, "--out", str(tmp_path / "out")]) == code
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
