from __future__ import annotations

import json

import pytest
import yaml

from strata.cli.kinds import KINDS
from strata.cli.main import run
from tests import ROOT
from tests.cli.test_plan import FLEET, JOB

EXAMPLES = sorted(str(path) for path in (ROOT / "examples").glob("*.yaml"))


@pytest.fixture
def written(tmp_path):
    def write(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_every_example_is_good(capsys):
    assert EXAMPLES
    assert run(["lint", *EXAMPLES]) == 0
    shown = capsys.readouterr()
    assert [line.rsplit(": ok", 1)[0] for line in shown.out.splitlines()] == EXAMPLES
    assert shown.err == ""


def test_the_network_file_of_seed_001_is_known_without_a_kind(capsys):
    assert run(["lint", next(file for file in EXAMPLES if "seed" in file)]) == 0
    assert capsys.readouterr().out.endswith("fleet-seed.yaml: ok (Fleet)\n")


def test_all_faults_of_all_files_are_told_and_good_files_still_ok(written, capsys):
    first = written("first.yaml", "kind: Fleet\nname: 3\n")
    second = written("second.yaml", "kind: Flet\n")
    assert run(["lint", first, EXAMPLES[0], second, "none.yaml"]) == 2
    shown = capsys.readouterr()
    assert shown.out.startswith(f"{EXAMPLES[0]}: ok (")
    assert shown.err.splitlines() == [
        f"error: {first}:1:1: apiVersion: required key is missing",
        f"error: {first}:1:1: domains: required key is missing",
        f"error: {first}:2:1: name: should be text; put it in quotes if it is",
        f"error: {second}:1:1: kind: no kind 'Flet' (did you mean 'Fleet'?)",
        "error: none.yaml: no such file",
        "try: `strata schema KIND` prints what a file may hold",
    ]


def test_of_a_file_that_is_not_there_no_schema_helps(capsys):
    assert run(["lint", "none.yaml"]) == 2
    assert capsys.readouterr().err == "error: none.yaml: no such file\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "name: a\n",
            f"1:1: no `kind:` at the top (known: {', '.join(KINDS)})",
        ),
        ("- kind: Fleet\n", "1:1: no `kind:` at the top"),
        (
            "kind: Pod\n",
            f"1:1: kind: no kind 'Pod' (known: {', '.join(KINDS)})",
        ),
        ("name: a\nkind: [Fleet]\n", "2:1: kind: no kind"),
        ("kind: Fleet\nkind: Fleet\n", "2:1: kind: key given twice"),
        ("", "1:1: the file is empty"),
    ],
)
def test_a_file_of_no_kind_is_a_fault_with_its_place(written, capsys, text, says):
    assert run(["lint", file := written("file.yaml", text)]) == 2
    assert f"error: {file}:{says}" in capsys.readouterr().err


def test_faults_are_data_as_json(written, capsys):
    file = written("file.yaml", "kind: Flet\n")
    assert run(["lint", "-o", "json", EXAMPLES[0], file]) == 2
    good, bad = json.loads(capsys.readouterr().out)
    assert (good["ok"], good["faults"]) == (True, [])
    assert (bad["ok"], bad["kind"]) == (False, "")
    assert bad["faults"][0]["line"] == 1


def test_the_kinds_are_listed(capsys):
    assert run(["schema"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["kind", *KINDS]


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_of_every_kind_uses_the_names_of_the_file(kind, capsys):
    assert run(["schema", kind]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert {"apiVersion", "kind"} <= set(schema["properties"])
    assert schema["additionalProperties"] is False


def test_a_schema_leaves_out_what_json_schema_does_not_know(capsys):
    assert run(["schema", "Fleet", "-o", "yaml"]) == 0
    entry = yaml.safe_load(capsys.readouterr().out)["$defs"]["LinkEntry"]["properties"]["bandwidth"]
    assert entry == {
        "anyOf": [{"type": "string"}, {"type": "number"}],
        "description": "bandwidth: 400Gbps (bits) or 50GB/s (bytes)",
    }


def test_an_unknown_kind_is_told_which_was_meant(capsys):
    assert run(["schema", "fleet"]) == 2
    assert "no kind 'fleet' (did you mean 'Fleet'?)" in capsys.readouterr().err


@pytest.fixture
def saved(written, tmp_path):
    """A plan that was made from files that are there."""
    files = written("fleet.yaml", FLEET), written("job.yaml", JOB)
    path = tmp_path / "plan.json"
    assert run(["plan", "train", *files, "--no-baselines", "--top", "1", "--save", str(path)]) == 0
    return path


def test_what_a_saved_plan_claims_of_batch_and_memory_is_checked(saved, capsys):
    assert run(["lint", str(saved)]) == 0
    data = json.loads(saved.read_text())
    best = data["plans"][0]
    best["plan"]["microbatch_size"] *= 1024
    best["stages"][0]["memory_bytes"] /= 2
    saved.write_text(json.dumps(data, indent=1))
    capsys.readouterr()
    assert run(["lint", str(saved)]) == 2
    said = capsys.readouterr().err
    assert "samples a step where the job's global batch is 16" in said
    assert "plans.0.stages.0.memory_bytes: " in said
    assert "memory" in said


def test_a_plan_whose_fleet_has_changed_is_read_and_no_more(saved, capsys):
    fleet = saved.with_name("fleet.yaml")
    fleet.write_text(FLEET.replace("num_gpus: 8", "num_gpus: 16"))
    capsys.readouterr()
    assert run(["lint", "-o", "json", str(saved)]) == 0
    (checked,) = json.loads(capsys.readouterr().out)
    assert checked["ok"]
    assert checked["note"].startswith(f"not checked against fleet and job: {fleet} has changed: West is 16")
