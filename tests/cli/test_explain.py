"""`strata explain`, as far as it shows more than the table of plans."""

from __future__ import annotations

import json

from strata.cli.main import run
from tests.cli.test_plan import FLEET, JOB


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
