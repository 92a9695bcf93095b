"""`strata learn` and `strata bench learn` from the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from strata.cli.main import cli, run
from strata.errors import BadFile

SMALL = """\
apiVersion: strata/v1alpha1
kind: HiPpoTraining
updates: 2
updates_per_evaluation: 1
table_envs: 4
tables: 2
evaluation_tables: 1
evaluation_steps: 2
evaluation_episodes: 1
warm_start_tables: 0
width: 8
ppo: {steps: 2, critic_first: 0}
"""


def _call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    return str(file)


@pytest.mark.real("torch", "onnx")
def test_a_policy_is_trained_and_exported_with_its_record(tmp_path: Path, config: str) -> None:
    folder, policy = tmp_path / "run", tmp_path / "policy.onnx"
    trained = _call("learn", "train", "--config", config, "--out", str(folder), "--device", "cpu", "-o", "json")
    assert trained.exit_code == 0, trained.output
    answer = json.loads(trained.stdout)
    assert (answer["ended"], answer["updates"], answer["steps"]) == ("updates", 2, 2 * 2 * 4)
    exported = _call("learn", "export", answer["checkpoint"], "--out", str(policy), "--commit", "abc")
    assert exported.exit_code == 0, exported.output
    record: dict[str, Any] = json.loads((tmp_path / "policy.json").read_text())
    assert (record["seed"], record["commit"], record["steps"]) == (0, "abc", 16)
    assert [point["update"] for point in record["curve"]] == [0, 1, 2]
    for stage in ("imitation_gain", "ppo_gain"):
        gain = record[stage]
        assert gain["low"] <= gain["mean"] <= gain["high"]
    assert (gain["mean"], gain["worlds"]) == (gain["tables"], None)
    assert record["evaluation"]["update"] or gain["mean"] == 0  # what is kept is what PPO began with
    assert record["libraries"].keys() >= {"torch", "numpy"}
    assert policy.stat().st_size > 1000


@pytest.mark.real("torch")
def test_a_resumed_run_goes_on_as_it_began(tmp_path: Path, config: str) -> None:
    out = ("--out", str(tmp_path / "run"), "--device", "cpu", "-o", "json")
    assert _call("learn", "train", "--config", config, "--updates", "1", *out).exit_code == 0
    resumed = _call("learn", "train", "--resume", "--updates", "3", *out)
    assert json.loads(resumed.stdout)["updates"] == 3
    refused = _call("learn", "train", "--resume", "--seed", "1", *out)
    assert refused.exit_code == 2
    assert "leave out --seed" in refused.output


@pytest.mark.real("torch")
def test_unknown_keys_of_a_training_file_are_told_with_their_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(SMALL.replace("width:", "widht:").replace("steps: 2,", "steps: -2,"))
    assert run(["learn", "train", "--config", str(file), "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert f"{file}:11:1: widht: unknown key (did you mean 'width'?)" in said
    assert f"{file}:12:7: ppo.steps: should be greater than 0" in said


@pytest.mark.real("torch")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(("tables: 2\n", "tables: 3\n"), "not a multiple of tables", id="tables"),
        pytest.param(("width: 8", "worlds: [regims]"), "there is no world 'regims'", id="worlds"),
    ],
)
def test_values_that_do_not_go_together_are_told(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    from strata.learning.schema import load_learning

    file = tmp_path / "wrong.yaml"
    file.write_text(SMALL.replace("\n" + change[0], "\n" + change[1]))
    with pytest.raises(BadFile, match=said):
        load_learning(str(file))


def test_training_without_torch_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(["learn", "train", "--out", str(tmp_path)]) == 5
    assert "pip install -e '.[train]'" in capsys.readouterr().err


@pytest.mark.real("torch")
def test_a_file_that_is_not_a_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("apiVersion: strata/v1alpha1\nkind: Fleet\n")
    assert run(["learn", "export", str(fleet), "--out", str(tmp_path / "policy.onnx")]) == BadFile.exit_code
    assert f"{fleet}: not a checkpoint" in capsys.readouterr().err
    fleet.rename(tmp_path / "checkpoint.pt")
    assert run(["learn", "train", "--resume", "--out", str(tmp_path)]) == BadFile.exit_code


def test_lint_reads_training_files_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    from strata.learning import schema

    assert run(["lint", str(schema.RECIPE)]) == 0
    broken = tmp_path / "broken.yaml"
    broken.write_text(schema.RECIPE.read_text().replace("updates: 60", "updates: -1"))
    assert run(["lint", str(broken)]) == BadFile.exit_code
    captured = capsys.readouterr()
    assert "updates" in captured.out + captured.err


@pytest.mark.real("torch")
def test_ctrl_c_says_where_the_best_policy_is_and_exits_130(
    tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from strata.learning import learner

    def interrupted(*_arguments: Any, **_named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(learner, "_round", interrupted)
    assert run(["learn", "train", "--config", config, "--out", str(tmp_path / "run"), "--device", "cpu"]) == 130
    assert "the best policy so far is in" in capsys.readouterr().err


@pytest.mark.long("solves a table by value iteration, and tunes the rules beside it")
def test_a_policy_is_put_on_the_ladder() -> None:
    few = ("--domains", "2", "--tables", "1", "--instances", "1", "--worlds", "none")
    found = _call("learn", "evaluate", *few, "-o", "json")
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    rungs = answer["tables"]["rungs"]
    assert list(rungs) == [
        "random", "static", "home_domain", "mast_like", "myopic", "hysteresis", "hysteresis_tuned", "mpc",
        "mpc_tuned", "hi_ppo", "vi", "clairvoyant",
    ]  # fmt: skip
    assert rungs["vi"]["mean_gap"] == 0.0
    assert rungs["clairvoyant"]["mean_gap"] <= 0.0
    assert [fleet["domains"] for fleet in answer["domains"]] == [2]
    assert answer["domains"][0]["rungs"]["hi_ppo"] > 0


@pytest.mark.parametrize("sizes", ["", "four", "1,4", "64"])
def test_sizes_nobody_can_have_are_refused(sizes: str) -> None:
    found = _call("learn", "evaluate", "--domains", sizes)
    assert found.exit_code == 2
    assert "give sizes between 2 and 32" in found.output


@pytest.mark.real("torch", "stable_baselines3")
def test_the_bench_runs_the_peer_on_the_same_environment() -> None:
    found = _call("bench", "learn", "--envs", "16", "--updates", "1", "--device", "cpu", "-o", "json")
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    names = [row["name"] for row in answer["rows"] if row["device"] == "cpu"]
    assert names == [
        "environment alone", "strata", "strata, simulated fleets", "Stable-Baselines3, our network",
        "Stable-Baselines3, its perceptron",
    ]  # fmt: skip
    speed = {row["name"]: row["steps_per_s"] for row in answer["rows"] if row["device"] == "cpu"}
    ratio = answer["ratios"]["strata / Stable-Baselines3, our network (cpu)"]
    assert ratio == speed["strata"] / speed["Stable-Baselines3, our network"]


@pytest.mark.long("solves a table exactly, twice: seconds")
def test_an_evaluation_says_what_no_rule_earns_more_than(monkeypatch: pytest.MonkeyPatch) -> None:
    from strata.evaluation import headroom, replan_ladder
    from tests.learning.worlds.worlds import pool

    for room in (headroom, replan_ladder):
        monkeypatch.setattr(room, "make_pool", lambda *_args, **_more: pool())
    for name, value in (("FEW", {1: ("regimes", "noise")}), ("FEW_DOMAINS", (3,)), ("DECISIONS", 8)):
        monkeypatch.setattr(headroom, name, value)
    told = _call("learn", "evaluate", "--tables", "1", "--instances", "1", "--domains", "3", "-o", "json")
    assert told.exit_code == 0, told.output
    answer = json.loads(told.stdout)
    assert answer.keys() >= {"policy", "tables", "domains", "worlds", "share_of_headroom_closed"}
    for world in answer["worlds"]:
        assert world["rules"].keys() >= {"never", "hysteresis", "hysteresis_tuned", "exact_every_time", "hi_ppo"}
        # Of one job, by one program; the bound, which pays for no luck, holds in the mean of many episodes alone.
        assert all(rule["low"] <= rule["mean"] <= world["foreseen"] + 1e-6 for rule in world["rules"].values())
        assert world["bound"] == pytest.approx(world["foreseen"], rel=0.1)
    shown = _call("learn", "evaluate", "--tables", "1", "--instances", "1", "--domains", "3")
    assert "noise" in shown.output
    assert "hi_ppo" in shown.output
