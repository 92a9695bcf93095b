import json
from dataclasses import replace

import pytest

from strata.errors import BadFile
from strata.training.plan.planfile import read_plan
from strata.workload.job import Recompute, Schedule
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.builders import domain, fleet, job, layers
from tests.support.training_plans import plan_data

PLAN = TrainingPlan(
    (Pipeline((Stage("a", 0, 6, 4, warmup=3), Stage("b", 6, 4, 2)), replicas=2, microbatches=8),),
    microbatch_size=2,
    schedule=Schedule.LATENCY_AWARE,
    recompute=Recompute.FULL,
)
FLEET, JOB = fleet(domain("a", 16), domain("b", 4)), job(layers(8), batch=32)


def saved():
    return plan_data(FLEET, JOB, PLAN, inputs={"fleet": "fleet.yaml", "job": "job.yaml"})


def write(path, data):
    path.write_text(json.dumps(data, indent=1))
    return path


def test_the_best_plan_of_a_file_is_read(tmp_path):
    data = plan_data(FLEET, JOB, PLAN, replace(PLAN, zero_stage=1))
    plan = read_plan(write(tmp_path / "plan.json", data))
    assert plan.plan == PLAN
    assert [domain.name for domain in plan.domains] == ["a", "b"]
    assert (plan.job.num_layers, plan.job.num_heads) == (10, 32)


def test_every_fault_has_its_place(tmp_path):
    data = saved()
    stages = data["plans"][0]["plan"]["pipelines"][0]["stages"]
    stages[0]["domain"], stages[1]["first_layer"], stages[1]["tensor_parallel"] = "c", 5, 8
    path = write(tmp_path / "plan.json", data)
    with pytest.raises(BadFile) as error:
        read_plan(path)
    lines = path.read_text().splitlines()
    found = {}
    for fault in error.value.faults:
        assert fault.line
        assert fault.column
        found[fault.where.removeprefix("plans.0.plan.pipelines")] = (lines[fault.line - 1], fault.message)
    assert found[".0.stages.0.domain"][0].strip() == '"domain": "c",'
    assert "should be 6" in found[".0.stages.1.first_layer"][1]
    assert "4 devices of a node of b" in found[".0.stages.1.tensor_parallel"][1]
    assert "ends after 9 layers where the job's model has 10" in found[".0.stages"][1]
    assert "uses 16 devices of b, which has 4" in found[""][1]


def test_unknown_keys_and_wrong_values_are_faults(tmp_path):
    data = saved()
    plan = data["plans"][0]["plan"]
    plan["microbatchsize"] = plan.pop("microbatch_size")
    plan["schedule"] = "2f2b"
    with pytest.raises(BadFile) as error:
        read_plan(write(tmp_path / "plan.json", data))
    text = str(error.value)
    assert "did you mean 'microbatch_size'" in text
    assert "1f1b-la" in text


def test_a_file_that_holds_no_plan_says_so(tmp_path):
    with pytest.raises(BadFile, match="no plan fitted") as error:
        read_plan(write(tmp_path / "plan.json", saved() | {"plans": []}))
    assert "strata explain" in error.value.hint
