"""`strata plan serve`, and `explain`, `lint` and `export` of what it saves, as a user meets them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from strata.cli.main import run
from strata.history import History, default_path
from strata.serving.planning import planner
from strata.serving.planning.planfile import read_serving_plan
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.builders import domain
from tests.support.builders import fleet as hardware
from tests.support.builders import job as work
from tests.support.training_plans import save_plan

FLEET = """\
apiVersion: strata/v1alpha1
kind: Fleet
name: three
domains:
  - {name: West, accelerator: A100-SXM4-80GB, num_gpus: 8}
  - {name: East, accelerator: RTX4090, num_gpus: 8, gpus_per_node: 2}
  - {name: Lab, accelerator: RTX4090, num_gpus: 1, gpus_per_node: 1}
links:
  - {between: [West, East], bandwidth: 5Gbps, latency: 30ms, price: $0.02/GB}
"""
JOB = """\
apiVersion: strata/v1alpha1
kind: ServingJob
name: chat
model: llama-3.1-70b
demand: {prompt: 512, output: 128}
"""
FIGURES = {
    "tokens_per_s", "decode_s", "ttft_s", "requests_per_s", "goodput_per_s", "bound_tokens_per_s", "gap", "trust",
    "usd_per_hour", "cost_usd_per_mtoken", "goodput_usd_per_mtoken",
}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    fleet, job = tmp_path / "fleet.yaml", tmp_path / "job.yaml"
    fleet.write_text(FLEET)
    job.write_text(JOB)
    return fleet, job


UNKNOWN = {
    "model_type": "mylm", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 1000,
    "num_key_value_heads": 2, "intermediate_size": 2048, "tie_word_embeddings": False,
}  # fmt: skip


def test_how_a_model_was_read_is_said_beside_its_plan(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet, job = files
    (tmp_path / "config.json").write_text(json.dumps(UNKNOWN))
    job.write_text(JOB.replace("llama-3.1-70b", "./config.json"))
    training = tmp_path / "training.yaml"
    training.write_text(
        "{apiVersion: strata/v1alpha1, kind: TrainingJob, name: t, model: ./config.json,"
        " train: {global_batch: 16, sequence: 512}}"
    )
    for command in (["plan", "serve", str(fleet), str(job)], ["plan", "train", str(fleet), str(training)]):
        more = ["--no-baselines"] if "train" in command else []
        assert run([*command, *more]) == 0
        assert "note: model_type 'mylm' is not known: read as if it were llama" in capsys.readouterr().out
        run([*command, *more, "-o", "json"])
        assert json.loads(capsys.readouterr().out)["job"]["notes"]


def test_a_machine_whose_devices_work_in_groups_is_asked_for_by_its_own_name(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet, job = files
    job.write_text(JOB.replace("llama-3.1-70b", "llama-3.1-8b"))
    path = tmp_path / "plan.json"
    assert run(["plan", "serve", str(fleet), str(job), "--save", str(path)]) == 0
    assert "nodes-cut: each node of West runs" in capsys.readouterr().out
    for name in ("West/0", "West/0.0", "West"):
        assert run(["explain", str(path), "--why-not", name]) == 0
        assert f"{name} is used: pipeline" in capsys.readouterr().out


@pytest.fixture
def saved(files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "plan.json"
    assert run(["plan", "serve", *map(str, files), "--save", str(path)]) == 0
    capsys.readouterr()
    return path


def planned(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any]:
    code = run(["plan", "serve", *map(str, arguments), "-o", "json"])
    return code, json.loads(capsys.readouterr().out)


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = run([*map(str, arguments)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_bundled_job_is_planned_on_a_bundled_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    code, data = planned(capsys, "aws10", "serve-llama-3.1-70b")
    assert code == 0
    assert len(data["pipelines"]) == 20
    assert data["figures"]["goodput_per_s"] >= 28
    assert data["inputs"] == {"fleet": "aws10", "job": "serve-llama-3.1-70b"}


def test_json_has_the_stable_keys_and_a_trust_for_its_figures(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code, data = planned(capsys, *files)
    assert code == 0
    assert (data["kind"], data["strategy"], data["goal"]) == ("ServingPlan", "auto", "both")
    assert data["figures"].keys() >= FIGURES
    for pipeline in data["pipelines"]:
        assert pipeline["trust"] in ("analytic", "assumed")
        assert [stage["first"] for stage in pipeline["stages"][1:]] == [s["end"] for s in pipeline["stages"][:-1]]
        assert (pipeline["stages"][0]["first"], pipeline["stages"][-1]["end"]) == (0, 80)
    total = sum(pipeline["tokens_per_s"] for pipeline in data["pipelines"])
    assert data["figures"]["tokens_per_s"] == pytest.approx(total)
    assert {item["name"] for item in data["alternatives"]} == {"dp", "greedy"}
    assert all(item["reasons"] for item in data["alternatives"])
    assert data["unused"][0]["domain"] == "Lab"
    assert data["inputs_digest"]


def test_yaml_is_the_same_answer(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    _, data = planned(capsys, *files)
    assert run(["plan", "serve", *map(str, files), "-o", "yaml"]) == 0
    other = yaml.safe_load(capsys.readouterr().out)
    assert {**other, "search_s": 0} == {**data, "search_s": 0}


def test_the_table_fits_80_columns_and_names_the_next_commands(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    code, out, _ = told(capsys, "plan", "serve", *files)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for part in ("KV slots", "decode", "TTFT", "trust", "of the upper bound", "why not:", "Lab (1 node)"):
        assert part in out
    assert f"strata serve simulate {files[0]}" in out.replace("\n", "")
    assert "strata export plan.json --to vllm" in out


def test_what_joins_two_vendors_is_run_by_our_workers_and_no_export_is_proposed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet, job, plan = tmp_path / "fleet.yaml", tmp_path / "job.yaml", tmp_path / "plan.json"
    fleet.write_text(
        FLEET.replace("East, accelerator: RTX4090", "East, accelerator: MI300X").replace(
            "A100-SXM4-80GB, num_gpus: 8", "A100-SXM4-80GB, num_gpus: 4"
        )
    )
    job.write_text(JOB.replace("llama-3.1-70b", "llama-3.1-405b"))
    code, out, _ = told(capsys, "plan", "serve", fleet, job, "--save", plan)
    assert code == 0
    assert "vendor-mix" in out
    assert "only strata's own workers run that, no `strata export` does" in " ".join(out.split())
    assert "strata serve worker" in out
    assert "--to vllm" not in out
    for target in ("vllm", "sglang", "kubernetes"):
        code, _, err = told(capsys, "export", plan, "--to", target, "--out", tmp_path / "out")
        assert code == 2
        assert "strata serve worker" in " ".join(err.split())


def test_like_pipelines_are_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "plan", "serve", "hub", "serve-llama-3.1-70b", "--strategy", "greedy")
    assert code == 0
    assert "264 pipelines on 264 of 264 nodes (greedy" in out
    assert len(out.splitlines()) < 30


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        (["--strategy", "dp"], "strategy", "dp"),
        (["--strategy", "greedy"], "strategy", "greedy"),
        (["--goal", "latency"], "goal", "latency"),
        (["--goal", "throughput"], "goal", "throughput"),
        (["--time-limit", "0"], "strategy", "auto"),
        (["--time-limit", "500ms"], "strategy", "auto"),
    ],
)
def test_what_is_asked_for_is_what_is_planned(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], options: list[str], key: str, value: str
) -> None:
    code, data = planned(capsys, *files, *options)
    assert (code, data[key]) == (0, value)
    assert data["pipelines"]


def test_the_jobs_strategy_is_the_default(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    files[1].write_text(JOB + "strategy: greedy\nrouting: rr\n")
    _, data = planned(capsys, *files)
    assert (data["strategy"], data["routing"]) == ("greedy", "rr")
    _, data = planned(capsys, *files, "--strategy", "dp")
    assert data["strategy"] == "dp"


def test_a_plan_that_misses_a_goal_is_shown_and_exits_with_4(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files[1].write_text(JOB + "goals: {tpot: 1ms}\n")
    code, data = planned(capsys, *files)
    assert code == 4
    assert data["pipelines"]
    assert data["figures"]["goodput_per_s"] == 0
    assert [reason["token"] for reason in data["reasons"]][:2] == ["chosen", "goal-missed"]
    files[1].write_text(JOB.replace("output: 128", "output: 128, rate: 1000/s"))
    code, data = planned(capsys, *files)
    assert code == 4
    assert data["reasons"][-1]["token"] == "rate-not-served"


def test_what_does_not_fit_exits_with_3_and_says_what_would_help(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files[0].write_text(FLEET.replace("num_gpus: 8, gpus_per_node: 2", "num_gpus: 2, gpus_per_node: 2").replace(
        "A100-SXM4-80GB, num_gpus: 8", "A100-SXM4-40GB, num_gpus: 1"))  # fmt: skip
    plan = tmp_path / "plan.json"
    code, out, _ = told(capsys, "plan", "serve", *files, "--save", plan)
    assert code == 3
    assert "no plan fits chat on three" in out
    assert "layers-do-not-fit" in out
    assert "fits-with-precision: fits with weights in fp8" in out
    assert "needs-devices" in out
    assert read_serving_plan(plan).pipelines == ()
    assert told(capsys, "lint", plan)[0] == 0
    code, out, _ = told(capsys, "explain", plan)
    assert code == 3
    assert "fits with weights in fp8" in out
    code, _, err = told(capsys, "export", plan, "--to", "vllm", "--out", tmp_path / "out")
    assert code == 3
    assert "the plan has no pipelines" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["aws10", "serve-llama-70b"], "try: serve-llama-3.1-70b"),
        (["aws11", "serve-llama-3.1-70b"], "try: aws10"),
        (["aws10", "llama-3.1-70b"], "no bundled serving job"),
        (["aws10", "serve-llama-3.1-70b", "--time-limit", "-1s"], "-1s is below 0"),
        (["aws10", "serve-llama-3.1-70b", "--time-limit", "soon"], "cannot read 'soon'"),
        (["aws10", "serve-llama-3.1-70b", "--strategy", "best"], "'best' is not one of"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, "plan", "serve", *arguments)
    assert (code, out) == (2, "")
    assert says in err


def test_what_is_saved_is_what_is_printed_and_reads_back(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    _, data = planned(capsys, *files, "--save", path)
    assert json.loads(path.read_text()) == data
    plan = read_serving_plan(path)
    assert [stage.node for one in plan.pipelines for stage in one.stages] == [
        stage["node"] for one in data["pipelines"] for stage in one["stages"]
    ]
    assert told(capsys, "lint", path) == (0, f"{path}: ok (ServingPlan)\n", "")


def test_explain_shows_a_saved_plan_and_why_a_domain_or_node_is_not_used(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = told(capsys, "explain", saved)
    assert code == 0
    assert "KV slots" in out
    assert "next:" not in out
    for name in ("Lab", "Lab/0"):
        code, out, _ = told(capsys, "explain", saved, "--why-not", name)
        assert code == 0
        assert "of 80 layers in the largest possible pipeline" in out
    code, out, _ = told(capsys, "explain", saved, "--why-not", "West", "-o", "json")
    assert json.loads(out)["used"] is True
    code, _, err = told(capsys, "explain", saved, "--why-not", "Wset")
    assert code == 2
    assert "try: --why-not West" in err


def test_explain_without_a_file_shows_the_latest_answer_of_either_kind(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = told(capsys, "explain")
    assert code == 2
    assert "no plan has been made yet" in err
    run(["plan", "train", "seed", "opt-350m", "--no-baselines"])
    run(["plan", "serve", *map(str, files)])
    capsys.readouterr()
    assert "KV slots" in told(capsys, "explain")[1]
    with History(default_path(os.environ)) as history:
        history.add("training", history.latest("training", 1)[0].decision, at_s=0.0)
    assert "KV slots" not in told(capsys, "explain")[1]


def test_explain_tells_the_faults_of_a_plan_with_their_places(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(saved.read_text())
    data["pipelines"][0]["stages"][0]["first"] = 3
    saved.write_text(json.dumps(data, indent=1))
    code, _, err = told(capsys, "explain", saved)
    assert code == 2
    assert "pipelines.0.stages.0.first: should be 0" in err
    assert f"{saved}:" in err


def test_a_plan_without_figures_is_explained_as_far_as_it_goes(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(saved.read_text())
    for key in ("figures", "reasons", "alternatives", "unused"):
        del data[key]
    saved.write_text(json.dumps(data))
    code, out, _ = told(capsys, "explain", saved)
    assert code == 0
    assert "KV slots" in out


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_a_saved_plan_is_exported(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    out = tmp_path / "launch"
    code, shown, notes = told(capsys, "export", saved, "--to", target, "--out", out, "-o", "json")
    data = json.loads(shown)
    assert code == 0
    assert set(data["files"]) == {path.name for path in out.iterdir()}
    assert "gateway.sh" in data["files"]
    assert data["num_nodes"] == len(data["files"]) - 1
    assert all(f"note: {note}" in notes for note in data["notes"])
    assert "--backend" in told(capsys, "export", saved, "--to", target, "--out", out)[1]


def test_a_plan_of_the_other_kind_is_refused_with_what_launches_it(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = told(capsys, "export", saved, "--to", "torchrun", "--out", tmp_path / "out")
    assert code == 2
    assert "a serving plan, and --to torchrun launches training plans\ntry: --to vllm" in err
    training = tmp_path / "training.json"
    stages = (Stage("a", 0, 10, 8),)
    save_plan(training, hardware(domain("a")), work(batch=32), TrainingPlan((Pipeline(stages, 1, 1),), 1))
    code, _, err = told(capsys, "export", training, "--to", "vllm", "--out", tmp_path / "out")
    assert code == 2
    assert "a training plan, and --to vllm launches serving plans\ntry: --to torchrun" in err


def test_an_interrupt_ends_the_search_with_the_best_plan_so_far(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = planner.allocate

    def interrupted(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return allocate(*arguments, **options)

    monkeypatch.setattr(planner, "allocate", interrupted)
    before = signal.getsignal(signal.SIGINT)
    code, data = planned(capsys, *files)
    assert code == 130
    assert data["pipelines"]
    assert "time-limit" in [reason["token"] for reason in data["reasons"]]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_saved_plan_goes_through_every_command_that_takes_one(
    files: tuple[Path, Path], saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (
        ["lint", str(saved)],
        ["explain", str(saved)],
        ["explain", str(saved), "--why-not", "Lab"],
        ["export", str(saved), "--to", "vllm", "--out", str(tmp_path / "vllm")],
        ["export", str(saved), "--to", "sglang", "--out", str(tmp_path / "sglang")],
        ["serve", "simulate", *map(str, files), "--rate", "1", "--seconds", "10s"],
    ):
        assert (command, run(command)) == (command, 0)
    capsys.readouterr()
    assert run(["simulate", str(saved)]) == 2
    assert "serving plan" in capsys.readouterr().err
    # Not the mean request of 640 tokens: what the cards of the tightest node hold beside its layers.
    held = min(one["kv_tokens"] for one in json.loads(saved.read_text())["pipelines"])
    script = next(path for path in (tmp_path / "vllm").iterdir() if f"CONTEXT:-{held}" in path.read_text())
    assert 640 < held < 131072
    assert "what the KV memory of the tightest stage holds" in script.read_text()


@pytest.mark.long("reads hundreds of edited plans")
def test_an_edited_plan_is_read_or_refused_never_a_traceback(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each key taken away, and each value made a list: `explain` and `export` say what is wrong, or go on."""
    data = json.loads(saved.read_text())
    edited = tmp_path / "edited.json"
    for place in _places(data):
        for change in ("drop", []):
            copy = json.loads(saved.read_text())
            parent = copy
            for key in place[:-1]:
                parent = parent[key]
            if change == "drop":
                del parent[place[-1]]
            else:
                parent[place[-1]] = change
            edited.write_text(json.dumps(copy))
            out = str(tmp_path / "out")
            for command in (["explain", str(edited)], ["export", str(edited), "--to", "vllm", "--out", out]):
                code = run(command)
                assert code in (0, 2, 3), (place, change, command, capsys.readouterr().err)
    capsys.readouterr()


def _places(data: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    # Of a list the first: the others are alike.
    for key, value in data.items() if isinstance(data, dict) else enumerate(data[:1]):
        yield (*here, key)
        if isinstance(value, dict | list):
            yield from _places(value, (*here, key))
