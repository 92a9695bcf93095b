"""Every file of a kind that a command writes is accepted by every command that reads the kind, nothing injected.

The tables are held against the command line: a new command with `--save`, a new one that takes a plan, a new
target of `export` or a new kind of file fails a test here until it is in them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import pytest

from strata.cli.export import _TARGETS
from strata.cli.kinds import KINDS
from strata.cli.main import cli, run
from strata.workload import huggingface

FLEET = """\
apiVersion: strata/v1alpha1
kind: Fleet
name: pair
domains:
  - {name: West, accelerator: A100-SXM4-80GB, num_gpus: 8, price: $2/h}
  - {name: East, accelerator: A100-SXM4-80GB, num_gpus: 4, price: $2/h}
links:
  - {between: [West, East], bandwidth: 1Gbps, latency: 30ms, price: $0.02/GB}
"""
JOB = """\
apiVersion: strata/v1alpha1
kind: TrainingJob
name: small
model: opt-350m
train: {global_batch: 16, sequence: 2048}
"""
SERVICE = """\
apiVersion: strata/v1alpha1
kind: ServingJob
name: chat
model: llama-3.1-8b
demand: {prompt: 256, output: 64}
"""

LAYOUTS: Final = {
    "interleaved": ("schedules: interleaved", "pipeline: 4, tensor: 1"),
    "zero-bubble": ("schedules: zb-h1", "pipeline: 4, tensor: 1"),
    "folded": ("schedules: dualpipev", "pipeline: 2, tensor: 1"),
    "zero-2": ("zero: 2", "pipeline: 2, tensor: 2"),
    "fsdp": ("zero: 3", "pipeline: 1, tensor: 1"),
    "context": ("recompute: none", "context: 2, pipeline: 2, tensor: 1"),
    "experts": ("recompute: none", "expert: 4, tensor: 1"),
}
"""What a job says that makes a plan of a kind that the planner would not choose for the small job."""

TRAIN: Final = ("plan", "train", "fleet.yaml", "job.yaml")
SERVE: Final = ("plan", "serve", "fleet.yaml", "service.yaml")

WRITERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "train": ("TrainingPlan", (*TRAIN, "--pareto")),
    "train-cost": ("TrainingPlan", (*TRAIN, "--minimize", "cost", "--no-baselines")),
    "train-weights": ("TrainingPlan", (*TRAIN, "--weights", "1,2,1", "--no-baselines")),
    "train-hi-ppo": ("TrainingPlan", (*TRAIN, "--planner", "hi-ppo", "--no-baselines")),
    "train-one-site": ("TrainingPlan", ("plan", "train", "one.yaml", "job.yaml", "--no-baselines")),
    **{
        f"train-{name}": ("TrainingPlan", ("plan", "train", "one.yaml", f"{name}.yaml", "--no-baselines"))
        for name in LAYOUTS
    },
    "serve": ("ServingPlan", SERVE),
    "serve-greedy": ("ServingPlan", (*SERVE, "--strategy", "greedy")),
}
"""What writes a plan file: its kind, and the command but for `--save FILE`."""

READERS: Final[dict[tuple[str, ...], dict[str, list[tuple[str, ...]]]]] = {
    ("explain",): {kind: [("explain", "PLAN"), ("explain", "PLAN", "-o", "json")] for kind in KINDS},
    ("simulate",): {
        "TrainingPlan": [("simulate", "PLAN", "--backend", backend) for backend in ("analytic", "events")]
    },
    ("export",): {
        kind: [
            ("export", "PLAN", "--to", target, "--out", "out")
            for target, (launched, _) in _TARGETS.items()
            if kind in launched
        ]
        for kind in ("TrainingPlan", "ServingPlan")
    },
    ("lint",): {kind: [("lint", "PLAN")] for kind in KINDS},
    ("report",): {kind: [("report", "PLAN", "-o", "report.html")] for kind in ("TrainingPlan", "ServingPlan")},
    ("plan", "train"): {
        "TrainingPlan": [
            (*TRAIN, "--planner", "hi-ppo", "--no-baselines", "--in-use", "PLAN"),
            (*TRAIN, "--no-baselines", "--given", "PLAN"),
        ]
    },
}
"""What reads plan files: the command, and its calls for each kind."""

REFUSED: Final = {
    **{(f"train-{name}", "chakra"): 3 for name in LAYOUTS},
    ("train-zero-bubble", "megatron"): 2,
    **{("train-folded", target): 2 for target in ("megatron", "torchrun", "kueue", "kubernetes")},
    ("train-experts", "--given"): 2,  # of another model than the job that reads it
    ("train-experts", "--in-use"): 2,
    ("train-context", "torchrun"): 2,
    ("train-context", "kueue"): 2,
    ("train-context", "kubernetes"): 2,
}
"""Plans that a target has no words for, and its exit code: it says so, with something to try."""

NO_PLANS: Final = {"Fleet", "TrainingJob", "TrainingLayout", "ServingJob", "RuntimeProfile", "HiPpoTraining"}
"""Kinds that people write; what commands write of them would go into WRITERS."""

NO_PLAN_SAVED: Final = {("profile",), ("serve", "calibrate")}
"""Commands with `--save` that write layer times, which a job reads, and a log of requests, which they read."""

WHY_NOT: Final = {"TrainingPlan": "domains", "ServingPlan": "nodes"}


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(group, click.Group):
        yield path, group
        return
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield from commands(command, (*path, name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("walk")
    texts = {"fleet.yaml": FLEET, "one.yaml": FLEET[: FLEET.index("  - {name: East")], "job.yaml": JOB}
    for name, (train, parallel) in LAYOUTS.items():
        texts[f"{name}.yaml"] = JOB.replace("2048}", f"2048, {train}}}") + f"parallel: {{{parallel}}}\n"
    texts["experts.yaml"] = texts["experts.yaml"].replace("opt-350m", "mixture.json")
    large = json.loads((Path(huggingface.__file__).parent / "models" / "qwen3-30b-a3b.json").read_text())
    texts["mixture.json"] = json.dumps(large | {"num_hidden_layers": 6})
    for name, text in {**texts, "service.yaml": SERVICE}.items():
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, (_, command) in WRITERS.items():
            assert run([*command, "--save", f"{name}.json"]) == 0, name
    return folder


CALLS: Final = [
    pytest.param(name, kind, call, id=f"{name}-{'-'.join(call[:5])}")
    for name, (kind, _) in WRITERS.items()
    for reader in READERS.values()
    for call in reader.get(kind, [])
]


@pytest.mark.parametrize(("name", "kind", "call"), CALLS)
def test_what_one_command_writes_another_reads(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    kind: str,
    call: tuple[str, ...],
) -> None:
    monkeypatch.chdir(folder)
    plan = f"{name}.json"
    code = run([plan if word == "PLAN" else word for word in call])
    shown = capsys.readouterr()
    if refused := REFUSED.get((name, call[3] if call[0] == "export" else call[-2])):
        assert code == refused
        assert "try: " in shown.err
        return
    assert code == 0, shown.err
    if call[0] == "lint":
        assert f"{plan}: ok ({kind})" in shown.out
    if "json" in call:
        assert json.loads(shown.out) == json.loads(Path(plan).read_text())


def test_the_layouts_are_in_the_plans(folder: Path) -> None:
    plans = {name: json.loads((folder / f"train-{name}.json").read_text())["plans"][0]["plan"] for name in LAYOUTS}
    assert plans["interleaved"]["virtual_stages"] > 1
    assert plans["zero-bubble"]["schedule"] == "zb-h1"
    assert plans["folded"]["schedule"] == "dualpipev"
    assert [stage["context_parallel"] for stage in plans["context"]["pipelines"][0]["stages"]] == [2, 2]
    assert plans["experts"]["expert_parallel"] == 4
    assert (plans["zero-2"]["zero_stage"], plans["fsdp"]["zero_stage"]) == (2, 3)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_job_with_its_layout_is_asked_what_if(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(folder)
    assert run(["whatif", "one.yaml", f"{name}.yaml", "--set", "domain.West.num_gpus=4"]) == 0
    given = ["plan", "train", "one.yaml", f"{name}.yaml", "--no-baselines", "--given", f"train-{name}.json"]
    assert run(given) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", WRITERS)
def test_why_not_is_answered_from_the_file_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(folder)
    data = json.loads(Path(f"{name}.json").read_text())
    key = {"domains": "name", "nodes": "id"}[WHY_NOT[data["kind"]]]
    for place in data["fleet"][WHY_NOT[data["kind"]]]:
        assert run(["explain", f"{name}.json", "--why-not", place[key]]) == 0, capsys.readouterr().err


def test_a_real_plan_gives_megatron_the_shape_of_its_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert run(["export", "train.json", "--to", "megatron", "--out", "megatron"]) == 0
    given = Path("megatron/megatron-args.txt").read_text().splitlines()
    assert {"--hidden-size 1024", "--num-attention-heads 16", "--ffn-hidden-size 4096"} <= set(given)
    assert "does not say the model's shape" not in "".join(given)


def test_the_printed_json_is_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    for name in ("train-cost", "serve"):
        assert run([*WRITERS[name][1], "-o", "json"]) == 0
        printed: dict[str, Any] = json.loads(capsys.readouterr().out)
        Path("printed.json").write_text(json.dumps(printed))
        assert run(["lint", "printed.json"]) == 0
        capsys.readouterr()
        assert printed.keys() == json.loads(Path(f"{name}.json").read_text()).keys()


def test_the_answer_that_nothing_fits_is_a_file_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    Path("large.yaml").write_text(JOB.replace("opt-350m", "llama-3.1-405b"))
    assert run(["plan", "train", "fleet.yaml", "large.yaml", "--save", "none.json"]) == 3
    assert run(["lint", "none.json"]) == 0
    assert run(["explain", "none.json"]) == 3
    assert run(["explain", "none.json", "--why-not", "East"]) == 0
    for command in (["export", "none.json", "--to", "torchrun"], ["simulate", "none.json"]):
        assert run(command) == 2
        assert "no plan fitted" in capsys.readouterr().err


def test_the_tables_name_every_command_that_writes_or_reads_plans() -> None:
    saving = {path for path, command in commands(cli) if any(p.name == "save" for p in command.params)}
    assert saving - NO_PLAN_SAVED == {command[:2] for _, command in WRITERS.values()}
    taking = {
        path
        for path, command in commands(cli)
        for parameter in command.params
        if (isinstance(parameter, click.Argument) and parameter.name in ("plan", "plans", "files"))
        or parameter.name in ("in_use", "given")
    }
    assert taking == set(READERS)
    assert {kind for kind, _ in WRITERS.values()} | NO_PLANS == set(KINDS)
