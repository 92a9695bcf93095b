"""strata from Python: the same answers as the commands', and nothing loaded before it is used."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import strata
from strata.cli.main import run
from strata.errors import BadFile, OutOfTime, UsageError
from strata.fleet.fleet import Fleet
from tests.cli.test_plan import FLEET, JOB
from tests.test_imports import HEAVY, imported_by

TIMES = {"search_s"}


@pytest.fixture
def files(tmp_path) -> tuple[Path, Path]:
    fleet, job = tmp_path / "fleet.yaml", tmp_path / "job.yaml"
    fleet.write_text(FLEET)
    job.write_text(JOB)
    return fleet, job


def printed(capsys, *arguments) -> dict:
    assert run([*map(str, arguments), "-o", "json"]) in (0, 4)
    return json.loads(capsys.readouterr().out)


def timeless(value):
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in TIMES}
    return [timeless(item) for item in value] if isinstance(value, (list, tuple)) else value


def test_importing_strata_loads_nothing():
    loaded = imported_by("import strata")
    assert not loaded & (HEAVY | {"click", "jinja2", "json"})


def test_every_name_is_there_and_is_what_its_type_says():
    imports = {
        alias.asname: f"{node.module}:{alias.name}"
        for node in ast.walk(ast.parse(Path(strata.__file__).with_suffix(".pyi").read_text()))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("strata")
        for alias in node.names
    }
    assert imports == strata._PLACES
    assert {*imports, "__version__"} == set(strata.__all__)
    assert all(callable(getattr(strata, name)) for name in imports)
    with pytest.raises(AttributeError, match="no attribute 'plans'"):
        _ = strata.plans


def test_a_plan_is_what_the_command_prints(files, capsys):
    answer = strata.plan(*files, baselines=False)
    assert timeless(answer.to_dict()) == timeless(printed(capsys, "plan", "train", *files, "--no-baselines"))


def test_a_plan_for_serving_is_what_the_command_prints(capsys):
    answer = strata.serve_plan("seed", "serve-llama-3.1-70b", goal="latency")
    command = ("plan", "serve", "seed", "serve-llama-3.1-70b", "--goal", "latency")
    assert timeless(answer.to_dict()) == timeless(printed(capsys, *command))


def test_what_if_is_what_the_command_prints(files, capsys):
    setting = "job.global_batch=16"
    answer = strata.whatif(*files, setting)
    assert timeless(answer) == timeless(printed(capsys, "whatif", *files, "--set", setting))


def test_a_saved_plan_explains_itself_as_the_answer_does(files, tmp_path, capsys):
    answer = strata.plan(*files, baselines=False)
    answer.save(tmp_path / "plan.json")
    assert timeless(strata.explain(tmp_path / "plan.json")) == timeless(strata.explain(answer))
    assert timeless(printed(capsys, "explain", tmp_path / "plan.json")) == timeless(strata.explain(answer))
    domain = answer.to_dict()["fleet"]["domains"][0]["name"]
    assert strata.explain(answer, why_not=domain) == strata.explain(tmp_path / "plan.json", why_not=domain)


def test_a_step_simulated_takes_what_the_plan_says(files, tmp_path):
    answer = strata.plan(*files, baselines=False)
    (report,), timeline = strata.simulate(answer)
    assert report.step_time_s == pytest.approx(answer.best.report.step_time_s, rel=1e-9)
    assert strata.svg(timeline, title="a step").startswith("<svg")
    answer.save(tmp_path / "plan.json")
    both, _ = strata.simulate(tmp_path / "plan.json", answer)
    assert len(both) == 2


def test_objects_do_as_well_as_files(files):
    fleet, job = strata.load_fleet(files[0]), strata.load_job(files[1])
    assert isinstance(fleet, Fleet)
    answer = strata.plan(fleet, job, baselines=False)
    assert answer.best.report == strata.plan(*files, baselines=False).best.report
    assert answer.to_dict()["inputs"] == {}


def test_the_front_holds_the_fastest_plan(files):
    front = strata.pareto(*files)
    fastest = strata.plan(*files, baselines=False).best.report.step_time_s
    assert min(item.report.step_time_s for item in front) == pytest.approx(fastest)


def test_faults_are_errors_of_ours(files, tmp_path):
    (tmp_path / "bad.yaml").write_text("kind: Fleet\nname: x\n")
    with pytest.raises(BadFile):
        strata.plan(tmp_path / "bad.yaml", files[1])
    with pytest.raises(UsageError):
        strata.plan("nowhere", files[1])
    with pytest.raises(OutOfTime, match="no plan within"):
        strata.plan("aws10", "llama-3.1-70b", time_limit_s=0.0)


def test_a_notebook_shows_an_answer(files):
    shown = strata.plan(*files)._repr_html_()
    assert "<svg" in shown
    assert "<script" not in shown
