from __future__ import annotations

import json

import pytest
import yaml

from strata.cli.main import run

SMALL = """\
apiVersion: strata/v1alpha1
kind: TrainingJob
name: small
model: gpt2
train: {global_batch: 64, sequence: 1024}
"""
EAST_CENTRAL = "link.East_DataCenter-Central_DataCenter"


@pytest.fixture
def whatif(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    job = tmp_path / "job.yaml"
    job.write_text(SMALL)

    def call(*settings: str, more: tuple[str, ...] = ()) -> tuple[int, str, str]:
        flags = [part for setting in settings for part in ("--set", setting)]
        code = run(["whatif", "seed", str(job), *flags, *more])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def test_old_and_new_stand_side_by_side_in_80_columns(whatif):
    code, out, _ = whatif(f"{EAST_CENTRAL}.bandwidth=1Gbps", "domain.West_DataCenter.num_gpus=64")
    lines = out.splitlines()
    assert code == 0
    assert max(len(line) for line in lines) <= 80
    assert lines[:2] == [
        "what if domain.West_DataCenter.num_gpus: 8 -> 64",
        f"what if {EAST_CENTRAL}.bandwidth: 5Gbps -> 1Gbps",
    ]
    assert "now" in lines[3]
    labels = [line[:18].strip() for line in lines[4:]]
    for label in ("step time", "tokens/s", "utilisation", "WAN a step", "$/Mtoken", "West_DataCenter"):
        assert label in labels
    assert any(line.startswith("  chosen: ") for line in lines)


def test_a_program_gets_both_plans_and_what_is_different(whatif):
    code, out, _ = whatif("domain.West_DataCenter.num_gpus=64", more=("-o", "json"))
    data = json.loads(out)
    assert code == 0
    assert list(data) == ["changes", "old", "new", "difference", "text"]
    assert data["changes"] == [{"path": "domain.West_DataCenter.num_gpus", "old": "8", "new": "64"}]
    ratio = data["new"]["plan"]["step_time_s"] / data["old"]["plan"]["step_time_s"]
    assert data["difference"]["step_time_s_ratio"] == pytest.approx(ratio)
    assert ratio < 1
    assert data["new"]["reasons"][0]["token"] == "chosen"


def test_yaml_says_the_same(whatif):
    setting = "job.efficiency=0.5"
    as_yaml = yaml.safe_load(whatif(setting, more=("-o", "yaml"))[1])
    as_json = json.loads(whatif(setting, more=("-o", "json"))[1])
    assert as_yaml["difference"] == as_json["difference"]


def test_a_setting_that_changes_nothing_is_said(whatif):
    code, out, _ = whatif(f"{EAST_CENTRAL}.bandwidth=5Gbps")
    assert code == 0
    assert out.startswith("these settings change nothing")
    assert "stays as it is" in out


@pytest.mark.long("searches the relaxations of a job, twice")
def test_no_plan_on_the_new_side_exits_3_and_still_shows_the_old(whatif):
    code, out, _ = whatif("job.limits.tokens_per_s=1T")
    assert code == 3
    assert "+ needs-limit: " in out
    assert "No plan fits any more" in out
    code, out, _ = whatif("job.limits.tokens_per_s=1T", more=("-o", "json"))
    data = json.loads(out)
    assert (code, data["new"]["plan"]) == (3, None)
    assert data["old"]["plan"]["step_time_s"] > 0
    assert data["difference"]["step_time_s_ratio"] is None


def test_wrong_settings_exit_2_and_are_all_named(whatif):
    code, out, err = whatif(f"{EAST_CENTRAL}.bandwith=1Gbps", "domain.East_DataCentre.num_gpus=8")
    assert (code, out) == (2, "")
    assert "did you mean 'bandwidth'?" in err
    assert "did you mean 'East_DataCenter'?" in err


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        ((), 2, "--set"),
        (("--set", "job.efficiency=0.5", "--time-limit", "-1s"), 2, "-1s is below 0"),
        (("--set", "job.efficiency=0.5", "--time-limit", "soon"), 2, "30ms"),
    ],
    ids=["nothing set", "negative", "no time"],
)
def test_a_wrong_call_says_why(whatif, more, code, said):
    found, out, err = whatif(more=more)
    assert (found, out) == (code, "")
    assert said in err


def test_a_serving_job_is_compared_by_its_own_figures(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    call = ["whatif", "aws10", "serve-llama-3.1-70b", "--set", "domain.Oregon=none"]
    assert run([*call, "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert list(data) == ["changes", "old", "new", "difference", "text"]
    assert list(data["old"]) == list(data["new"])
    assert list(data["new"]) == ["plan", "is_good_enough", "reasons", "trust", "inputs_digest", "search_s"]
    assert {"strategy", "goal", "pipelines", "figures"} == data["old"]["plan"].keys()
    ratio = data["new"]["plan"]["figures"]["tokens_per_s"] / data["old"]["plan"]["figures"]["tokens_per_s"]
    assert data["difference"]["tokens_per_s_ratio"] == pytest.approx(ratio)
    assert data["difference"]["domains_removed"] == ["Oregon"]
    assert run(call) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.endswith(" points") for line in lines), "a domain's share moves, as in training"
    assert {"pipelines", "tokens/s", "decode", "TTFT", "$/Mtoken"} <= {line[:18].strip() for line in lines}


def test_a_serving_job_that_fits_nowhere_then_exits_3(capsys, tmp_path):
    job = tmp_path / "serve.yaml"
    job.write_text(
        "{apiVersion: strata/v1alpha1, kind: ServingJob, name: s, model: gpt2, demand: {prompt: 64, output: 64}}"
    )
    assert run(["whatif", "seed", str(job), "--set", "job.batch=1000000000"]) == 3
    assert "No plan fits any more" in capsys.readouterr().out


def test_a_serving_job_that_misses_its_goals_or_rate_then_exits_4_as_its_plan_would(capsys):
    for setting, missed in (("job.rate=100000", "rate-not-served"), ("job.goals.ttft=1ms", "goal-missed")):
        assert run(["whatif", "aws10", "serve-llama-3.1-70b", "--set", setting, "-o", "json"]) == 4
        data = json.loads(capsys.readouterr().out)
        assert [data[side]["is_good_enough"] for side in ("old", "new")] == [True, False]
        reasons = {reason["token"]: reason["text"] for reason in data["new"]["reasons"]}
        assert missed in reasons
        assert "e+" not in reasons[missed]


def test_a_saved_serving_plan_stands_for_its_job_with_its_goal(capsys, tmp_path):
    path = tmp_path / "plan.json"
    call = ["plan", "serve", "aws10", "serve-llama-3.1-70b", "--goal", "latency", "--strategy", "dp"]
    assert run([*call, "--save", str(path)]) == 0 or path.exists()
    capsys.readouterr()
    assert run(["whatif", "aws10", str(path), "--set", "job.batch=8", "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {(side["plan"]["goal"], side["plan"]["strategy"]) for side in (data["old"], data["new"])} == {
        ("latency", "dp")
    }
    plan = json.loads(path.read_text())
    assert data["old"]["plan"]["figures"] == plan["figures"]
    path.write_text(json.dumps({**plan, "inputs": {}}))
    assert run(["whatif", "aws10", str(path), "--set", "job.batch=8"]) == 2
    assert "does not say which job" in capsys.readouterr().err
