import json
from dataclasses import replace

import pytest

from strata.errors import BadFile
from strata.training.plan.planfile import PlannedDomain, PlannedJob, SavedPlan, read_plan, save_plan
from strata.workload.job import Recompute, Schedule
from strata.workload.plan import Pipeline, Stage, TrainingPlan

PLAN = TrainingPlan(
    (Pipeline((Stage("a", 0, 6, 4, warmup=3), Stage("b", 6, 4, 2)), replicas=2, microbatches=8),),
    microbatch_size=2,
    schedule=Schedule.LATENCY_AWARE,
    recompute=Recompute.FULL,
)
SAVED = SavedPlan(
    name="a > b",
    plan=PLAN,
    fleet="two sites",
    domains=(PlannedDomain("a", "A100-SXM4-80GB", 8, 8), PlannedDomain("b", "H100-SXM", 4, 4)),
    job=PlannedJob("job", "model", 10, 4096, 32, num_heads=32),
    report={"step_time_s": 1.5, "egress_usd_per_step": 1e-05},
    inputs={"fleet": "fleet.yaml"},
)


def write(path, data):
    path.write_text(json.dumps(data, indent=1))
    return path


def test_a_saved_plan_reads_back_equal(tmp_path):
    save_plan(tmp_path / "plan.json", SAVED)
    assert read_plan(tmp_path / "plan.json") == SAVED


def test_the_first_plan_of_an_answer_is_read(tmp_path):
    one = {"name": "best", "plan": PLAN.to_dict(), "step_time_s": 1.5}
    other = {"name": "second", "plan": replace(PLAN, zero_stage=1).to_dict()}
    answer = {"plans": [one, other], "decision": {}, **{key: SAVED.to_dict()[key] for key in ("fleet", "job")}}
    assert read_plan(write(tmp_path / "answer.json", answer)) == replace(SAVED, name="best", report={}, inputs={})


def test_every_fault_has_its_place(tmp_path):
    data = SAVED.to_dict()
    stages = data["plan"]["pipelines"][0]["stages"]
    stages[0]["domain"], stages[1]["first_layer"], stages[1]["tensor_parallel"] = "c", 5, 8
    path = write(tmp_path / "plan.json", data)
    with pytest.raises(BadFile) as error:
        read_plan(path)
    lines = path.read_text().splitlines()
    found = {}
    for fault in error.value.faults:
        assert fault.line
        assert fault.column
        found[fault.where.removeprefix("plan.pipelines")] = (lines[fault.line - 1], fault.message)
    assert found[".0.stages.0.domain"][0].strip() == '"domain": "c",'
    assert "should be 6" in found[".0.stages.1.first_layer"][1]
    assert "4 devices of a node of b" in found[".0.stages.1.tensor_parallel"][1]
    assert "ends after 9 layers where the job's model has 10" in found[".0.stages"][1]
    assert "uses 16 devices of b, which has 4" in found[""][1]


def test_unknown_keys_and_wrong_values_are_faults(tmp_path):
    data = SAVED.to_dict()
    data["plan"]["microbatchsize"] = data["plan"].pop("microbatch_size")
    data["plan"]["schedule"] = "2f2b"
    with pytest.raises(BadFile) as error:
        read_plan(write(tmp_path / "plan.json", data))
    text = str(error.value)
    assert "did you mean 'microbatch_size'" in text
    assert "1f1b-la" in text


def test_an_answer_without_plans_is_refused(tmp_path):
    with pytest.raises(BadFile, match="plans"):
        read_plan(write(tmp_path / "answer.json", {"plans": [], "fleet": {}, "job": {}}))
