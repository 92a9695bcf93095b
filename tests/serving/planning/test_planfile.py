"""`kind: ServingPlan` files: what is written reads back, and every fault is told with its place."""

import json

import pytest

from strata.errors import BadFile
from strata.files import write_json
from strata.serving.planning.allocation import Stage
from strata.serving.planning.planfile import ServingPlan, read_serving_plan
from tests.serving.planning.plans import planned

PLAN = planned((("a/0", 8, 6), ("b/0", 4, 4)), (("c/0", 8, 10),), kv="fp8")


def write(path, data):
    path.write_text(json.dumps(data, indent=1))
    return path


def launched(file):
    return ServingPlan(**{key: getattr(file, key) for key in ServingPlan.model_fields})


def test_a_plan_reads_back_equal(tmp_path):
    write_json(tmp_path / "plan.json", PLAN.to_dict())
    assert launched(read_serving_plan(tmp_path / "plan.json")) == PLAN


def test_a_plan_without_pipelines_reads_back(tmp_path):
    none = planned()
    assert launched(read_serving_plan(write(tmp_path / "plan.json", none.to_dict()))) == none


def test_what_only_people_read_is_left_alone(tmp_path):
    reason = {"token": "same-plan", "subject": "", "data": {}, "text": "x"}
    more = {
        "reasons": [reason],
        "unused": [{"domain": "d", "nodes": ["d/0"], "reason": reason}],
        "alternatives": [{"name": "dp", "cost": {"tokens_per_s": 1.0}, "reasons": [reason]}],
        "trust": "assumed",
        "seed": 3,
    }
    assert launched(read_serving_plan(write(tmp_path / "plan.json", PLAN.to_dict() | more))) == PLAN


def test_pipelines_are_known_to_routers_as_stages():
    assert PLAN.pipelines[0].layout == (Stage("a/0", 0, 6), Stage("b/0", 6, 10))
    assert PLAN.job.context_tokens == 1280


def test_every_fault_has_its_place(tmp_path):
    data = PLAN.to_dict()
    first, second = data["pipelines"][0]["stages"]
    first["node"], second["first"], second["end"] = "d/0", 7, 9
    data["pipelines"][1]["stages"][0]["node"] = "b/0"
    path = write(tmp_path / "plan.json", data)
    with pytest.raises(BadFile) as error:
        read_serving_plan(path)
    lines = path.read_text().splitlines()
    found = {
        fault.where.removeprefix("pipelines."): (lines[fault.line - 1].strip(), fault.message)
        for fault in error.value.faults
    }
    assert found["0.stages.0.node"] == ('"node": "d/0",', "no node 'd/0' in `fleet`")
    assert "should be 6" in found["0.stages.1.first"][1]
    assert "ends after 9 layers where the job's model has 10" in found["0.stages"][1]
    assert found["1.stages.0.node"][1] == "b/0 already holds a stage"


def test_unknown_keys_and_wrong_values_are_faults(tmp_path):
    data = PLAN.to_dict()
    data["pipeline"] = data.pop("pipelines")
    data["goal"] = "speed"
    with pytest.raises(BadFile) as error:
        read_serving_plan(write(tmp_path / "plan.json", data))
    assert "did you mean 'pipelines'" in str(error.value)
    assert "goal: should be 'both'" in str(error.value)


def test_an_empty_stage_is_refused(tmp_path):
    data = PLAN.to_dict()
    data["pipelines"][1]["stages"].insert(0, {**data["pipelines"][1]["stages"][0], "end": 0})
    with pytest.raises(BadFile, match="end"):
        read_serving_plan(write(tmp_path / "plan.json", data))
