import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from strata.errors import UsageError
from strata.simulate.order import orders
from strata.training.export.ranks import RankLayout
from strata.training.export.torchrun import render
from strata.workload.job import Recompute, Schedule
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from strata.workload.software_schema import SoftwareEntry
from tests.support.ports import free_ports

LINE = re.compile(
    r"rank (\d+) stage (\d+) layers (\S+) domain (\S+) node (\d+) device (\d+) "
    r"pipeline (\d+) copy (\d+) tensor (\d+)"
)
TWO = TrainingPlan((Pipeline((Stage("a", 0, 3, 1, 1), Stage("b", 3, 2, 1)), 1, 3),), 8)
UNEQUAL = TrainingPlan(
    (
        Pipeline((Stage("a", 0, 2, 2, 1), Stage("a", 2, 3, 1)), 1, 2),
        Pipeline((Stage("a", 0, 5, 1),), 1, 1),
    ),
    8,
)
INTERLEAVED = replace(
    TrainingPlan((Pipeline((Stage("a", 0, 3, 2), Stage("a", 3, 2, 1)), 1, 3),), 8),
    schedule=Schedule.INTERLEAVED,
    virtual_stages=2,
)


def layout(plan, per_node=4):
    names = plan.domains
    return RankLayout(plan, dict.fromkeys(names, 64), dict.fromkeys(names, per_node), dict.fromkeys(names, "card"))


def write(folder, launch):
    for name, text in launch.files.items():
        (folder / name).write_text(text)


def fake(folder, name, script):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
    (folder / name).chmod(0o755)


def run(script, **variables):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen(
        ["bash", script, "--steps", "3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def finish(processes):
    try:
        answers = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, answers, strict=True):
        assert process.returncode == 0, errors
    return "".join(out for out, _ in answers)


def train(folder, plan):
    """Start an export on this machine, one torchrun a domain; return the printed rank map and the losses."""
    folder.mkdir()
    launch = render(layout(plan))
    write(folder, launch)
    (port,) = free_ports(1)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    started = [
        run(str(script), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), PATH=path)
        for script in sorted(folder.glob("launch-*.sh"))
    ]
    text = finish(started)
    printed = sorted(tuple(int(x) if x.isdigit() else x for x in found) for found in LINE.findall(text))
    planned = [
        (r.rank, r.stage, ",".join(f"{a}-{b}" for a, b in r.chunks), *r.device, r.pipeline, r.copy, r.tensor_rank)
        for r in launch.ranks.ranks
    ]
    return printed, planned, [float(x) for x in re.findall(r"step \d+ loss (\S+)", text)]


@pytest.fixture(scope="module")
def two_stages(tmp_path_factory):
    return train(tmp_path_factory.mktemp("export") / "two", TWO)


@pytest.mark.real("torch")
def test_a_two_stage_export_runs_on_two_processes_as_planned_and_learns(two_stages):
    printed, planned, losses = two_stages
    assert printed == planned
    assert len(printed) == 2
    assert losses[2] < losses[1] < losses[0] < 10


@pytest.mark.real("torch")
def test_however_a_plan_cuts_model_and_batch_the_losses_are_the_same(two_stages, tmp_path):
    printed, planned, losses = train(tmp_path / "unequal", UNEQUAL)
    assert printed == planned
    assert len(printed) == 4
    assert losses == pytest.approx(two_stages[2], abs=2e-4)


@pytest.mark.real("torch")
def test_what_pads_a_short_microbatch_does_not_count(two_stages, tmp_path):
    one = replace(TWO, pipelines=(replace(TWO.pipelines[0], samples=20),))
    two = replace(UNEQUAL, pipelines=(UNEQUAL.pipelines[0], replace(UNEQUAL.pipelines[1], samples=4)))
    losses = [train(tmp_path / name, plan)[2] for name, plan in (("one", one), ("two", two))]
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)
    assert losses[0] != pytest.approx(two_stages[2], abs=2e-4)


@pytest.mark.real("torch")
def test_an_interleaved_plan_has_the_losses_of_one_that_is_not(two_stages, tmp_path):
    printed, planned, losses = train(tmp_path / "interleaved", INTERLEAVED)
    assert printed == planned
    assert {layers for _, _, layers, *_ in printed} == {"0-1,3-3", "2-2,4-4"}
    assert losses == pytest.approx(two_stages[2], abs=2e-4)


@pytest.mark.real("torch")
@pytest.mark.parametrize("recompute", list(Recompute))
def test_weight_gradients_that_come_apart_are_the_same(two_stages, tmp_path, recompute):
    apart = replace(TWO, schedule=Schedule.ZERO_BUBBLE, recompute=recompute)
    printed, planned, losses = train(tmp_path / "apart", apart)
    assert printed == planned
    assert losses == pytest.approx(two_stages[2], abs=2e-4)


@pytest.mark.parametrize("plan", [TWO, INTERLEAVED, replace(TWO, schedule=Schedule.ZERO_BUBBLE)])
def test_stages_take_turns_as_they_were_simulated(plan):
    turns = json.loads(render(layout(plan)).files["ranks.json"])["turns"]
    letters = {"forward": "F", "backward": "B", "weight": "W"}
    assert turns == [
        [" ".join(f"{letters[work.kind]}{work.microbatch}.{work.chunk}" for work in stage) for stage in stages]
        for stages in (orders(plan, pipeline) for pipeline in plan.pipelines)
    ]


def test_the_scripts_give_every_node_its_place(tmp_path):
    plan = TrainingPlan((Pipeline((Stage("a", 0, 3, 2), Stage("b", 3, 2, 1)), replicas=3, microbatches=4),), 1)
    launch = render(layout(plan))
    write(tmp_path, launch)
    fake(tmp_path / "bin", "torchrun", 'echo "$@"')
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    started, first = [], 0
    for (domain, index), ranks in launch.ranks.nodes().items():
        script = str(tmp_path / f"launch-{domain}.sh")
        process = run(script, MASTER_ADDR="host", NODE_INDEX=str(index), PATH=path)
        arguments = finish([process]).split()
        assert arguments[0] == "--nnodes=3"
        assert arguments[1] == f"--node-rank={len(started)}"
        assert arguments[2] == f"--nproc-per-node={len(ranks)}"
        assert "--rdzv-endpoint=host:29500" in arguments
        # torchrun numbers the processes of node 0 first, then those of node 1, and so on.
        assert [rank.rank for rank in ranks] == list(range(first, first + len(ranks)))
        started.append(process)
        first += len(ranks)
    assert first == plan.num_devices


@pytest.mark.parametrize(
    ("variables", "message"),
    [({}, "MASTER_ADDR"), ({"MASTER_ADDR": "h", "NODE_INDEX": "1"}, "nodes 0 to 0")],
    ids=["no-address", "no-such-node"],
)
def test_a_script_says_what_it_lacks(tmp_path, monkeypatch, variables, message):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    write(tmp_path, render(layout(TWO)))
    process = run(str(tmp_path / "launch-a.sh"), **variables)
    _, errors = process.communicate(timeout=300)
    assert process.returncode
    assert message in errors


def test_the_folder_needs_nothing_of_strata():
    files = render(layout(TWO)).files
    assert "import strata" not in files["train.py"] + files["tiny.py"]
    assert "from strata" not in files["train.py"] + files["tiny.py"]
    assert TrainingPlan.from_dict(json.loads(files["ranks.json"])["plan"]) == TWO


def test_train_py_does_not_split_a_sequence():
    stages = tuple(replace(stage, context_parallel=2) for stage in TWO.pipelines[0].stages)
    with pytest.raises(UsageError, match="split a sequence"):
        render(layout(replace(TWO, pipelines=(replace(TWO.pipelines[0], stages=stages),))))


def test_what_train_py_does_otherwise_is_said():
    plan = TrainingPlan(UNEQUAL.pipelines, 1, local_steps=8, gradient_compression=4.0, zero_stage=1)
    launch = render(layout(plan))
    assert ["DiLoCo" in launch.notes[0], "4 to 1" in launch.notes[1], "ZeRO stage 1" in launch.notes[2]] == [
        True
    ] * 3
    for note in launch.notes:
        assert f"# note: {note}" in launch.files["launch-a.sh"]
    assert render(layout(TWO)).notes == ()
    more = {"expert_parallel": 2, "activation_offload": 0.5}
    assert len(render(layout(replace(TWO, **more))).notes) == 2
    (note,) = render(layout(replace(TWO, zero_stage=3))).notes
    assert "does not shard optimizer, gradients and weights" in note


def test_software_that_the_stand_in_is_not_is_noted():
    chosen = layout(TWO)
    assert "software" not in " ".join(render(chosen).notes)
    assert "software" not in " ".join(render(chosen, software=SoftwareEntry(framework="pytorch")).notes)
    assert "(cuda_graphs)" in " ".join(render(chosen, software=SoftwareEntry(cuda_graphs=True)).notes)
