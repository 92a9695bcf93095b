"""`strata explain`: what it shows beside the table of plans, and the plans that it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strata.cli.main import run
from tests.cli.test_plan import FLEET, JOB, planned


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    fleet, job = tmp_path / "fleet.yaml", tmp_path / "job.yaml"
    fleet.write_text(FLEET)
    job.write_text(JOB)
    return fleet, job


def test_the_chunks_of_interleaved_stages_are_shown(tmp_path, capsys):
    fleet, job, plan = (tmp_path / name for name in ("fleet.yaml", "job.yaml", "plan.json"))
    fleet.write_text(FLEET)
    schedules = "schedules: [1f1b, interleaved]}\nparallel: {pipeline: 4, tensor: 2}"
    job.write_text(JOB.replace("sequence: 2048}", f"sequence: 2048, {schedules}"))
    assert run(["plan", "train", str(fleet), str(job), "--no-baselines", "--save", str(plan)]) == 0
    assert run(["explain", str(plan)]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("stage in"))
    column = slice(lines[start].index("layers"), lines[start].index("copies"))
    held = " ".join(line[column].strip() for line in lines[start + 1 :]).replace(", ", ",").split()
    first = [[int(chunk.split("-")[0]) for chunk in stage.split(",")] for stage in held]
    assert len({len(stage) for stage in first}) == 1
    assert len(first[0]) > 1
    dealt = [layer for chunks in zip(*first, strict=True) for layer in chunks]
    assert dealt == sorted(dealt)


def test_a_plan_of_before_a_key_was_there_is_shown(tmp_path, capsys):
    fleet, job, plan = (tmp_path / name for name in ("fleet.yaml", "job.yaml", "plan.json"))
    fleet.write_text(FLEET)
    job.write_text(JOB)
    assert run(["plan", "train", str(fleet), str(job), "--no-baselines", "--save", str(plan)]) == 0
    capsys.readouterr()
    assert run(["explain", str(plan)]) == 0
    shown = capsys.readouterr().out
    data = json.loads(plan.read_text())
    for item in data["plans"]:
        for key in ("expert_parallel", "context_exchange", "virtual_stages"):
            del item["plan"][key]
        for pipeline in item["plan"]["pipelines"]:
            for stage in pipeline["stages"]:
                del stage["context_parallel"]
    plan.write_text(json.dumps(data))
    assert run(["explain", str(plan)]) == 0
    assert capsys.readouterr().out == shown


def test_a_domain_that_no_link_reaches_is_compared_alone(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files[0].write_text(FLEET.split("links:")[0])
    saved = tmp_path / "plan.json"
    assert run(["plan", "train", *map(str, files), "--save", str(saved), "--no-baselines"]) == 0
    used = json.loads(saved.read_text())["plans"][0]["domains"]
    other = next(name for name in ("East", "West") if name not in used)
    capsys.readouterr()
    assert run(["explain", str(saved), "--why-not", other]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"no link reaches {other} from any other domain the best plan with {other} is single {other}: " in out


def test_a_saved_answer_explains_itself(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "plan.json"
    files[0].write_text(FLEET.replace("5Gbps, latency: 30ms", "10Mbps, latency: 300ms"))
    assert run(["plan", "train", *map(str, files), "--save", str(saved)]) == 0
    capsys.readouterr()
    assert run(["explain", str(saved)]) == 0
    assert "single-domain-best" in capsys.readouterr().out
    used = json.loads(saved.read_text())["plans"][0]["domains"][0]
    other = "East" if used == "West" else "West"
    assert run(["explain", str(saved), "--why-not", other, "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert other in answer["best_with"]["domains"]
    assert run(["explain", str(saved), "--why-not", used]) == 0
    assert "is used by the chosen plan" in capsys.readouterr().out
    assert run(["explain", str(saved), "--why-not", "Wset"]) == 2
    assert "--why-not West" in capsys.readouterr().err
    assert run(["explain", str(saved), "--why-not", "Nowhere"]) == 2
    assert "--why-not West | East" in capsys.readouterr().err


def test_explain_remembers_the_latest_plan(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain"]) == 2
    assert "no plan has been made yet" in capsys.readouterr().err
    planned(capsys, *files)
    assert run(["explain", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "small"


def test_explain_refuses_what_is_no_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "x.json"
    other.write_text('{"kind": "Fleet"}')
    assert run(["explain", str(other)]) == 2
    assert "kind: Fleet" in capsys.readouterr().err


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fleet whose two sites are too far apart to share the job, and its plan."""
    folder = tmp_path_factory.mktemp("far")
    (folder / "fleet.yaml").write_text(FLEET.replace("5Gbps, latency: 30ms", "10Mbps, latency: 300ms"))
    (folder / "job.yaml").write_text(JOB)
    inputs = [str(folder / "fleet.yaml"), str(folder / "job.yaml")]
    assert run(["plan", "train", *inputs, "--pareto", "--save", str(folder / "plan.json"), "-o", "json"]) == 0
    return folder


def edited(far: Path, tmp_path: Path, *where: object, value: object = None) -> Path:
    """The plan with one value set to another, or taken away (None)."""
    data = json.loads((far / "plan.json").read_text())
    inner = data
    for key in where[:-1]:
        inner = inner[key]
    if value is None:
        del inner[where[-1]]
    else:
        inner[where[-1]] = value
    file = tmp_path / "edited.json"
    file.write_text(json.dumps(data, indent=1))
    return file


@pytest.mark.parametrize(
    "where",
    [
        pytest.param(where, id=".".join(map(str, where)))
        for where in [
            ("plans",), ("plans", 0, "name"), ("plans", 0, "breakdown_s"), ("plans", 0, "breakdown_s", "wan"),
            ("plans", 0, "stages"), ("plans", 0, "stages", 0, "memory_limit_bytes"), ("plans", 0, "plan"),
            ("plans", 0, "plan", "pipelines", 0, "replicas"), ("plans", 0, "reasons", 0, "text"),
            ("baselines",), ("baselines", "uniform_split", "found"), ("baselines", "mast_like", "num_devices"),
            ("proof",), ("proof", "gap"), ("search_s",), ("reasons",), ("reasons", 0, "token"), ("alternatives",),
            ("alternatives", 0, "domains"), ("fleet",), ("fleet", "domains", 0, "name"), ("inputs",),
            ("objective",), ("front", 0, "step_time_s"), ("request",), ("digests",),
        ]
    ],
)  # fmt: skip
@pytest.mark.parametrize("arguments", [(), ("--why-not", "East")], ids=["", "why-not"])
def test_an_edited_plan_is_refused_with_its_place(
    far: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], where: tuple[object, ...], arguments: tuple[str]
) -> None:
    file = edited(far, tmp_path, *where)
    assert run(["explain", str(file), *arguments]) == 2
    message = capsys.readouterr().err
    assert f"{file}:" in message
    assert str(where[-1]) in message


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("plans", 0, "step_time_s"), 0),
        (("plans", 0, "step_time_s"), "fast"),
        (("plans", 0, "stages"), []),
        (("plans", 0, "plan", "pipelines"), []),
        (("plans", 0, "plan", "pipelines", 0, "replicas"), 10**9),
        (("plans",), {}),
        (("baselines", "uniform_split", "found"), "maybe"),
        (("alternatives",), [3]),
        (("inputs", "fleet"), 3),
        (("request", "planner"), "guess"),
    ],
)
def test_a_plan_of_impossible_values_is_refused_with_its_place(
    far: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], where: tuple[object, ...], value: object
) -> None:
    file = edited(far, tmp_path, *where, value=value)
    assert run(["explain", str(file)]) == 2
    assert f"{file}:" in capsys.readouterr().err


def test_why_not_plans_what_the_plan_was_made_from_and_nothing_else(
    far: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("fleet.yaml", FLEET), ("job.yaml", JOB)):
        (tmp_path / name).write_text(text)
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    plan = [
        "plan",
        "train",
        "fleet.yaml",
        "job.yaml",
        "--no-baselines",
        "--weights",
        "1,0,0",
        "--save",
        "plan.json",
    ]
    assert run([*plan, "-o", "json"]) == 0
    capsys.readouterr()
    used = json.loads(Path("plan.json").read_text())["plans"][0]["domains"]
    others = [name for name in ("West", "East") if name not in used]
    question = ["explain", str(tmp_path / "plan.json"), "--why-not", *(others or ["East"])]
    if others:
        assert run([*question, "-o", "json"]) == 0
        best = json.loads(capsys.readouterr().out)["best_with"]
        assert {reason["token"] for reason in best["reasons"]} & {"scores-lower"}
    # The same names in another folder are other files.
    Path("there/fleet.yaml").write_text(FLEET.replace("num_gpus: 8", "num_gpus: 4"))
    Path("there/job.yaml").write_text(JOB.replace("16", "8"))
    monkeypatch.chdir(tmp_path / "there")
    if others:
        assert run(question) == 2
        message = capsys.readouterr().err
        assert f"fleet.yaml (in {tmp_path / 'there'}) has changed: West is 4" in message
        assert "global_batch is 8, and was 16" in message
        assert message.count("try:") == 1
